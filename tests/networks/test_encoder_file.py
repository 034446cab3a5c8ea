"""Encoders saved as safetensors come back bit for bit, or are refused by name."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.encoder_file import (
    describe,
    load_encoder,
    read_header,
    save_encoder,
    untrained,
)
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from tests.draws import seeded
from tests.full_disk import full_disk


def pixels(*shape: int) -> Tensor:
    array = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    return torch.from_numpy(array)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "encoder.safetensors"


def small(**arguments: Any) -> PixelEncoder:
    return PixelEncoder((3, 40, 44), 16, generator=seeded(), **arguments)


ENCODERS: dict[str, nn.Module] = {
    "nature": small(),
    "impala": small(encoder="impala", channels_last=True),
    "half": small(precision="bf16", divide_by=1),
    "crelu": small(form=EncoderForm(activation="crelu", normalization="layer")),
    "simplicial": small(form=EncoderForm(feature_activation="simplicial")),
    "stdim": STDIMEncoder(seeded()),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_saved_encoder_computes_the_same_features(path: Path, name: str) -> None:
    encoder: Any = ENCODERS[name]
    save_encoder(encoder, path, provenance={"game": "pong"})
    loaded: Any = load_encoder(path)
    images = pixels(*encoder.image_shape)
    with torch.no_grad():
        assert torch.equal(loaded(images), encoder(images))
    assert (type(loaded), loaded.image_shape) == (type(encoder), encoder.image_shape)
    assert not loaded.training
    assert read_header(path)["provenance"] == {"game": "pong"}
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_an_encoder_that_cannot_be_saved_leaves_the_one_before(path: Path) -> None:
    save_encoder(small(), path)
    before = path.read_bytes()
    with full_disk(), pytest.raises(OSError, match=r"encoder\.safetensors"):
        save_encoder(small(), path)
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]
    with pytest.raises(FileNotFoundError, match=r"none/encoder.safetensors"):
        save_encoder(small(), path.parent / "none" / path.name)


def test_an_encoder_whose_file_could_not_be_read_is_not_saved(path: Path) -> None:
    with pytest.raises(ValueError, match=r"in `encoder` to be float32, got torch.bfloat16. Call"):
        save_encoder(small().bfloat16(), path)
    with pytest.raises(TypeError, match=r"`provenance` of values that JSON holds, got: .*Path"):
        save_encoder(small(), path, provenance={"folder": path})
    assert not path.exists()


def test_sizes_of_numpy_make_an_encoder_that_can_be_saved(path: Path) -> None:
    shape: Any = np.array([3, 40, 44])
    encoder = PixelEncoder(shape, np.int64(16), generator=seeded())
    save_encoder(encoder, path)
    assert read_header(path)["image_shape"] == [3, 40, 44]
    assert load_encoder(path).features_dim == 16


def test_a_pixel_encoder_divides_pixels_and_ends_with_relu() -> None:
    encoder = small()
    images = pixels(3, 40, 44)
    maps = (images / 255).to(torch.float64)
    for layer in (module for module in encoder.cnn if isinstance(module, nn.Conv2d)):
        weight, bias = layer.weight.double(), layer.bias
        assert bias is not None
        maps = nn.functional.conv2d(maps, weight, bias.double(), layer.stride).clamp(min=0)
    (last,) = (layer for layer in encoder.linear if isinstance(layer, nn.Linear))
    expected = (maps.flatten(1) @ last.weight.double().T + last.bias.double()).clamp(min=0)
    torch.testing.assert_close(encoder(images).double(), expected, rtol=1e-4, atol=1e-5)
    raw = small(divide_by=1)
    torch.testing.assert_close(raw(images), encoder(images) * 255, rtol=1e-3, atol=1e-3)


def test_an_untrained_encoder_has_the_architecture_and_the_seeds_weights() -> None:
    for encoder in ENCODERS.values():
        first, again, other = (untrained(encoder, seed).state_dict() for seed in (1, 1, 2))
        assert first.keys() == encoder.state_dict().keys()
        for name, tensor in first.items():
            assert torch.equal(tensor, again[name])
            assert tensor.dim() == 1 or not torch.equal(tensor, other[name])
    assert describe(untrained(ENCODERS["impala"], 0)) == "impala 16 on 3x40x44, fp32"
    found = describe(untrained(ENCODERS["crelu"], 0))
    assert found == "nature 16 on 3x40x44, fp32, activation=crelu, normalization=layer"
    assert describe(ENCODERS["stdim"]) == "stdim 256 on 1x210x160, fp32"


def test_an_encoder_of_another_class_is_refused(path: Path) -> None:
    class Own(PixelEncoder):
        pass

    own = Own((3, 40, 44), 16, generator=seeded())
    with pytest.raises(TypeError, match=r"PixelEncoder or STDIMEncoder, got Own.*read_encoder"):
        save_encoder(own, path)
    with pytest.raises(TypeError, match="got Linear"):
        untrained(nn.Linear(2, 2), 0)


def test_a_file_of_natures_form_is_as_it_was_before_there_were_others(path: Path) -> None:
    """Versions that know no form read it."""
    save_encoder(small(), path)
    assert sorted(read_header(path)["arguments"]) == [
        "channels_last",
        "encoder",
        "features_dim",
        "precision",
    ]
    save_encoder(ENCODERS["simplicial"], path)
    form = {"feature_activation": "simplicial"}
    assert read_header(path)["arguments"]["form"] == form


def header_of(path: Path) -> dict[str, Any]:
    save_encoder(small(), path)
    return read_header(path)


def rewrite(path: Path, header: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> None:
    tensors = tensors or {
        name: tensor.contiguous() for name, tensor in small().state_dict().items()
    }
    metadata = {"format": "rl_infonce encoder", "header": json.dumps(header)}
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "in format 1, got 2. Update"),
        ({"provenance": "mine"}, "`provenance` of .* a JSON object, got 'mine'"),
        ({"class": "Evil"}, r"one of \['PixelEncoder', 'STDIMEncoder'\], got 'Evil'"),
        ({"class": ["x"]}, "arguments of an encoder"),
        ({"preprocessing": {"pixels": "uint8", "divide_by": 128}}, "preprocessing .*128"),
        ({"preprocessing": {"pixels": "float32", "divide_by": 255}}, "preprocessing .*float32"),
        ({"preprocessing": None}, "preprocessing .*None"),
        ({"image_shape": [3, 40, 10**9]}, r"`linear.0.weight` in .*, got \(16, 128\)"),
        ({"image_shape": [10**9, 40, 44]}, r"`cnn.0.weight` .* got \(32, 3, 8, 8\)"),
        ({"image_shape": [3, 40]}, r"arguments of an encoder .*channels, height, width"),
        ({"image_shape": "340"}, "arguments of an encoder .*image_shape"),
        ({"image_shape": [3, 8, 8]}, "at least 36x36"),
        ({"features_dim": 17}, "`features_dim` of .* 16 .*got 17"),
        ({"arguments": {"features_dim": 10**12}, "features_dim": 10**12}, "tensor `linear.0"),
        ({"arguments": {"encoder": "natur"}}, "Did you mean 'nature'"),
        ({"arguments": {"generator": None}}, "arguments of an encoder"),
        ({"arguments": 3}, "arguments of an encoder"),
        ({"arguments": {"form": 3}}, "arguments of an encoder"),
        ({"arguments": {"form": {"activation": "relo"}}}, "Did you mean 'relu'"),
        ({"arguments": {"form": {"activation": "crelu"}, "features_dim": 15}}, "multiple of 2"),
        (
            {"arguments": {"form": {"normalization": "layer"}, "features_dim": 16}},
            r"`cnn\.1\.bias` in .*of shape \(32,\), got none",
        ),
    ],
)
def test_a_header_that_does_not_fit_is_refused_by_name(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    rewrite(path, header_of(path) | changes)
    with pytest.raises(ValueError, match=message) as refusal:
        load_encoder(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("linear.0.bias", torch.zeros(17), r"of shape \(16,\), got \(17,\)"),
        ("linear.0.bias", torch.zeros(16).double(), "float32, got .*float64"),
        ("linear.0.bias", None, "got none"),
        ("extra", torch.zeros(1), r"of shape none, got \(1,\)"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(
    path: Path, name: str, tensor: Tensor | None, message: str
) -> None:
    tensors = {**small().state_dict(), name: tensor}
    rewrite(path, header_of(path), {n: t.contiguous() for n, t in tensors.items() if t is not None})
    with pytest.raises(ValueError, match=rf"`{name}` in .* {message}"):
        load_encoder(path)


def test_foreign_and_missing_files_are_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{path}, got no such file"):
        load_encoder(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"save_encoder, got a safetensors file with format=None"):
        load_encoder(path)
    with pytest.raises(FileNotFoundError, match=rf"{path.parent}, got a folder. Name a file in it"):
        load_encoder(path.parent)
    with zipfile.ZipFile(path, "w") as model:
        model.writestr("data", "{}")
    with pytest.raises(
        ValueError, match=r"got a zip file, as models of SB3 are. save_encoder\(read"
    ):
        load_encoder(path)
    path.write_bytes(b"PK" * 50)
    with pytest.raises(ValueError, match=rf"safetensors file at {path}"):
        load_encoder(path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"image_shape": (84, 84)}, ValueError, r"\(channels, height, width\), got \(84, 84"),
        ({"image_shape": (4, 84, 84.0)}, TypeError, "`image_shape` to be an integer, got 84.0"),
        ({"features_dim": 8.5}, TypeError, "`features_dim` to be an integer"),
        ({"divide_by": 2.5}, ValueError, r"`divide_by` to be 255 or 1, got 2\.5"),
    ],
)
def test_arguments_that_make_no_encoder_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"image_shape": (4, 84, 84), "generator": None, **arguments}
    with pytest.raises(error, match=message):
        PixelEncoder(**given)


def test_the_papers_encoder_is_built_without_weights_of_its_own() -> None:
    assert all(parameter.is_meta for parameter in STDIMEncoder(None).parameters())
