"""What a report knows of a training, whatever trained it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
    """A training that has ended, with its scores.

    `steps` [E] and `returns` [E] are those of its episodes, `n_steps` and `n_steps_done` count
    agent steps: the budget, and what was trained, at least the budget. `curves` maps a name to
    steps [P] and values [P], `probes` a protocol to an encoder, one of `PROBED_ENCODERS`, to its F1
    by category, as the mean over `probe_seeds`. `architecture` says in words what the untrained
    encoder is. `commits` are those of this library that trained
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
    architecture: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commits: tuple[str, ...] = ()
    machine: str = ""
    seconds: float = 0.0

    @cached_property
    def area(self) -> float | None:
        """The mean return over the whole budget; None if no episode ended in it."""
        if not (self.steps <= self.n_steps).any():
            return None
        return self._measured(area_under_curve, n_windows=min(_N_WINDOWS, self.n_steps))

    @cached_property
    def final(self) -> float | None:
        """The mean return over the last tenth of the budget; None if no episode ended in it."""
        begin = self.n_steps - round(_LAST * self.n_steps)
        if not ((begin < self.steps) & (self.steps <= self.n_steps)).any():
            return None
        return self._measured(final_return, share=_LAST)

    def _measured(self, measure: Callable[..., float], **settings: float) -> float:
        """Return a score; the error names the run whose episodes are not in order or not finite."""
        done = self.n_steps_done
        try:
            return measure(self.steps, self.returns, self.n_steps, n_steps_done=done, **settings)
        except ValueError as error:
            name = f"{self.game}, {self.algo}, {self.arm}, seed {self.seed}"
            raise ValueError(f"{name}: {error}") from error


def arms_of(runs: Sequence[Run]) -> list[str]:
    """Return the arms in the order in which they appear, the baseline first."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    return sorted(arms, key=lambda arm: arm != "baseline")


def mean_f1(protocol: str, encoder: str = "trained") -> Callable[[Run], float | None]:
    """Return what reads the mean F1 of a run's features, or None where they were not probed."""
    return lambda run: run.probes.get(protocol, {}).get(encoder, {}).get("mean")


def scores_by_arm(
    runs: Sequence[Run], algo: str, measure: str | Callable[[Run], float | None]
) -> dict[str, dict[str, dict[int, float]]]:
    """Return arm -> game -> seed -> score, of the runs that have one.

    `measure` is "area", "final" or what reads a score from a run, e.g. `mean_f1`.
    """
    read = operator.attrgetter(measure) if isinstance(measure, str) else measure
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in runs:
        score = read(run)
        if run.algo == algo and score is not None:
            found.setdefault(run.arm, {}).setdefault(run.game, {})[run.seed] = score
    return found
