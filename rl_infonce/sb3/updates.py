"""One update of the loss: pairs drawn, and gradients that are finite, or one warning why not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor

from rl_infonce.sb3.attach import AuxiliaryGradients
from rl_infonce.sb3.batch_sampling import ObservationBatch, SamplingPlan, sample_batch
from rl_infonce.sb3.binding import current_samples
from rl_infonce.sb3.buffers import observations_of
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.minibatch import (
    ABSENT,
    OF_ROW,
    MinibatchPairs,
    labels_of,
    pairs_of_minibatch,
    shows,
)
from rl_infonce.sb3.replay_rows import by_age
from rl_infonce.sb3.session import Session
from rl_infonce.settings import AUTO_ROWS

MOST_ABSENT = 0.5
"""Share of a minibatch's rows that may be absent from the rollout, or it does not serve."""

FEW_OF = 16
"""A rollout's pairs are few if there are fewer than `n_pairs` over this number."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def unpadded(observations: Tensor, algorithm: BaseAlgorithm | None) -> Tensor:
    """Return the rows of a minibatch without the zeros with which RecurrentPPO fills sequences."""
    if algorithm is None or not hasattr(algorithm, "_last_lstm_states"):
        return observations
    masks = [each.mask for each in current_samples(algorithm) if hasattr(each, "mask")]
    fits = bool(masks) and len(masks[0]) == len(observations)
    return observations[masks[0] > 0] if fits else observations


def draw(experience: Experience, plan: SamplingPlan, session: Session) -> ObservationBatch | None:
    """Return observations of freshly drawn pairs; None, after one warning, if too few are legal."""
    raw = sample_batch(experience, plan, session.rng)
    off_policy = isinstance(session.algorithm, OffPolicyAlgorithm)
    # A replay buffer starts empty, after load() also, and fills by itself.
    fills = off_policy and experience.n_steps <= 10 * max(plan.horizons)
    if raw is None and not fills:
        way = "Lower horizons" if max(plan.horizons) > 1 else "Leave the loss out by infonce_coef=0"
        more_rows = "raise n_steps or n_envs"
        on = ", on an encoder that it does not train either" * plan.settings.isolated
        session.warn_once(
            "no pairs",
            f"Fewer than two pairs of observations lie {max(plan.horizons)} steps apart in one "
            f"episode, so that this update has no InfoNCE loss; the RL update goes on{on}. "
            f"{way}, or {'let each learn() take more steps' if off_policy else more_rows}.",
        )
    n_pairs, wanted = 0 if raw is None else raw.n_anchors, plan.settings.n_pairs
    few = 0 < n_pairs * FEW_OF < wanted and not off_policy
    words = (
        f"The rollouts of {type(session.algorithm).__name__} hold few pairs: {n_pairs} of n_pairs="
        f"{wanted} in this update, so that a future is told from {n_pairs - 1} others alone. "
        "Raise n_steps or n_envs."
    )
    session.warn_if_it_lasts("few pairs", words, happens=few)
    return raw


def find_pairs(
    experience: Experience, plan: SamplingPlan, session: Session, observations: Tensor
) -> MinibatchPairs | None:
    """Return pairs of the minibatch that RL encodes, or None where it should not serve.

    Args:
        experience: What the algorithm has recorded.
        plan: What belongs to an anchor.
        session: Knows the algorithm.
        observations: What RL encodes, preprocessed.
    """
    algorithm = session.algorithm
    of_rollout = getattr(algorithm, "rollout_buffer", None) is not None
    if algorithm is None or not _is_source(plan, len(observations), of_rollout=of_rollout):
        return None
    minibatch = _minibatch_of(observations, algorithm, session)
    if minibatch is None or of_rollout != all(hasattr(minibatch, name) for name in OF_ROW):
        return None
    if of_rollout:
        places = session.rollout_rows.find(algorithm, minibatch)
        labels = session.rollout_rows.labels(experience).__getitem__
    else:
        places = by_age(session.replay_rows.find(algorithm, minibatch), experience)
        labels = partial(labels_of, experience)
    n_absent = int((places == ABSENT).sum())
    if n_absent > MOST_ABSENT * len(places):
        if plan.settings.pairs_from == "minibatch":
            _warn_of_absent_rows(algorithm, session, n_absent, len(places))
        return None
    return pairs_of_minibatch(places, experience, labels, plan, session.rng)


def _is_source(plan: SamplingPlan, n_rows: int, *, of_rollout: bool) -> bool:
    """Return whether pairs are looked for in a minibatch of so many rows."""
    settings = plan.settings
    if settings.pairs_from == "auto":
        return of_rollout and n_rows >= max(AUTO_ROWS, settings.n_pairs)
    return settings.pairs_from == "minibatch"


def _minibatch_of(observations: Tensor, algorithm: BaseAlgorithm, session: Session) -> Any:
    """Return what SB3 sampled with these observations; None if that is not found or no source."""
    key = session.reader.observation_key
    sampled = current_samples(algorithm)
    found = (each for each in sampled if shows(observations, observations_of(each, key)))
    minibatch = next(found, None)
    # Rows of a recurrent policy lie one after another, so that most would be of one episode.
    return None if hasattr(minibatch, "lstm_states") else minibatch


def _warn_of_absent_rows(
    algorithm: BaseAlgorithm, session: Session, n_absent: int, n_rows: int
) -> None:
    normalizes = isinstance(algorithm, OffPolicyAlgorithm) and algorithm.get_vec_normalize_env()
    why = ", as VecNormalize changes what is sampled" if normalizes else ""
    session.warn_once(
        "absent rows",
        f"Of {n_rows} rows of {type(algorithm).__name__}'s minibatch {n_absent} are not "
        f"in its buffer{why}, so that pairs are drawn from the buffer instead and encoded once "
        "more. pairs_from='buffer' does so without a warning.",
    )


def finite_gradients(
    differentiate: Callable[[Tensor], AuxiliaryGradients], weighted: Tensor, session: Session
) -> AuxiliaryGradients | None:
    """Return the gradients of a weighted loss on encoder and heads.

    Returns None if they are not finite; these cases are counted and warned of. Returns None, after
    one warning, if the loss depends on frozen parameters alone.

    Raises:
        FloatingPointError: After many non-finite losses in a row.
    """
    if not weighted.requires_grad:
        session.warn_once(
            "frozen",
            "The InfoNCE loss trains nothing: it depends on parameters with requires_grad=False "
            "alone. Its curves go on; infonce_coef=0 saves its time.",
        )
        return None
    gradients = differentiate(weighted)
    if not gradients.n_shared:
        session.warn_once(
            "frozen encoder",
            "The encoder is frozen: the InfoNCE loss trains its own heads alone, and an attached "
            "loss counts where the algorithm clips gradients. infonce_coef=0 leaves it out.",
        )
    norm = torch.nn.utils.get_total_norm(gradients.gradients)
    finite = math.isfinite(float(norm + weighted.detach()))
    session.counts.count_finite(finite=finite)
    return gradients if finite else None
