"""Encoders and agents on the Hugging Face hub: a model card up, checked files down, no pickle."""

from rl_infonce.hub.bundle import Bundle, make_bundle
from rl_infonce.hub.client import HubError
from rl_infonce.hub.pull import Pulled, pull
from rl_infonce.hub.push import push

__all__ = ["Bundle", "HubError", "Pulled", "make_bundle", "pull", "push"]
