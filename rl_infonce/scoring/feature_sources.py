"""What `rl-infonce probe` probes: saved models, saved encoders, untrained ones, the majority."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.checks import did_you_mean, warn_user
from rl_infonce.files.digests import sha256_of

if TYPE_CHECKING:
    from torch import nn

MAJORITY, RANDOM = "majority", "random"


@dataclass(frozen=True)
class ProbedEncoder:
    """One row of the table, whose kind is "file", "random" or "majority".

    Scores are kept under the key, which changes with the weights and the architecture. `of_seed`
    returns the module; only untrained ones look at the seed. The image shape (channels, height,
    width) is None for the majority. The place tells apart files of one name and hides their folder.
    """

    name: str
    kind: str
    key: str
    description: str
    image_shape: tuple[int, ...] | None
    of_seed: Callable[[int], nn.Module]
    place: str | None = None

    def for_json(self) -> dict[str, Any]:
        """Return what `scores.json` says about the encoder."""
        said = {"name": self.name, "kind": self.kind, "description": self.description}
        return said if self.place is None else {**said, "place": self.place}


def majority() -> ProbedEncoder:
    """Return the row of the most frequent training label, which needs no features."""

    def of_seed(_seed: int) -> nn.Module:
        raise TypeError("The majority class has no encoder.")

    return ProbedEncoder(MAJORITY, MAJORITY, MAJORITY, "most frequent label", None, of_seed)


def paper_encoder(view: str) -> ProbedEncoder:
    """Return untrained weights of the paper's encoder ("screen") or of NatureCNN ("agent")."""
    import torch

    from rl_infonce.networks.architectures import STDIMEncoder
    from rl_infonce.networks.pixel_encoder import PixelEncoder

    if view == "screen":
        return _untrained_like(STDIMEncoder(torch.Generator().manual_seed(0)))
    return _untrained_like(PixelEncoder((4, 84, 84), generator=None))


def open_encoder(name: str, *, trust_pickle: bool) -> tuple[ProbedEncoder, ProbedEncoder]:
    """Return the encoder in a file and, beside it, untrained weights of its architecture.

    The name is that of SB3's zip file (with or without the ending), of a run directory of
    `rl-infonce train`, or of a file of `save_encoder`. With `trust_pickle`, a model that cannot be
    read safely may execute its own code.
    """
    from rl_infonce.agents.saved_extractor import NotRebuildableError, read_encoder
    from rl_infonce.networks.encoder_file import describe, load_encoder

    path = _find(name)
    if path.suffix == ".safetensors":
        encoder: Any = load_encoder(path)
    else:
        try:
            encoder = read_encoder(path)
        except NotRebuildableError:
            if not trust_pickle:
                raise
            return _open_trusted(name, path)
    return _in_file(name, path, encoder, describe(encoder)), _untrained_like(encoder)


def _in_file(name: str, path: Path, encoder: Any, description: str) -> ProbedEncoder:
    key, place = content_key(path.read_bytes()), content_key(os.fsencode(path.resolve()))
    shape = encoder.image_shape
    return ProbedEncoder(name, "file", key, description, shape, lambda _seed: encoder, place)


def _open_trusted(name: str, path: Path) -> tuple[ProbedEncoder, ProbedEncoder]:
    from rl_infonce.agents.trusted_model import read_trusted_encoder

    warn_user(
        f"The code that {path} contains is executed with all your rights (--trust-pickle).",
    )
    encoder = read_trusted_encoder(path)
    shape = "x".join(map(str, encoder.image_shape))
    description = f"{encoder.extractor_name} {encoder.features_dim} on {shape}"
    trained = _in_file(name, path, encoder, description)
    untrained = ProbedEncoder(
        RANDOM,
        RANDOM,
        f"random-{trained.key}",
        description,
        encoder.image_shape,
        lambda seed: read_trusted_encoder(path, untrained_seed=seed),
    )
    return trained, untrained


def _untrained_like(encoder: nn.Module) -> ProbedEncoder:
    from rl_infonce.networks.encoder_file import describe, encoder_settings, untrained

    settings = encoder_settings(encoder)
    # The layout of convolutions changes rounding alone: no reason for a second untrained row.
    settings["arguments"].pop("channels_last", None)
    digest = content_key(json.dumps(settings, sort_keys=True).encode())
    return ProbedEncoder(
        RANDOM,
        RANDOM,
        f"random-{digest}",
        describe(encoder),
        tuple(settings["image_shape"]),
        lambda seed: untrained(encoder, seed),
    )


def _find(name: str) -> Path:
    from rl_infonce.agents.saved_agent import existing_model

    wanted = (
        f"`--features-of` to be {RANDOM!r}, {MAJORITY!r}, a model saved by SB3, a run directory "
        "with a model.zip or a file of save_encoder"
    )
    try:
        return existing_model(Path(name), wanted)
    except FileNotFoundError as error:
        hint = did_you_mean(name, (RANDOM, MAJORITY))
        raise FileNotFoundError(f"{error}{hint}") from None


def content_key(content: bytes) -> str:
    """Return the key under which `scores.json` knows a file."""
    return sha256_of(content)[:16]
