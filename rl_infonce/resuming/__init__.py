"""Trainings that can be killed at any time and continue exactly."""

from rl_infonce.resuming.nan_guard import NanGuardCallback
from rl_infonce.resuming.resume_callback import ResumeCallback

__all__ = ["NanGuardCallback", "ResumeCallback"]
