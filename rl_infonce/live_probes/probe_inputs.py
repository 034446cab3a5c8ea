"""What `ProbeCallback` is asked to probe: a game, its task, and the protocols."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_infonce.checks import check_choice, warn_user
from rl_infonce.probing import PROTOCOLS, LabelledObservations, ProbingTask, make_task
from rl_infonce.probing.probe import Protocol

MIN_TEST_GROUPS = 3
"""Games in the test part below which scores depend on which games these are."""


def live_task(
    labelled: LabelledObservations, rng: np.random.Generator, *, threshold: float, is_own: bool
) -> ProbingTask:
    """Return the task, and warn of few test games, and of the user's own labels that are left out.

    `threshold` is the least entropy in nats of a variable that is probed.
    """
    task = make_task(labelled, rng, threshold=threshold)
    if task.not_probed and is_own:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in task.not_probed.items())
        warn_user(
            f"ProbeCallback leaves out labels that hardly vary ({reasons}). A lower "
            "`entropy_threshold` probes those that vary at all.",
        )
    n_groups = len(np.unique(task.group_ids[task.split.test]))
    if n_groups < MIN_TEST_GROUPS:
        warn_user(
            f"ProbeCallback tests on {n_groups} games (or other groups of episodes), and its "
            f"scores depend on which these are: expected at least {MIN_TEST_GROUPS}. Raise "
            "`n_frames`, or collect more observations; the curves `f1_mean_low` and "
            "`f1_mean_high` bound the mean."
        )
    return task


def named_protocols(protocols: Sequence[Protocol]) -> dict[str, Protocol]:
    """Return protocols by name, in order."""
    is_several = isinstance(protocols, Sequence) and not isinstance(protocols, str)
    given = protocols if is_several else []
    names = [p if isinstance(p, str) else type(p).__name__.lower() for p in given]
    if not names or len(set(names)) != len(names):
        raise ValueError(
            f"Expected `protocols` to be a list of distinct protocols from {PROTOCOLS}, got "
            f"{protocols!r}."
        )
    for name in names:
        check_choice("protocols", name, PROTOCOLS)
    return dict(zip(names, given, strict=True))


def checked_game(game: str | LabelledObservations, label_version: str) -> str:
    """Return the name of a game that has labels, or of what labelled observations show."""
    if isinstance(game, LabelledObservations):
        return str(game.provenance.get("game", "unnamed"))
    from rl_infonce.atari import load_labels, resolve_game

    if not isinstance(game, str):
        raise TypeError(
            "Expected `game` to be the name of a game or LabelledObservations, got "
            f"{type(game).__name__}. Frames that `load_frames` gave become such by "
            '`frames.labelled("agent")`.'
        )
    load_labels(game, label_version)
    return resolve_game(game)
