"""Push encoders and agents to the Hugging Face hub with a model card, and pull checked files."""

from rl_infonce.hub.bundle import Bundle, make_bundle
from rl_infonce.hub.client import HubError
from rl_infonce.hub.pull import Pulled, pull
from rl_infonce.hub.push import push

__all__ = ["Bundle", "HubError", "Pulled", "make_bundle", "pull", "push"]
