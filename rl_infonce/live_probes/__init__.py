"""Probe the features while they are trained, and show the scores in TensorBoard."""

from rl_infonce.live_probes.own_labels import collect_labelled
from rl_infonce.live_probes.probe_callback import ProbeCallback

__all__ = ["ProbeCallback", "collect_labelled"]
