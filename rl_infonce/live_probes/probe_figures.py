"""Draw the figures of one probe, which TensorBoard shows beside the curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_infonce.agents.features import acting_extractor
from rl_infonce.live_probes.similarity import CriticScores, critic_scores, has_critic
from rl_infonce.report.overlay import Place, prediction_overlay
from rl_infonce.report.probe_figures import probe_heat_map, probe_table_figure
from rl_infonce.report.similarity_figure import similarity_figure
from rl_infonce.report.tensorboard import write_projector

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from stable_baselines3.common.policies import BasePolicy
    from stable_baselines3.common.vec_env import VecNormalize
    from torch.utils.tensorboard import SummaryWriter

    from rl_infonce.probing import LabelledObservations, ProbeScores, ProbingTask

Predictions = dict[str, npt.NDArray[np.uint8]]

_N_OVERLAYS, _N_PROJECTED = 6, 1000


def shows_images(labelled: LabelledObservations) -> bool:
    """Return whether observations are images [C, H, W], which can be drawn."""
    return len(labelled.observations.shape) == 4


def thumbnails(observations: Any, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the latest frame of each row, [B, H, W] uint8: the last channel of a stack.

    Three channels are taken for colours, whose mean it is. Floats are stretched from their own
    range to 0..255.
    """
    images: npt.NDArray[Any] = np.asarray(observations[rows])
    has_colours = images.shape[1] == 3
    frames = images.mean(axis=1).astype(images.dtype) if has_colours else images[:, -1]
    if frames.dtype == np.uint8:
        return frames
    lowest, width = frames.min(), np.ptp(frames)
    gray: npt.NDArray[np.uint8] = (255 * (frames - lowest) / (width or 1)).astype(np.uint8)
    return gray


def score_figures(
    history: list[tuple[int, ProbeScores]],
    untrained: ProbeScores,
    majority: ProbeScores,
    task: ProbingTask,
    *,
    title: str,
) -> dict[str, Figure]:
    """Return the table of the latest scores and the heat map of all scores."""
    step, now = history[-1]
    columns = {"now": now, "untrained": untrained, "majority": majority}
    return {
        "table": probe_table_figure(columns, task.categories, title=f"{title}, step {step:,}"),
        "heat_map": probe_heat_map(history, task.categories, untrained=untrained, title=title),
    }


def overlay_figure(
    labelled: LabelledObservations, task: ProbingTask, predictions: Predictions, *, title: str
) -> Figure:
    """Return the figure of test frames, always the same ones, with predicted and true values."""
    chosen = _spread(len(task.split.test), _N_OVERLAYS)
    rows = task.split.test[chosen]
    frames = thumbnails(labelled.observations, rows)
    labels = {name: np.asarray(values)[rows] for name, values in task.labels.items()}
    predicted = {name: values[chosen] for name, values in predictions.items()}
    shape, places = _places(labelled, labels, predicted)
    return prediction_overlay(
        frames, labels, predicted, places, screen_shape=shape or frames.shape[1:], title=title
    )


def project(
    writer: SummaryWriter,
    features: npt.NDArray[np.float32],
    labelled: LabelledObservations,
    task: ProbingTask,
    *,
    step: int,
) -> None:
    """Show features [K, D] of some test frames in TensorBoard's projector."""
    rows = task.split.test[_spread(len(task.split.test), _N_PROJECTED)]
    labels = {"episode": labelled.episode_ids[rows]}
    labels |= {name: values[rows] for name, values in task.labels.items()}
    frames = thumbnails(labelled.observations, rows) if shows_images(labelled) else None
    write_projector(writer, features[rows], labels, frames, step=step, tag="features")


def _spread(n: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most so many of n indices, evenly spread from the first to the last."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


def _places(
    labelled: LabelledObservations, labels: Predictions, predictions: Predictions
) -> tuple[tuple[int, int] | None, dict[str, Place]]:
    """Return the screen's shape and places on it; nothing for data without an emulator's view."""
    game, view, version = (
        labelled.provenance.get(key) for key in ("game", "view", "label_version")
    )
    if game is None or version is None or view not in ("agent", "screen"):
        return None, {}
    from rl_infonce.atari.pixel_maps import SCREEN_SHAPE, load_pixel_maps, to_pixels

    def pixels(values: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.float64]:
        found = to_pixels(values, game, name, version)
        assert found is not None  # noqa: S101 (it has a map)
        return found

    return SCREEN_SHAPE, {
        name: Place(each.axis, pixels(labels[name], name), pixels(predictions[name], name))
        for name, each in load_pixel_maps(game, version).items()
        if name in predictions
    }


def critic_figures(
    policy: BasePolicy,
    labelled: LabelledObservations,
    *,
    vec_normalize: VecNormalize | None,
    seed: int,
    title: str,
) -> dict[str, Figure]:
    """Return a similarity picture per horizon; nothing for a model without an InfoNCE critic."""
    extractor = acting_extractor(policy)
    if not has_critic(extractor):
        return {}
    scores = critic_scores(
        policy,
        labelled.observations,
        labelled.episode_ids,
        np.random.default_rng(seed),
        n_steps=max(extractor.horizons) * 2 + 1,
        vec_normalize=vec_normalize,
    )
    if scores is None:
        return {}
    return {
        f"critic_k{horizon}": _critic_figure(labelled, scores, k, horizon, title)
        for k, horizon in enumerate(extractor.horizons)
    }


def _critic_figure(
    labelled: LabelledObservations, scores: CriticScores, k: int, horizon: int, title: str
) -> Figure:
    steps = np.arange(scores.same.shape[-1])
    anchor, other = scores.anchors[0], scores.others[0]
    return similarity_figure(
        thumbnails(labelled.observations, anchor + steps),
        thumbnails(labelled.observations, other + steps),
        scores.same[k],
        scores.other[k],
        horizon=horizon,
        title=title,
    )
