"""Score features with probes, one game, encoder, seed and protocol after the other."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from rl_infonce.atari.labels import labels_hash
from rl_infonce.atari.pixel_maps import screen_positions
from rl_infonce.device import hardware_name, processor_name
from rl_infonce.files.durable import replace_text
from rl_infonce.files.json_text import none_if_nan
from rl_infonce.probing import (
    extract_features,
    knn_scores,
    majority_scores,
    make_task,
    mean_position_scores,
    probe_features,
    ridge_probe,
)
from rl_infonce.probing.converged import PENALTY_PATIENCE
from rl_infonce.runs.run_directory import now
from rl_infonce.runs.software import software
from rl_infonce.scoring.feature_sources import MAJORITY, RANDOM, ProbedEncoder
from rl_infonce.scoring.scores_file import ProbeKey, ScoresFile
from rl_infonce.scoring.scores_page import (
    PUBLISHED_MIN_EPISODE_LENGTH,
    encoder_names,
    scores_table,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rl_infonce.probing import LabelledObservations, ProbingTask
    from rl_infonce.scoring.frame_source import FrameSource

TASKS: dict[str, dict[str, Any]] = {
    "converged": {},
    # The published filters; games are shuffled, as the published code meant to do.
    "anand2019": {"min_episode_length": PUBLISHED_MIN_EPISODE_LENGTH, "entropy_on": "all"},
    "knn": {},
    "ridge": {},
}
Features = npt.NDArray[np.float32]
Scored = tuple[dict[str, Any], str]
"""Scores as JSON, and the figure to print."""
Scorer = Callable[[ProbeKey], Scored]


@dataclass(frozen=True)
class Plan:
    """What to score, and how.

    Encoders stand under their keys. A seed decides split, untrained weights and probe. Shorter
    episodes (in frames) are not used; None leaves this to the protocol. With "bf16", encoders
    compute in bfloat16 autocast. `say` receives lines about what is done, and `complain` those
    about failures.
    """

    games: Sequence[str]
    source: FrameSource
    encoders: Mapping[str, ProbedEncoder]
    seeds: Sequence[int]
    protocols: Sequence[str]
    labels: str
    min_episode_length: int | None
    precision: str
    device: torch.device
    progress: bool
    say: Callable[[str], object]
    complain: Callable[[str], object]

    @property
    def settings(self) -> dict[str, Any]:
        """What all scores of a folder share."""
        own = {"min_episode_length": self.min_episode_length}
        return {
            **self.source.settings,
            "labels": self.labels,
            "precision": self.precision,
            "split_by": "game",  # scores of earlier versions, which split lives, do not compare
            **({} if self.min_episode_length is None else own),
        }

    def probes(self, game: str) -> list[ProbeKey]:
        """Return the probes of a game, in an order in which features are needed once."""
        orders = itertools.product(self.encoders, self.seeds, self.protocols)
        return [ProbeKey(game, *order) for order in orders]


def probe_games(plan: Plan, scores: ScoresFile, *, command: str) -> bool:
    """Score what is missing, write `scores.json` and `scores.md`; return whether all succeeded.

    An interruption is raised again after writing what is done.
    """
    for encoder in plan.encoders.values():
        if scores.replace_encoder(encoder.key, encoder.for_json()):
            plan.say(f"{encoder.name} has changed: the scores of its earlier content are dropped.")
    for game in sorted({entry["game"] for entry in scores.scored()}):
        if scores.drop_stale(game, labels_hash=labels_hash(game, plan.labels)):
            plan.say(f"{game}: labels have changed, the scores of the earlier ones are dropped")
        if scores.drop_stale(game, penalty_patience=PENALTY_PATIENCE):
            plan.say(f"{game}: penalties are searched otherwise, the earlier scores are dropped")
    run = {"command": command, "start_time": now(), **software(), "hardware": _hardware(plan)}
    scores.content["runs"].append(run)
    start, succeeded = time.perf_counter(), True
    try:
        for game in plan.games:
            succeeded &= _probe_game(plan, game, scores)
            replace_text(scores.table_path, scores_table(scores.content))
    finally:
        run["wall_seconds"] = round(time.perf_counter() - start, 1)
        scores.write()
        replace_text(scores.table_path, scores_table(scores.content))
    return succeeded


def _probe_game(plan: Plan, game: str, scores: ScoresFile) -> bool:
    probes = plan.probes(game)
    missing = [probe for probe in probes if not scores.done(probe)]
    if len(missing) < len(probes):
        plan.say(f"{game}: {len(probes) - len(missing)} finished before")
    if not missing:
        return True
    try:
        frames = plan.source.open(game, progress=plan.progress)
        labelled = frames.labelled(plan.source.view, plan.labels)
    except Exception as error:  # noqa: BLE001 (the other games are to be scored)
        for probe in missing:
            _fail(probe, plan, scores, error)
        return False
    if scores.drop_stale(game, frames_hash=frames.frames_hash):
        plan.say(f"{game}: frames have changed, the scores of the earlier ones are dropped")
        missing = probes
    score_of = _scorer(plan, labelled)
    hashes = {"labels_hash": labels_hash(game, plan.labels), "frames_hash": frames.frames_hash}
    succeeded = True
    for probe in missing:
        succeeded &= _score_probe(probe, plan, scores, score_of, hashes)
    return succeeded


def _score_probe(
    probe: ProbeKey, plan: Plan, scores: ScoresFile, score_of: Scorer, hashes: Mapping[str, str]
) -> bool:
    start = time.perf_counter()
    try:
        found, headline = score_of(probe)
    except Exception as error:  # noqa: BLE001 (the other probes are to be scored)
        _fail(probe, plan, scores, error)
        return False
    seconds = round(time.perf_counter() - start, 2)
    searched = {"penalty_patience": PENALTY_PATIENCE} if probe.protocol == "converged" else {}
    scores.put(probe, status="done", seconds=seconds, **hashes, **searched, scores=found)
    plan.say(f"{_shown(probe, scores)}: {headline} ({seconds:.0f} s)")
    return True


def _scorer(plan: Plan, labelled: LabelledObservations) -> Scorer:
    """Return the function that scores a probe; it keeps tasks, and the features used last."""

    @functools.cache
    def task_of(seed: int, protocol: str) -> ProbingTask:
        settings = dict(TASKS[protocol])
        if plan.min_episode_length is not None:
            settings["min_episode_length"] = plan.min_episode_length
        return make_task(labelled, np.random.default_rng(seed), **settings)

    @functools.lru_cache(maxsize=1)
    def features_of(key: str, seed: int | None) -> Features:
        module = plan.encoders[key].of_seed(seed or 0)
        return _extract(plan, module, labelled.observations, plan.encoders[key].name)

    def score_of(probe: ProbeKey) -> Scored:
        task = task_of(probe.seed, probe.protocol)
        kind = plan.encoders[probe.encoder].kind
        features = None
        if kind != MAJORITY:
            features = features_of(probe.encoder, probe.seed if kind == RANDOM else None)
        if probe.protocol == "ridge":
            return _positions(features, task, probe.game, plan.labels)
        return _classes(features, task, probe, plan.device)

    return score_of


def _classes(
    features: Features | None, task: ProbingTask, probe: ProbeKey, device: torch.device
) -> Scored:
    """Score predicted classes; without features, the most frequent one."""
    if features is None:
        found = majority_scores(task, seed=probe.seed)
    elif probe.protocol == "knn":
        found = knn_scores(features, task, seed=probe.seed, device=device)
    else:
        found, _ = probe_features(
            features, task, protocol=probe.protocol, seed=probe.seed, device=device
        )
    return found.to_json(), f"F1 {found.mean.f1_weighted:.3f}"


def _positions(features: Features | None, task: ProbingTask, game: str, labels: str) -> Scored:
    """Score positions in pixels; without features, their mean."""
    positions = screen_positions(task.labels, game, labels)
    seen = {
        name: values
        for name, values in positions.items()
        if all(np.isfinite(values[rows]).any() for rows in task.split)
    }
    if not seen:
        raise ValueError(f"{game} has no position that varies and whose pixels were measured")
    if features is None:
        found = mean_position_scores(seen, task.split)
    else:
        found, _ = ridge_probe(features, seen, task.split)
    variables = {
        name: {
            "r2": none_if_nan(score.r2),
            "median_absolute_error": score.median_absolute_error,
        }
        for name, score in found.items()
    }
    median = np.median([score.median_absolute_error for score in found.values()])
    return {"variables": variables}, f"median error {median:.1f} px"


def _extract(plan: Plan, module: nn.Module, observations: Any, name: str) -> Features:
    module = module.to(plan.device)
    half = plan.precision == "bf16"
    if half:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with tqdm(
        total=len(observations), desc=name, unit="frame", disable=not plan.progress, leave=False
    ) as bar:

        def encode(images: Tensor) -> Tensor:
            with torch.autocast(plan.device.type, dtype=torch.bfloat16, enabled=half):
                features: Tensor = module(images)
            bar.update(len(images))
            return features

        return extract_features(encode, observations, device=plan.device)


def _fail(probe: ProbeKey, plan: Plan, scores: ScoresFile, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}"
    scores.put(probe, status="failed", error=text)
    plan.complain(f"{_shown(probe, scores)}: FAILED: {text}")


def _shown(probe: ProbeKey, scores: ScoresFile) -> str:
    name = encoder_names(scores.content["encoders"])[probe.encoder]
    return f"{probe.game}, {name}, seed {probe.seed}, {probe.protocol}"


def _hardware(plan: Plan) -> dict[str, Any]:
    on_gpu = plan.device.type == "cuda"
    return {
        "cpu": processor_name(),
        "n_cores": os.cpu_count(),
        "n_torch_threads": torch.get_num_threads(),
        "device": hardware_name(plan.device) if on_gpu else str(plan.device),
    }
