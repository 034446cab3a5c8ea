"""How many auxiliary losses there were, and which of them report more than others."""

from __future__ import annotations

from dataclasses import dataclass

from rl_infonce.checks import warn_user

MAX_NONFINITE = 100
"""Consecutive non-finite auxiliary losses after which training stops."""

DETAILS_FREQ = 16
"""Gradient steps between the diagnostics that cost extra time."""

SCALARS_FREQ = 4
"""Gradient steps between the accuracies and bounds of a whole minibatch."""

RARE_DETAILS_FREQ = 128
"""Gradient steps between the diagnostics that encode a whole minibatch once more."""


@dataclass
class UpdateCounts:
    """How many auxiliary losses there were, and passes that might have one, and NaN or infinity.

    `n_host_updates` is SB3's count of the host's updates when an isolated encoder was trained last.
    """

    n_updates: int = 0
    n_turns: int = 0
    n_host_updates: int = 0
    n_nonfinite: int = 0
    n_nonfinite_in_a_row: int = 0

    def takes_turn(self, interval: int) -> bool:
        """Count one of the host's passes, and return whether the loss takes part in it."""
        self.n_turns += 1
        return (self.n_turns - 1) % interval == 0

    def is_due(self, every: int) -> bool:
        """Return whether the latest update is the first or a multiple of `every` after it."""
        return (self.n_updates - 1) % every == 0

    @property
    def scalars_due(self) -> bool:
        """Whether the latest update also reports what a whole minibatch says of retrieval."""
        return self.is_due(SCALARS_FREQ)

    @property
    def details_due(self) -> bool:
        """Whether the latest update also reports what costs extra time."""
        return self.is_due(DETAILS_FREQ)

    @property
    def rare_details_due(self) -> bool:
        """Whether the latest update also reports what encodes a whole minibatch once more."""
        return self.is_due(RARE_DETAILS_FREQ)

    @property
    def next_rare_details_due(self) -> bool:
        """Whether the next update will."""
        return self.n_updates % RARE_DETAILS_FREQ == 0

    def count_finite(self, *, finite: bool) -> None:
        """Keep count of non-finite losses; warn at the 1st, 10th and 100th.

        Raises:
            FloatingPointError: After `MAX_NONFINITE` in a row.
        """
        if finite:
            self.n_nonfinite_in_a_row = 0
            return
        self.n_nonfinite += 1
        self.n_nonfinite_in_a_row += 1
        counts = (
            f"{self.n_nonfinite} of {self.n_updates} InfoNCE losses so far were NaN or infinite "
            f"({self.n_nonfinite_in_a_row} in a row)"
        )
        if self.n_nonfinite_in_a_row >= MAX_NONFINITE:
            raise FloatingPointError(
                f"{counts}. Training stops; none of them changed a weight. Where the weights are "
                "finite, model.save() keeps them; where they are not, the RL loss diverged also: "
                "go on from a checkpoint. Lower the learning rate (encoder_learning_rate of an "
                "isolated encoder) or infonce_coef, or look for NaN in the observations."
            )
        if self.n_nonfinite in (1, 10, 100):
            warn_user(f"{counts}. None of them trained anything.", RuntimeWarning)
