"""The only room that knows Stable-Baselines3: extractor, binding, attachment, callbacks."""

from rl_infonce.sb3.callbacks import InfoNCECallback
from rl_infonce.sb3.combined import InfoNCECombinedExtractor
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sb3.nan_guard import NanGuardCallback
from rl_infonce.sb3.probe_callback import ProbeCallback
from rl_infonce.sb3.resume import ResumeCallback
from rl_infonce.sb3.saved_model import read_encoder

__all__ = [
    "InfoNCECallback",
    "InfoNCECombinedExtractor",
    "InfoNCEExtractor",
    "NanGuardCallback",
    "ProbeCallback",
    "ResumeCallback",
    "read_encoder",
]
