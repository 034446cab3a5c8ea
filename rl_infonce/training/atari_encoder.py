"""Pretrain an encoder on the frames of an Atari game."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_infonce.atari.cache import cached_frames
from rl_infonce.atari.games import resolve_game
from rl_infonce.atari.labels import labels_hash
from rl_infonce.checks import check_choice, check_count, check_number
from rl_infonce.device import arithmetic, usable_device
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.encoder_file import save_encoder
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    OBJECTIVES,
    EpisodeFrames,
    PretrainingObjective,
    PretrainingSettings,
    Progress,
    make_objective,
    parse_budget,
    pretrain,
    training_and_validation,
)
from rl_infonce.pretraining.curves import PretrainingCurves
from rl_infonce.pretraining.objectives import default_batch_size, paints_screens
from rl_infonce.pretraining.ranks import Ranks
from rl_infonce.probing import drop_low_entropy
from rl_infonce.runs.software import software
from rl_infonce.settings import ENCODER_SETTINGS

_VIEWS = {"stdim": "screen", "nature": "agent", "impala": "agent"}


@dataclass(frozen=True)
class EncoderPlan:
    """Which encoder is pretrained, on which frames of a game, and how.

    The architecture "stdim" reads screens, "nature" and "impala" what agents see, and take a form
    other than NatureCNN's. Labels are their version, for "supervised" alone. None stands for the
    objective's own batch size, for encoding a batch at once, for bf16 where the device multiplies
    it in hardware, and for NatureCNN's form.
    """

    game: str
    objective: str = "stdim"
    encoder: str = "stdim"
    budget: str = "10m"
    n_frames: int = 100_000
    policy: str = "random-without-noop"
    data_seed: int = 1
    labels: str | None = None
    batch_size: int | None = None
    micro_batch_size: int | None = None
    learning_rate: float = 3e-4
    precision: str | None = None
    seed: int = 0
    device: str = "auto"
    activation: str | None = None
    normalization: str | None = None
    feature_activation: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "game", resolve_game(self.game))
        check_choice("--objective", self.objective, OBJECTIVES)
        self._check_form()
        if paints_screens(self.objective) and _VIEWS[self.encoder] != "screen":
            raise ValueError(
                f"Expected `--encoder` stdim with --objective {self.objective}, which paints "
                f"210x160 screens, got {self.encoder}. Leave --encoder out, or choose another "
                "objective."
            )
        check_number("--n-frames", self.n_frames, at_least=8)
        for flag in ("seed", "data_seed"):
            value = getattr(self, flag)
            check_count(f"--{flag.replace('_', '-')}", value, at_least=0, at_most=2**63 - 1)
        if self.labels is None and self.objective == "supervised":
            raise ValueError("Expected `labels` with objective supervised, which learns them.")
        if self.labels is not None and self.objective != "supervised":
            raise ValueError(
                f"Expected `--labels` with --objective supervised only, got it with "
                f"{self.objective}, which is told no labels. Leave it out; rl-infonce probe has "
                "--labels also."
            )
        self.told()
        parse_budget(self.budget)
        self.settings()

    def _check_form(self) -> None:
        if _VIEWS[self.encoder] == "screen":
            self._check_screens()
            for name, value in self.form().items():
                raise ValueError(
                    f"Expected `--{name.replace('_', '-')}` with --encoder nature or impala, got "
                    f"{value!r} with {self.encoder}, whose layers are the paper's. Leave it out."
                )
        EncoderForm(**self.form())

    def _check_screens(self) -> None:
        from rl_infonce.atari.emulator import game_facts

        height, width = game_facts(self.game).screen_shape
        if (height, width) != (210, 160):
            raise ValueError(
                f"Expected `--encoder` nature or impala with {self.game}, whose screens are "
                f"{height}x{width}, got {self.encoder}, which reads 210x160 screens."
            )

    @property
    def name(self) -> str:
        """Default name of the run's folder."""
        parts = [self.game, self.objective, *([] if self.encoder == "stdim" else [self.encoder])]
        return "-".join(map(str, [*parts, *self.form().values(), self.seed]))

    def form(self) -> dict[str, Any]:
        """Return what stands between the linear layers, as far as it was given."""
        given = {name: getattr(self, name) for name in ENCODER_SETTINGS}
        return {name: value for name, value in given.items() if value is not None}

    def told(self) -> dict[str, str]:
        """Return version and hash of the labels to learn; nothing if there are none to learn."""
        if self.labels is None:
            return {}
        return {"labels": self.labels, "labels_hash": labels_hash(self.game, self.labels)}

    def about(self) -> dict[str, Any]:
        """Return what a run that goes on must agree in, beside `settings`."""
        names = ("game", "objective", "encoder", "n_frames", "policy", "data_seed")
        return {name: getattr(self, name) for name in names} | self.told() | self.form()

    def settings(self) -> PretrainingSettings:
        """Return how the objective is trained."""
        return PretrainingSettings(
            batch_size=default_batch_size(self.objective)
            if self.batch_size is None
            else self.batch_size,
            micro_batch_size=self.micro_batch_size,
            learning_rate=self.learning_rate,
            precision=arithmetic(self.precision or "auto", usable_device(self.device)),
            seed=self.seed,
        )


def pretrain_encoder(
    plan: EncoderPlan,
    folder: Path,
    *,
    progress: bool = False,
    on_progress: Callable[[Progress], object] = lambda _progress: None,
) -> tuple[Path, Progress]:
    """Pretrain an encoder, or go on with it, and return its file, with losses and speeds.

    The folder, which exists, also holds checkpoint and curves. The first of several ranks, which
    share each batch, writes. `on_progress` is called after every step.
    """
    is_first = Ranks.here().rank == 0
    train, validation = _frames(plan, progress=progress)
    objective = _objective(plan, tuple(train.labels))
    about, settings = plan.about(), plan.settings()
    with contextlib.closing(PretrainingCurves(folder)) as curves:

        def note(progress: Progress) -> None:
            on_progress(progress)
            if is_first:
                curves.draw(progress.history)

        done = pretrain(
            objective,
            train,
            validation,
            parse_budget(plan.budget),
            settings,
            folder=folder,
            about=about,
            on_progress=note,
        )
        if is_first:
            curves.draw(done.history)
    path = folder / "encoder.safetensors"
    provenance = {
        **about,
        **software(),
        **asdict(settings),
        "budget": plan.budget,
        "steps": done.step,
        "best_step": done.best_step,
        "validation_loss": done.best_loss,
        "seconds": round(done.seconds, 1),
    }
    if is_first:
        save_encoder(objective.encoder, path, provenance=provenance)
    return path, done


def _objective(plan: EncoderPlan, variables: tuple[str, ...]) -> PretrainingObjective:
    generator = torch.Generator().manual_seed(plan.seed)
    form = EncoderForm(**plan.form())
    encoder = (
        STDIMEncoder(generator)
        if plan.encoder == "stdim"
        else PixelEncoder((4, 84, 84), encoder=plan.encoder, generator=generator, form=form)
    )
    objective = make_objective(plan.objective, encoder, generator, variables=variables)
    return objective.to(usable_device(plan.device))


def _frames(plan: EncoderPlan, *, progress: bool) -> tuple[EpisodeFrames, EpisodeFrames]:
    """Return the frames to learn from and those held out, with the labels that are told."""
    view = _VIEWS[plan.encoder]
    frames = cached_frames(
        plan.game,
        plan.n_frames,
        seed=plan.data_seed,
        policy=plan.policy.replace("-", "_"),
        view=view,
        progress=progress,
    )
    train, held_out = training_and_validation(
        frames.observations(view),
        frames.episode_ids,
        np.random.default_rng(plan.seed),
        group_ids=frames.game_ids,
    )
    if plan.labels is None:
        return train, held_out
    labels, _ = drop_low_entropy(frames.labelled(view, plan.labels).labels, train.rows)
    return replace(train, labels=labels), replace(held_out, labels=labels)
