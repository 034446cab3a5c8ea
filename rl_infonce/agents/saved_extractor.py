"""The features extractor of a saved SB3 model, rebuilt from its tensors without running code."""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_infonce.agents.model_zip import class_name, mapping_of, read_model_zip
from rl_infonce.files.tensor_file import shapes_of
from rl_infonce.networks.architectures import ENCODERS
from rl_infonce.networks.encoder_file import assign_tensors
from rl_infonce.networks.encoder_form import NATURE, EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.settings import ENCODER_SETTINGS, PRECISIONS

_ACTING = ("features_extractor", "q_net.", "quantile_net.", "actor.")
"""Names of the extractor that chooses actions, by precedence: PPO and A2C, DQN, QR-DQN, SAC."""

_NATURE, _INFONCE = "NatureCNN", "InfoNCEExtractor"
_CLASSES = {
    "stable_baselines3.common.torch_layers.NatureCNN": _NATURE,
    "rl_infonce.sb3.extractor.InfoNCEExtractor": _INFONCE,
}
_HEADS = {_NATURE: (), _INFONCE: ("infonce.", "target.")}
"""Prefixes of the tensors that do not shape the features, by class of extractor."""

_LARGEST_SIDE = 2**16
"""The sizes that torch computes from longer sides overflow."""


class NotRebuildableError(ValueError):
    """The file is sound, but only its own code could say what its features are."""


def read_encoder(path: str | os.PathLike[str]) -> PixelEncoder:
    """Return the features extractor of a saved model: uint8 [K, C, H, W] -> features [K, D].

    The encoder computes what the loaded model's extractor does, with SB3's preprocessing inside;
    of several extractors, the one that chooses actions.
    No pickle of the file is executed: class and arguments are taken from the text that SB3 writes
    beside its pickles, weights and sizes from the tensors. That text could be false in a file made
    to deceive; the features would be wrong then, but no code would run.

    Example:
        >>> import tempfile
        >>> from stable_baselines3 import A2C
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> env = FakeImageEnv(screen_height=84, screen_width=84, n_channels=4, channel_first=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     A2C("CnnPolicy", env, seed=0).save(f"{folder}/model.zip")
        ...     encoder = read_encoder(f"{folder}/model.zip")
        >>> encoder.image_shape, encoder.features_dim
        ((4, 84, 84), 512)

    Args:
        path: A file of `model.save`. The algorithm may be any whose extractor is SB3's `NatureCNN`
            or `InfoNCEExtractor`.

    Raises:
        NotRebuildableError: If the extractor is of another class, its encoder is isolated, or its
            settings are not readable; the message says which.
        ValueError: If the file is not a model, observes vectors, is damaged or malicious.
        OSError: If the file cannot be read.
    """
    path = Path(path)
    return encoder_in(path, *read_model_zip(path))


def encoder_in(
    path: Path, text: Mapping[str, Any], saved_tensors: Mapping[str, Tensor]
) -> PixelEncoder:
    """Return the encoder of a model whose file was read already; see `read_encoder`."""
    _check_policy_class(path, text)
    policy_kwargs = mapping_of(text.get("policy_kwargs"))
    kind = _extractor_class(path, policy_kwargs)
    arguments = {
        **_image_arguments(path, text, policy_kwargs),
        **_settings(path, kind, policy_kwargs),
    }
    tensors = _extractor_tensors(path, kind, saved_tensors)
    encoder = _matching_encoder(path, kind, tensors, arguments)
    assign_tensors(str(path), encoder, tensors)
    return encoder.eval()


def extractor_names(tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the extractors of a policy by the prefix of their tensors, the acting one first."""
    found = re.compile(r"^((?:\w+\.)*\w*features_extractor)\.")
    matches = (found.match(name) for name in tensors)
    names = dict.fromkeys(match[1] for match in matches if match is not None)

    def precedence(name: str) -> int:
        ranks = [rank for rank, start in enumerate(_ACTING) if name.startswith(start)]
        return ranks[0] if ranks else len(_ACTING)

    return tuple(sorted(names, key=precedence))


def _not_rebuildable(path: Path, what: str) -> NotRebuildableError:
    return NotRebuildableError(
        f"Expected {path} to hold a features extractor that can be rebuilt without executing code, "
        f"{' or '.join(_CLASSES)}, got {what}. If you trust whoever made the file, let it execute "
        "its code: --trust-pickle, or read_trusted_encoder(path)."
    )


def _check_policy_class(path: Path, text: Mapping[str, Any]) -> None:
    module = mapping_of(text.get("policy_class")).get("__module__")
    if str(module).split(".")[0] not in {"stable_baselines3", "sb3_contrib"}:
        raise _not_rebuildable(path, f"a policy class of module {module!r}, which may do anything")


def _extractor_class(path: Path, policy_kwargs: Mapping[str, Any]) -> str:
    given = policy_kwargs.get("features_extractor_class")
    if given is None:
        return _NATURE  # the default for images; the tensors are compared with it later
    name = re.sub(r"^<class '(.*)'>$", r"\1", str(given))
    if name not in _CLASSES:
        raise _not_rebuildable(path, f"class {name}")
    return _CLASSES[name]


def _image_arguments(
    path: Path, text: Mapping[str, Any], policy_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the images' shape, and what SB3 divides them by."""
    space = mapping_of(text.get("observation_space"))
    kind = class_name(space.get(":type:"))
    shape, dtype = _image_shape(space.get("_shape")), space.get("dtype")
    if kind == "Box" and _is_of_vectors(space.get("_shape")):
        raise ValueError(
            f"Expected {path} to be an agent that observes images, got one that observes vectors "
            f"{space['_shape']}. The `load` of its algorithm reads it."
        )
    if kind != "Box" or shape is None or dtype != "uint8":
        raise _not_rebuildable(
            path,
            f"observations {kind} of shape {space.get('_shape')} and type {dtype}, not uint8 "
            "images [C, H, W]",
        )
    if policy_kwargs.get("normalize_images", True) is not True:
        return {"image_shape": shape, "divide_by": 1}
    bounds = {
        side: set(re.findall(r"[\w.]+", str(space.get(side))[: 10**6])) for side in ("low", "high")
    }
    # numpy prints the corners of a large array with "..." between them
    if bounds["low"] - {"..."} != {"0"} or bounds["high"] - {"..."} != {"255"}:
        raise _not_rebuildable(path, f"images with bounds {bounds}, not 0 and 255")
    return {"image_shape": shape, "divide_by": 255}


def _image_shape(shape: Any) -> tuple[int, int, int] | None:
    match shape:
        case [int(channels), int(height), int(width)]:
            if all(type(size) is int and 0 < size <= _LARGEST_SIDE for size in shape):
                return channels, height, width
    return None


def _is_of_vectors(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) == 1


def _settings(path: Path, kind: str, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the forward pass that no tensor shows."""
    if kind == _NATURE:
        return {"precision": "fp32", "channels_last": False, "form": NATURE}
    given = policy_kwargs.get("features_extractor_kwargs", {})
    if isinstance(given, str):  # because something in the dict was not JSON
        given = _read_dict(given)
    if not isinstance(given, dict):
        raise _not_rebuildable(path, f"{kind} with unreadable features_extractor_kwargs")
    precision, channels_last = given.get("precision") or "fp32", given.get("channels_last", True)
    if precision not in PRECISIONS or not isinstance(channels_last, bool):
        raise _not_rebuildable(path, f"{kind} with {precision=} and {channels_last=}")
    form = _form(path, kind, given)
    return {"precision": precision, "channels_last": channels_last, "form": form}


def _form(path: Path, kind: str, given: Mapping[Any, Any]) -> EncoderForm:
    own = {name: given[name] for name in ENCODER_SETTINGS if given.get(name) is not None}
    try:
        return EncoderForm(**own)
    except (TypeError, ValueError) as error:
        raise _not_rebuildable(path, f"{kind} with {str(own)[:300]}") from error


def _read_dict(text: str) -> dict[Any, Any] | None:
    """Return the literals among the values of a dict's `str`, or None if it cannot be read."""
    try:
        dictionary = ast.parse(text[:10_000], mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(dictionary, ast.Dict):
        return None
    literals = {}
    for key, value in zip(dictionary.keys, dictionary.values, strict=True):
        if isinstance(key, ast.Constant):
            literals[key.value] = value.value if isinstance(value, ast.Constant) else value
    return literals


def _extractor_tensors(path: Path, kind: str, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = extractor_names(saved)
    if not names:
        raise _not_rebuildable(path, "a policy whose features extractor has no weights")
    prefix = names[0] + "."
    own = {n.removeprefix(prefix): t for n, t in saved.items() if n.startswith(prefix)}
    if any(name.startswith("own_updates.") for name in own):
        raise _not_rebuildable(
            path, f"{kind} with isolated=True, whose policy reads an average of it, turned back"
        )
    return {n: t for n, t in own.items() if not n.startswith(_HEADS[kind])}


def _matching_encoder(
    path: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
) -> PixelEncoder:
    """Return the encoder, without weights yet, that has tensors of these names and shapes."""
    shapes = shapes_of(tensors)
    form: EncoderForm = arguments["form"]
    features_dim = form.n_features(math.prod(shapes.get("linear.0.bias", (0,))))
    for name in ("nature",) if kind == _NATURE else ENCODERS:
        if features_dim < 1 or min(arguments["image_shape"][1:]) < ENCODERS[name][1]:
            continue
        encoder = PixelEncoder(features_dim=features_dim, generator=None, encoder=name, **arguments)
        if shapes_of(encoder.state_dict()) == shapes:
            return encoder
    raise _not_rebuildable(path, f"{kind} with tensors {str(shapes)[:300]}")
