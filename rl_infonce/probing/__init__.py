"""Probe which state variables frozen features reveal, without knowing games or agents."""

from rl_infonce.probing.anand2019 import Anand2019
from rl_infonce.probing.converged import Converged
from rl_infonce.probing.data import LabelledObservations
from rl_infonce.probing.differences import F1Difference, f1_differences
from rl_infonce.probing.digests import frame_digests
from rl_infonce.probing.features import extract_features
from rl_infonce.probing.linear import Classifier, Probe
from rl_infonce.probing.metrics import Score, score
from rl_infonce.probing.neighbours import knn_predictions, knn_scores
from rl_infonce.probing.probe import PROTOCOLS, fit_probe
from rl_infonce.probing.regression import RidgeScore, mean_position_scores, ridge_probe
from rl_infonce.probing.scores import (
    ProbeScores,
    majority_scores,
    probe_features,
    score_predictions,
    scored_positions,
)
from rl_infonce.probing.splits import (
    Split,
    drop_low_entropy,
    drop_seen_frames,
    entropy,
    split_episodes,
)
from rl_infonce.probing.task import ProbingTask, make_task

__all__ = [
    "PROTOCOLS",
    "Anand2019",
    "Classifier",
    "Converged",
    "F1Difference",
    "LabelledObservations",
    "Probe",
    "ProbeScores",
    "ProbingTask",
    "RidgeScore",
    "Score",
    "Split",
    "drop_low_entropy",
    "drop_seen_frames",
    "entropy",
    "extract_features",
    "f1_differences",
    "fit_probe",
    "frame_digests",
    "knn_predictions",
    "knn_scores",
    "majority_scores",
    "make_task",
    "mean_position_scores",
    "probe_features",
    "ridge_probe",
    "score",
    "score_predictions",
    "scored_positions",
    "split_episodes",
]
