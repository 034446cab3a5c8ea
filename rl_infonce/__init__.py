"""Temporal InfoNCE for stock Stable-Baselines3 agents.

Names that need Stable-Baselines3 or ale_py are imported when they are first used, so that the
numeric packages (`rl_infonce.nce`, `rl_infonce.temporal`, ...) stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_infonce.atari import make_atari_vec_env
    from rl_infonce.live_probes import ProbeCallback
    from rl_infonce.resuming import NanGuardCallback, ResumeCallback
    from rl_infonce.sb3 import InfoNCECallback, InfoNCECombinedExtractor, InfoNCEExtractor

__version__ = "0.2.0.dev0"

__all__ = [
    "InfoNCECallback",
    "InfoNCECombinedExtractor",
    "InfoNCEExtractor",
    "NanGuardCallback",
    "ProbeCallback",
    "ResumeCallback",
    "__version__",
    "make_atari_vec_env",
]

_HOMES = {
    "InfoNCECallback": "rl_infonce.sb3",
    "InfoNCECombinedExtractor": "rl_infonce.sb3",
    "InfoNCEExtractor": "rl_infonce.sb3",
    "NanGuardCallback": "rl_infonce.resuming",
    "ProbeCallback": "rl_infonce.live_probes",
    "ResumeCallback": "rl_infonce.resuming",
    "make_atari_vec_env": "rl_infonce.atari",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
