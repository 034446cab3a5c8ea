"""Save encoders as tensors with a JSON description in safetensors files, which hold no code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from rl_infonce.files.json_text import parse_json
from rl_infonce.files.tensor_file import (
    check_same,
    opened_tensors,
    shapes_in,
    shapes_of,
    write_tensors,
)
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder

__all__ = [
    "assign_tensors",
    "describe",
    "encoder_settings",
    "load_encoder",
    "read_header",
    "save_encoder",
    "untrained",
]

FORMAT = "rl_infonce encoder"
FORMAT_VERSION = 1
_PREPROCESSINGS = [{"pixels": "uint8", "divide_by": divide_by} for divide_by in (255, 1)]
_PIXEL_SETTINGS = ("features_dim", "encoder", "precision", "channels_last")


def save_encoder(
    encoder: nn.Module, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write an encoder's tensors and everything needed to build it again.

    Example:
        >>> import tempfile
        >>> encoder = PixelEncoder((4, 84, 84), generator=torch.Generator().manual_seed(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_encoder(encoder, f"{folder}/pong.safetensors")
        ...     load_encoder(f"{folder}/pong.safetensors").features_dim
        512

    Args:
        encoder: A `PixelEncoder` or an `STDIMEncoder`; `rl_infonce.agents.read_encoder`
            makes one from a saved model.
        path: File to write, in one move; a former file of that name is replaced.
        provenance: Origin of the weights, which the file keeps as JSON.

    Raises:
        TypeError: If the encoder has another class, or `provenance` is not JSON.
        ValueError: If a weight is not float32, as `load_encoder` demands.
        OSError: If the file cannot be written; a former file of that name is kept.
    """
    header = {
        "format_version": FORMAT_VERSION,
        **encoder_settings(encoder),
        "provenance": dict(provenance or {}),
    }
    tensors = encoder.state_dict()
    _check_float32("`encoder`", tensors, " Call encoder.float() before.")
    try:
        metadata = {"format": FORMAT, "header": json.dumps(header)}
    except TypeError as error:
        raise TypeError(
            f"Expected `provenance` of values that JSON holds, got: {error}."
        ) from error
    write_tensors(Path(path), tensors, metadata)


def load_encoder(path: str | os.PathLike[str]) -> nn.Module:
    """Return the encoder in a file of `save_encoder`: uint8 [K, C, H, W] -> features [K, D].

    It has the attributes `image_shape` and `features_dim`. Nothing in the file is executed, and
    nothing is allocated before shapes are compared.

    Raises:
        ValueError: If the file is not a saved encoder, is damaged, or describes an architecture,
            preprocessing or shape that does not fit this version or its own tensors.
        OSError: If the file cannot be read.
    """
    path = Path(path)
    header = read_header(path)
    encoder = _build(path, header)
    with opened_tensors(path) as file:
        shapes = shapes_in(file)
        check_same(str(path), "shape", shapes_of(encoder.state_dict()), shapes)
        assign_tensors(str(path), encoder, {name: file.get_tensor(name) for name in shapes})
    return encoder.eval()


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the description in a file of `save_encoder`, with the `provenance` given there.

    Raises:
        ValueError: If the file is not a saved encoder.
        OSError: If the file cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        got = "a folder. Name a file in it" if path.is_dir() else "no such file"
        raise FileNotFoundError(
            f"Expected a saved encoder at {path}, got {got}. "
            "rl-infonce pretrain writes one, encoder.safetensors, and pull downloads one."
        )
    if is_zipfile(path):
        raise ValueError(
            f"Expected a saved encoder at {path}, got a zip file, as models of SB3 are. "
            "save_encoder(read_encoder(path), file) of rl_infonce saves the encoder of one."
        )
    with opened_tensors(path) as file:
        return _parse_header(path, file.metadata() or {})


def untrained(encoder: nn.Module, seed: int) -> nn.Module:
    """Return an encoder of the same architecture with weights drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    header = encoder_settings(encoder)
    return _BUILDERS[header["class"]](header, generator).eval()


def describe(encoder: nn.Module) -> str:
    """Return the architecture in few words, e.g. "nature 512 on 4x84x84, fp32".

    What differs from NatureCNN's form follows, e.g. ", activation=elu".
    """
    settings = encoder_settings(encoder)
    arguments = settings["arguments"]
    name = arguments.get("encoder", settings["class"].removesuffix("Encoder").lower())
    shape = "x".join(map(str, settings["image_shape"]))
    precision = arguments.get("precision", "fp32")
    words = [f"{name} {settings['features_dim']} on {shape}", precision]
    words += [f"{key}={value}" for key, value in arguments.get("form", {}).items()]
    return ", ".join(words)


def assign_tensors(where: str, encoder: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give an encoder contiguous float32 copies of a file's tensors; errors name it `where`."""
    check_same(where, "shape", shapes_of(encoder.state_dict()), shapes_of(tensors))
    _check_float32(where, tensors)
    owned = {n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
    encoder.load_state_dict(owned, assign=True)


def _check_float32(where: str, tensors: Mapping[str, Tensor], way_out: str = "") -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise ValueError(
                f"Expected `{name}` in {where} to be float32, got {tensor.dtype}.{way_out}"
            )


def encoder_settings(encoder: nn.Module) -> dict[str, Any]:
    """Return class, arguments, shape and preprocessing of an encoder, as its file says them."""
    if type(encoder) is PixelEncoder:
        arguments = {name: getattr(encoder, name) for name in _PIXEL_SETTINGS}
        # Without it, versions that know no other form read the file too.
        arguments |= {"form": encoder.form.changes} if encoder.form.changes else {}
        divide_by = encoder.divide_by
    elif type(encoder) is STDIMEncoder:
        arguments, divide_by = {}, 255
    else:
        raise TypeError(
            f"Expected an encoder of class {' or '.join(_BUILDERS)}, got {type(encoder).__name__}. "
            "rl_infonce.agents.saved_extractor.read_encoder makes one from an SB3 model."
        )
    return {
        "class": type(encoder).__name__,
        "arguments": arguments,
        "image_shape": list(encoder.image_shape),
        "features_dim": encoder.features_dim,
        "preprocessing": {"pixels": "uint8", "divide_by": divide_by},
    }


def _pixel_encoder(header: Mapping[str, Any], generator: torch.Generator | None) -> nn.Module:
    divide_by = header["preprocessing"]["divide_by"]
    arguments = dict(header["arguments"])
    form = EncoderForm(**arguments.pop("form", {}))
    shape = header["image_shape"]
    return PixelEncoder(shape, generator=generator, divide_by=divide_by, form=form, **arguments)


def _stdim_encoder(header: Mapping[str, Any], generator: torch.Generator | None) -> nn.Module:
    if header["arguments"]:
        raise TypeError("STDIMEncoder takes no arguments")
    return STDIMEncoder(generator)


_BUILDERS: dict[str, Callable[[Mapping[str, Any], torch.Generator | None], nn.Module]] = {
    "PixelEncoder": _pixel_encoder,
    "STDIMEncoder": _stdim_encoder,
}


def _parse_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"Expected {path} to be written by rl_infonce's save_encoder, got a safetensors file "
            f"with format={metadata.get('format')!r}. Tensors alone do not say what they compute."
        )
    try:
        header = parse_json(metadata["header"], allow_nan=True)
        version = header["format_version"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"Expected a JSON header in {path}, got: {error!r}.") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"Expected {path} in format {FORMAT_VERSION}, got {version!r}. Update rl_infonce."
        )
    provenance = header.get("provenance") or {}
    if not isinstance(provenance, dict):
        raise ValueError(
            f"Expected `provenance` of {path} to be a JSON object, got {provenance!r:.80}."
        )
    return dict(header)


def _build(path: Path, header: Mapping[str, Any]) -> nn.Module:
    """Return the described encoder without weights, after checking it against the header."""
    preprocessing = header.get("preprocessing")
    if preprocessing not in _PREPROCESSINGS:
        raise ValueError(
            f"Expected the preprocessing of {path} to be one of {_PREPROCESSINGS}, got "
            f"{preprocessing!r}. The features would differ from those of the saved encoder."
        )
    try:
        encoder = _BUILDERS[header["class"]](header, None)
        described = encoder_settings(encoder)
    except KeyError as error:
        raise ValueError(
            f"Expected {path} to hold one of {sorted(_BUILDERS)}, got {error}. Update rl_infonce."
        ) from error
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"Expected arguments of an encoder in {path}, got: {error}.") from error
    for key in ("image_shape", "features_dim", "preprocessing"):
        if header.get(key) != described[key]:
            raise ValueError(
                f"Expected `{key}` of {path} to be {described[key]} as its class has it, got "
                f"{header.get(key)!r}."
            )
    return encoder
