"""ProbeCallback measures what the features know about the game while they are trained."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Image, Logger, TensorBoardOutputFormat

from rl_infonce.agents.features import (
    check_observes,
    count_vectors,
    feature_function,
    fitted_normalizer,
    untrained_policy,
)
from rl_infonce.checks import check_count, check_flag, check_number, warn_user
from rl_infonce.live_probes.probe_figures import (
    Predictions,
    critic_figures,
    overlay_figure,
    project,
    score_figures,
    shows_images,
)
from rl_infonce.live_probes.probe_inputs import checked_game, live_task, named_protocols
from rl_infonce.live_probes.probe_scalars import chart_layout, on_screen, probe_scalars
from rl_infonce.probing import (
    Converged,
    LabelledObservations,
    ProbeScores,
    ProbingTask,
    extract_features,
    majority_scores,
    probe_features,
)
from rl_infonce.report.rendering import has_matplotlib, rendered
from rl_infonce.report.tensorboard import write_chart_layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.policies import BasePolicy
    from stable_baselines3.common.vec_env import VecNormalize
    from torch.utils.tensorboard import SummaryWriter

    from rl_infonce.probing.probe import Protocol

Features = npt.NDArray[np.float32]

QUICK = Converged(penalties=(1e-3,), tolerance=1e-2, path_tolerance=1e-2)
"""Logistic regression with one fixed penalty, stopped early: seconds instead of minutes."""

_ONLY_TENSORBOARD = ("stdout", "log", "json", "csv")


class ProbeCallback(BaseCallback):
    """Probe the features of any Stable-Baselines3 model while it trains.

    A linear classifier per variable of the game's state (where is the ball? what is the score?) is
    fitted on frozen features and scored on episodes it has not seen, as in Anand et al. 2019. The
    frames come from a random agent, the same for every run: they are collected once, when training
    first starts, and kept in a cache. Beside the scores stand those of an untrained network of the
    same architecture and of the most frequent class. `collect_labelled` makes such a set of any
    environment whose infos hold labels, of images or vectors.

    The callback probes the features that the policy acts on, with or without an `InfoNCEExtractor`
    (`rl_infonce.agents.features.feature_function`). It does not disturb training: weights and
    random streams are bit-identical with and without it. Features that cannot be probed (NaN, or
    all equal) give a warning and no scores; those of the untrained network, the scores of the most
    frequent class.

    Scores go to the logger under `probe/`, at the start, every `probe_freq` steps and at the end;
    figures go to TensorBoard if matplotlib is installed.

    Args:
        game: A game with RAM labels in any spelling, or labelled observations of your own.
        probe_freq: Number of calls of `env.step` between probes, >= 1; each is one step of all
            `n_envs` environments.
        n_frames: Number of labelled frames of a game, >= 1000, an eighth of them in each of eight
            emulators; on Pong, a probe of 10,000 takes 2 to 5 seconds on two cores, figures
            included. Games of more than 1,250 steps, as on Freeway, Boxing and Tennis, need more
            for a test part of at least 3 games. Observations of your own are all used.
        protocols: "converged" chooses the penalty of every variable, "anand2019" is the published
            classifier (on the callback's split and variables, where `rl-infonce probe` takes the
            published ones also); both take minutes. The default, `Converged(penalties=(1e-3,),
            tolerance=1e-2, path_tolerance=1e-2)`, takes seconds. `Converged(...)` and
            `Anand2019(...)` from `rl_infonce.probing` accept settings of your own. Figures show
            the first protocol.
        label_version: Version of the labels, one of `rl_infonce.atari.label_versions()`.
        entropy_threshold: Least entropy in nats, >= 0, of a variable that is probed; 0.6, as
            published, leaves out a boolean that is True less often than 3 in 10 times.
        seed: Seed of the labelled frames, their split and the untrained network, not the training.
        figures: Whether to draw figures.
        projector: Whether to show features in TensorBoard's projector when training ends.
        cache_folder: Folder; None takes `$XDG_CACHE_HOME/rl_infonce` or `~/.cache/rl_infonce`.
        verbose: 1 says when frames are collected, with a progress bar.

    Attributes:
        task: Split and labels, once training has started.
        history: Pairs of a training step and the scores by protocol, oldest first.
        untrained: Scores of the untrained network by protocol.
        majority: Scores of always predicting the most frequent class.

    Warns:
        UserWarning: If the test part holds fewer than 3 games, labels of your own hardly vary, or
            matplotlib is missing.
        RuntimeWarning: If features cannot be probed.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or the game has no labels; at the start of
            training, if the model does not observe what the labelled frames show, or they are too
            few.

    Example:
        >>> ProbeCallback("pong", probe_freq=5000).game
        'pong'
        >>> ProbeCallback("tetris")
        Traceback (most recent call last):
        ValueError: Expected `game` with RAM labels in version 'corrected', got 'tetris'. ...
    """

    def __init__(
        self,
        game: str | LabelledObservations,
        probe_freq: int = 10_000,
        *,
        n_frames: int = 10_000,
        protocols: Sequence[Protocol] = (QUICK,),
        label_version: str = "corrected",
        entropy_threshold: float = 0.6,
        seed: int = 0,
        figures: bool = True,
        projector: bool = False,
        cache_folder: str | os.PathLike[str] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        check_count("probe_freq", probe_freq)
        check_count("n_frames", n_frames, at_least=1000)
        check_number("entropy_threshold", entropy_threshold, at_least=0)
        check_count("seed", seed, at_least=0)
        check_flag("figures", figures)
        check_flag("projector", projector)
        self.protocols = named_protocols(protocols)
        self.game = checked_game(game, label_version)
        self.probe_freq = probe_freq
        self.n_frames = n_frames
        self.label_version = label_version
        self.entropy_threshold = entropy_threshold
        self.seed = seed
        self.figures = figures
        self.projector = projector
        self.cache_folder = cache_folder
        self.labelled = None if isinstance(game, str) else game
        self._has_own_labels = self.labelled is not None
        self.task: ProbingTask | None = None
        self.history: list[tuple[int, dict[str, ProbeScores]]] = []
        self.untrained: dict[str, ProbeScores] = {}
        self.majority: ProbeScores | None = None
        self._judged: BasePolicy | None = None
        self._last_step = 0

    # -- when -------------------------------------------------------------------------------------

    def _on_training_start(self) -> None:
        self._last_step = self.locals["total_timesteps"]
        labelled = self._labelled()
        observations = labelled.observations
        check_observes(self.model, tuple(observations.shape[1:]), observations.dtype)
        if self.task is None:
            self.task = live_task(
                labelled,
                np.random.default_rng(self.seed),
                threshold=self.entropy_threshold,
                is_own=self._has_own_labels,
            )
            self.majority = majority_scores(self.task, seed=self.seed)
        if self._judged is not self.model.policy:
            self._judged = self.model.policy
            policy = untrained_policy(self.model, self.seed)
            normalize = fitted_normalizer(self.model.get_vec_normalize_env(), observations)
            if not shows_images(labelled):
                count_vectors(policy, np.asarray(observations[:]), vec_normalize=normalize)
            self.untrained = self._untrained_scores(policy, normalize)
        if self.history and not 0 < self.history[-1][0] <= self.num_timesteps:
            self.history = []  # a new training, not a continued one
        for writer in self._writers():
            categories = list(self.untrained[self._first].categories)
            write_chart_layout(writer, chart_layout(list(self.protocols), categories))
        if self._draws and not has_matplotlib():
            self.figures = False
            warn_user(
                "ProbeCallback writes no figures, because matplotlib is missing. Install it with "
                '`pip install "rl-infonce[plots]"`, or pass figures=False.',
            )
        self._probe_once()

    def _on_step(self) -> bool:
        # The last step is probed after the last update instead.
        if self.n_calls % self.probe_freq == 0 and self.num_timesteps < self._last_step:
            self._probe()
        return True

    def _on_training_end(self) -> None:
        self._probe_once()
        if self.projector and self.task is not None:
            features = self._features_now()
            for writer in self._writers():
                project(writer, features, self._labelled(), self.task, step=self.num_timesteps)

    def get_state(self) -> dict[str, Any]:
        """Return the scores so far."""
        return {
            "history": [
                [step, {name: each.to_json() for name, each in scores.items()}]
                for step, scores in self.history
            ]
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue the scores of another run; a probe of this run at its start stays."""
        former = [
            (step, {name: ProbeScores.from_json(each) for name, each in scores.items()})
            for step, scores in state["history"]
        ]
        steps = {step for step, _ in former}
        self.history = former + [each for each in self.history if each[0] not in steps]

    def _probe_once(self) -> None:
        """Probe unless this step was probed already, before a pause in training."""
        if not self.history or self.history[-1][0] < self.num_timesteps:
            self._probe()

    # -- what -------------------------------------------------------------------------------------

    def _labelled(self) -> LabelledObservations:
        if self.labelled is None:
            from rl_infonce.atari.cache import cached_frames

            frames = cached_frames(
                self.game,
                self.n_frames,
                seed=self.seed,
                cache_folder=self.cache_folder,
                progress=self.verbose > 0,
            )
            self.labelled = frames.labelled("agent", self.label_version)
        return self.labelled

    def _untrained_scores(
        self, policy: BasePolicy, normalize: VecNormalize | None
    ) -> dict[str, ProbeScores]:
        assert self.majority is not None  # noqa: S101 (made when training starts)
        try:
            return self._scores(self._features(policy, normalize))[0]
        except ValueError as error:
            warn_user(
                f"The untrained network has no probe, and the most frequent class stands for it: "
                f"{error}",
                RuntimeWarning,
            )
            return dict.fromkeys(self.protocols, self.majority)

    def _features_now(self) -> Features:
        return self._features(self.model, self.model.get_vec_normalize_env())

    def _features(
        self, model: BaseAlgorithm | BasePolicy, normalize: VecNormalize | None
    ) -> Features:
        function = feature_function(model, vec_normalize=normalize)
        return extract_features(function, self._labelled().observations)

    def _scores(self, features: Features) -> tuple[dict[str, ProbeScores], Predictions]:
        """Return scores by protocol, and the predictions of the first."""
        assert self.task is not None  # noqa: S101 (made when training starts)
        found = {
            name: probe_features(
                features, self.task, protocol=protocol, seed=self.seed, device=self.model.device
            )
            for name, protocol in self.protocols.items()
        }
        return {name: scores for name, (scores, _) in found.items()}, found[self._first][1]

    def _probe(self) -> None:
        start = time.perf_counter()
        try:
            scores, predictions = self._scores(self._features_now())
        except (ValueError, RuntimeError) as error:  # also memory that a GPU lacks
            warn_user(f"Step {self.num_timesteps} has no probe: {error}", RuntimeWarning)
            return
        self.history.append((self.num_timesteps, scores))
        self._log(scores, predictions, start)
        if self._draws:
            # Figures are cycles of thousands of objects, which Python hardly ever looks for during
            # training: each probe would leave 10 MB in memory.
            gc.collect()

    def _log(self, scores: dict[str, ProbeScores], predictions: Predictions, start: float) -> None:
        assert self.majority is not None  # noqa: S101 (made when training starts)
        # A new logger on the same outputs: dumping the model's logger would cut its averages short.
        logger = Logger(None, self.logger.output_formats)
        logger.set_level(self.logger.level)
        for protocol, each in scores.items():
            for tag, number in probe_scalars(each, self.untrained[protocol], self.majority).items():
                logger.record(tag, number, exclude=None if on_screen(tag) else "stdout")
        if self._draws:
            for name, figure in self._figures(predictions).items():
                picture = Image(rendered(figure), "HWC")
                logger.record(f"probe_figures/{name}", picture, exclude=_ONLY_TENSORBOARD)
        logger.record("probe/seconds", time.perf_counter() - start)
        logger.dump(self.num_timesteps)

    def _figures(self, predictions: Predictions) -> dict[str, Figure]:
        assert self.task is not None  # noqa: S101 (made when training starts)
        assert self.majority is not None  # noqa: S101
        labelled, protocol = self._labelled(), self._first
        history = [(step, scores[protocol]) for step, scores in self.history]
        kind = "quick" if self.protocols[protocol] is QUICK else protocol
        title = f"{self.game}, {kind} probe"
        now = f"{title}, step {self.num_timesteps:,}"
        untrained = self.untrained[protocol]
        figures = score_figures(history, untrained, self.majority, self.task, title=title)
        if not shows_images(labelled):
            return figures
        return {
            **figures,
            "predictions": overlay_figure(labelled, self.task, predictions, title=now),
            **critic_figures(
                self.model.policy,
                labelled,
                vec_normalize=self.model.get_vec_normalize_env(),
                seed=self.seed,
                title=now,
            ),
        }

    @property
    def _first(self) -> str:
        """Name of the protocol that figures show."""
        return next(iter(self.protocols))

    @property
    def _draws(self) -> bool:
        """Whether there is a place to show figures."""
        return self.figures and bool(self._writers())

    def _writers(self) -> list[SummaryWriter]:
        outputs = self.logger.output_formats
        return [each.writer for each in outputs if isinstance(each, TensorBoardOutputFormat)]
