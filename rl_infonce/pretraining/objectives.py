"""The pretraining objectives by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rl_infonce.checks import check_choice
from rl_infonce.pretraining.base_objective import Encoder, PretrainingObjective
from rl_infonce.pretraining.cpc import CPC
from rl_infonce.pretraining.generative import PixelPrediction, VariationalAutoencoder
from rl_infonce.pretraining.global_infonce import GlobalInfoNCE
from rl_infonce.pretraining.positional import PositionalDIM
from rl_infonce.pretraining.spatial import JSDSpatioTemporalDIM, SpatioTemporalDIM, StaticDIM
from rl_infonce.pretraining.supervised import Supervised

_SELF_SUPERVISED: Mapping[str, type[PretrainingObjective]] = {
    "stdim": SpatioTemporalDIM,
    "positional_dim": PositionalDIM,
    "infonce": GlobalInfoNCE,
    "cpc": CPC,
    "static_dim": StaticDIM,
    "jsd_stdim": JSDSpatioTemporalDIM,
    "vae": VariationalAutoencoder,
    "pixel_pred": PixelPrediction,
}
OBJECTIVES = (*_SELF_SUPERVISED, "supervised")


def make_objective(
    name: str, encoder: Encoder, generator: torch.Generator, *, variables: Sequence[str] = ()
) -> PretrainingObjective:
    """Return an objective that trains an encoder.

    Args:
        name: One of `OBJECTIVES`.
        encoder: An `STDIMEncoder`, or a `PixelEncoder` of stacked frames.
        generator: Source of the initial weights of what stands beside the encoder.
        variables: Variables that "supervised" learns; the others need none.

    Raises:
        TypeError: If the encoder's map has no places.
        ValueError: If there is no such objective, it does not fit the encoder, or "supervised" has
            nothing to learn.
    """
    check_choice("objective", name, OBJECTIVES)
    if name == "supervised":
        return Supervised(encoder, generator, variables)
    return _SELF_SUPERVISED[name](encoder, generator)


def paints_screens(name: str) -> bool:
    """Return whether an objective needs an encoder of 210x160 screens, which it paints."""
    return _SELF_SUPERVISED.get(name) in (VariationalAutoencoder, PixelPrediction)


def default_batch_size(name: str) -> int:
    """Return how many samples an objective takes per step unless told."""
    kind = Supervised if name == "supervised" else _SELF_SUPERVISED[name]
    return int(kind.default_batch_size)
