"""What a report knows of a training, whatever trained it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rl_infonce.report.curves import area_under_curve, final_return

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
PROBED_ENCODERS = ("trained", "untrained", "majority")
"""The encoders that are probed for each run; no arm has one of these names."""
LOGGED = {
    "infonce/grad_ratio": "gradient of InfoNCE / of RL",
    "infonce/mi_lower_bound": "bound on mutual information, nats",
}
"""The curves that are drawn beside the returns, by the names under which they are logged."""

_LAST = 0.1  # of the budget
_N_WINDOWS = 100


@dataclass(frozen=True)
class Run:
    """A training that has ended.

    `steps` [E] and `returns` [E] are those of its episodes, `n_steps` and `n_steps_done` count
    agent steps: the budget, and what was trained, at least the budget. `curves` maps a name to
    steps [P] and values [P], `probes` a protocol to an encoder, one of `PROBED_ENCODERS`, to its F1
    by category, as the mean over `probe_seeds`. `commits` are those of this library that trained
    the run, each once; `seconds` are 0 if not known.
    """

    game: str
    algo: str
    arm: str
    seed: int
    n_steps: int
    n_steps_done: int
    steps: IntArray
    returns: FloatArray
    curves: Mapping[str, tuple[IntArray, FloatArray]] = field(default_factory=dict)
    probes: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    probe_seeds: tuple[int, ...] = ()
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commits: tuple[str, ...] = ()
    machine: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Scored:
    """A run with the mean return over its whole budget, and over the last tenth of it.

    Either is None if no episode ended there.
    """

    run: Run
    area: float | None
    final: float | None


def score_runs(runs: Sequence[Run]) -> list[Scored]:
    """Return the area under each run's curve and its final return.

    A `ValueError` names the run whose episodes are not in order or not finite.
    """
    found = []
    for run in runs:
        try:
            found.append(_scored(run))
        except ValueError as error:
            name = f"{run.game}, {run.algo}, {run.arm}, seed {run.seed}"
            raise ValueError(f"{name}: {error}") from error
    return found


def _scored(run: Run) -> Scored:
    n_steps, done = run.n_steps, run.n_steps_done
    within = run.steps <= n_steps
    area = final = None
    if within.any():
        windows = min(_N_WINDOWS, n_steps)
        area = area_under_curve(
            run.steps, run.returns, n_steps, n_steps_done=done, n_windows=windows
        )
    if (within & (run.steps > n_steps - round(_LAST * n_steps))).any():
        final = final_return(run.steps, run.returns, n_steps, n_steps_done=done, share=_LAST)
    return Scored(run, area, final)


def arms_of(runs: Sequence[Scored]) -> list[str]:
    """Return the arms in the order in which they appear, the baseline first."""
    arms = list(dict.fromkeys(each.run.arm for each in runs))
    return sorted(arms, key=lambda arm: arm != "baseline")


def mean_f1(protocol: str, encoder: str = "trained") -> Callable[[Scored], float | None]:
    """Return what reads the mean F1 of a run's features, or None where they were not probed."""
    return lambda each: each.run.probes.get(protocol, {}).get(encoder, {}).get("mean")


def scores_by_arm(
    runs: Sequence[Scored], algo: str, measure: str | Callable[[Scored], float | None]
) -> dict[str, dict[str, dict[int, float]]]:
    """Return arm -> game -> seed -> score, of the runs that have one.

    `measure` is "area", "final" or what reads a score from a run, e.g. `mean_f1`.
    """
    read = operator.attrgetter(measure) if isinstance(measure, str) else measure
    found: dict[str, dict[str, dict[int, float]]] = {}
    for each in runs:
        score = read(each)
        if each.run.algo == algo and score is not None:
            found.setdefault(each.run.arm, {}).setdefault(each.run.game, {})[each.run.seed] = score
    return found
