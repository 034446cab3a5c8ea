"""What one update says in the logger, and warnings of what lasts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor, nn

from rl_infonce.nce import is_saturated
from rl_infonce.sb3.auxiliary_loss import AuxiliaryLoss, AuxiliaryResult
from rl_infonce.sb3.diagnostics import (
    feature_scalars,
    has_collapsed,
    in_parts,
    overlap_floors,
    random_encoder,
    redrawn_network,
    scalars_of,
)
from rl_infonce.sb3.encoders import Encoder
from rl_infonce.sb3.session import Session

Observed = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]
"""Raw observations of anchors [B, *observation] and of candidates [K, M, *observation]."""


@torch.no_grad()
def numbers_of(
    observed: Callable[[], Observed],
    result: AuxiliaryResult,
    auxiliary: AuxiliaryLoss,
    session: Session,
) -> dict[str, float]:
    """Return what an update says, now and then with what costs extra time; warn if need be.

    Args:
        observed: Returns the observations that were contrasted.
        result: What the loss found.
        auxiliary: The loss.
        session: Counts of updates, warnings that were given, and the untrained trunk.
    """
    numbers = {"loss": float(result.loss.loss.detach())}
    if session.counts.n_nonfinite:
        numbers["n_nonfinite"] = float(session.counts.n_nonfinite)
    settings = auxiliary.heads.settings
    contrasts = settings.objective == "infonce"
    # Dozens or thousands of updates are made between two looks at the curves.
    has_many = settings.isolated or isinstance(session.algorithm, OffPolicyAlgorithm)
    counts = session.counts
    rests = has_many or (result.of_minibatch and not counts.scalars_due)
    if counts.details_due or not rests:
        numbers |= scalars_of(result.loss, auxiliary.horizons, contrasts=contrasts)
        numbers["n_pairs"] = float(len(result.features))
    if counts.details_due:
        numbers |= feature_scalars(result.features)
        warn_of_what_lasts(session, result, contrasts=contrasts)
    # Of a whole minibatch they take as long as a part of its update.
    if counts.rare_details_due if result.of_minibatch else counts.details_due:
        numbers |= _floors(observed(), result, auxiliary, session)
    return numbers


def _floors(
    observed: Observed, result: AuxiliaryResult, auxiliary: AuxiliaryLoss, session: Session
) -> dict[str, float]:
    encoder = auxiliary.encoder
    if session.untrained is None:
        session.untrained = (_untrained_trunk(encoder, session),)

    def inputs(observations: npt.NDArray[np.generic]) -> Tensor:
        return in_parts(
            lambda part: encoder.prepared(auxiliary.inputs(part, augment=False)),
            torch.as_tensor(observations),
        )

    anchors, futures = inputs(observed[0]), [inputs(each) for each in observed[1]]
    (untrained,) = session.untrained
    if untrained is not None:
        untrained = untrained.to(anchors.device)
    return overlap_floors(untrained, anchors, futures, result.batch.mask, auxiliary.horizons)


def _untrained_trunk(encoder: Encoder, session: Session) -> nn.Module | None:
    """Return a trunk of random weights; None, after one warning, where it cannot be copied."""
    if not encoder.is_custom:
        return random_encoder(encoder.trunk, seed=0)
    try:
        return redrawn_network(encoder.trunk, seed=0)
    except (RuntimeError, TypeError) as error:
        session.warn_once(
            "no copy",
            f"The curve floor_random is left out: a {type(encoder.trunk).__name__} cannot be "
            f"copied ({error}). A network that keeps no activation can be.",
        )
        return None


def warn_of_what_lasts(session: Session, result: AuxiliaryResult, *, contrasts: bool) -> None:
    """Warn of features, and of the bound of a contrast, that have shown nothing for a while."""
    session.warn_if_it_lasts(
        "collapse",
        "The features have collapsed: they hardly differ between observations. Lower the learning "
        "rate, which is encoder_learning_rate where the encoder is isolated, or infonce_coef where "
        "it is not, and look at infonce/feature_std.",
        happens=has_collapsed(result.features),
    )
    if not contrasts:
        return
    saturated = is_saturated(result.loss.mi_lower_bound, result.loss.mi_ceiling)
    session.warn_if_it_lasts(
        "saturated bound",
        "The InfoNCE bound is saturated: nearly every future is found, and mi_lower_bound says "
        "nothing but log N. Longer horizons leave something to learn, or more n_pairs if pairs are "
        "drawn.",
        happens=bool(saturated.all()),
    )
