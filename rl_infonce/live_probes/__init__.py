"""Probes of the features while they are trained, in TensorBoard."""

from rl_infonce.live_probes.probe_callback import ProbeCallback

__all__ = ["ProbeCallback"]
