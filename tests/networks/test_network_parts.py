"""Encoders, recurrent summary, moving average and augmentation against their references."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from rl_infonce.networks.architectures import (
    ENCODERS,
    STDIMEncoder,
    conv_output_shape,
    make_trunk,
    nature_trunk,
    randomise_,
)
from rl_infonce.networks.moving_average import MovingAverage, call_with
from rl_infonce.networks.random_shift import random_shift
from rl_infonce.networks.recurrent import GRUSummary
from rl_infonce.presets import ENCODER_NAMES
from tests.draws import seeded


def test_the_nature_trunk_is_sb3s_layer_for_layer() -> None:
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    torch.manual_seed(0)
    reference = NatureCNN(space)
    torch.manual_seed(0)
    trunk = nature_trunk(4)
    images = torch.rand(2, 4, 84, 84, generator=seeded())
    assert torch.equal(trunk(images).flatten(1), reference.cnn(images))


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("nature", (4, 84, 84), (64, 7, 7)),
        ("nature", (3, 36, 36), (64, 1, 1)),
        ("nature", (1, 210, 160), (64, 22, 16)),
        ("impala", (4, 84, 84), (32, 11, 11)),
        ("impala", (3, 64, 64), (32, 8, 8)),
    ],
)
def test_map_shapes(name: str, image: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert conv_output_shape(make_trunk(name, image), image) == expected


def test_the_command_line_knows_each_architecture() -> None:
    assert tuple(ENCODERS) == ENCODER_NAMES


@pytest.mark.parametrize(("name", "side"), [("nature", 35), ("impala", 7)])
def test_images_too_small_for_the_encoder_are_refused(name: str, side: int) -> None:
    with pytest.raises(ValueError, match=rf"at least {side + 1}x{side + 1}.*got 84x{side}"):
        make_trunk(name, (4, 84, side))


def test_randomise_uses_its_generator_alone() -> None:
    before = torch.get_rng_state()
    trunks = [nature_trunk(4) for _ in range(2)]
    torch.set_rng_state(before)
    for trunk in trunks:
        randomise_(trunk, seeded(7))
    assert torch.equal(torch.get_rng_state(), before)
    first, second = (trunk.state_dict() for trunk in trunks)
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows = first["2.weight"].flatten(1)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(64), atol=1e-5, rtol=0)
    assert not first["0.bias"].any()


def test_the_stdim_encoder_has_the_papers_shapes_and_initial_weights() -> None:
    stream = torch.get_rng_state()
    encoder = STDIMEncoder(seeded())
    assert torch.equal(torch.get_rng_state(), stream)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 1_124_896
    screens = torch.randint(256, (2, 1, 210, 160), dtype=torch.uint8, generator=seeded())
    assert encoder.local_features(screens).shape == (2, 128, 11, 8)
    assert encoder(screens).shape == (2, 256)
    assert encoder(screens).min() < 0  # no nonlinearity at the end
    for parameter in encoder.parameters():
        if parameter.dim() > 1:  # sqrt(2) is ReLU's gain
            rows = parameter.detach().flatten(1)
            torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(len(rows)))
        else:
            assert not parameter.any()
    other = STDIMEncoder(seeded(1))
    assert not torch.equal(encoder(screens), other(screens))


def test_the_stdim_encoder_refuses_the_agents_stack() -> None:
    stack = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"`images` of shape \[K, 1, 210, 160\]"):
        STDIMEncoder(seeded())(stack)


def test_the_summary_is_a_gru() -> None:
    summary = GRUSummary(3, 5, generator=seeded())
    inputs = torch.randn(4, 6, 3, generator=seeded(1))
    initial = torch.randn(4, 5, generator=seeded(2))
    reference = nn.GRU(3, 5, batch_first=True)
    weights = {f"{name}_l0": weight for name, weight in summary.named_parameters()}
    reference.load_state_dict(weights)
    torch.testing.assert_close(summary(inputs), reference(inputs)[0])
    torch.testing.assert_close(
        summary(inputs, initial=initial), reference(inputs, initial[None])[0]
    )


def test_unused_steps_are_as_if_they_were_not_there() -> None:
    summary = GRUSummary(3, 5, generator=seeded())
    inputs = torch.randn(2, 6, 3, generator=seeded(1))
    used = torch.ones(2, 6, dtype=torch.bool)
    used[0, :4] = False
    states = summary(inputs, used=used)
    torch.testing.assert_close(states[0, -1], summary(inputs[:1, 4:])[0, -1])
    torch.testing.assert_close(states[1], summary(inputs[1:])[0])
    assert not states[0, :4].any()


def test_the_first_update_copies_and_the_rest_average() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    target = MovingAverage({"w": parameter}, tau=0.25)
    expected = []
    average = None
    for value in (4.0, 8.0, -2.0):
        with torch.no_grad():
            parameter.fill_(value)
        target.update({"w": parameter})
        average = value if average is None else average + 0.25 * (value - average)
        expected.append(average)
        assert target.averages()["w"].item() == pytest.approx(average)
    assert expected == [4.0, 5.0, 3.25]
    assert not list(target.parameters())


def test_an_average_that_only_copies_gets_rid_of_nan() -> None:
    target = MovingAverage({"w": torch.zeros(1)}, tau=1.0)
    for value in (1.0, float("nan"), 3.0):
        target.update({"w": torch.tensor([value])})
    assert target.averages()["w"].item() == 3.0


def test_a_loaded_average_has_begun_if_the_saved_one_had() -> None:
    target, loaded = (MovingAverage({"w": torch.zeros(1)}, tau=0.5) for _ in range(2))
    loaded.load_state_dict(target.state_dict())
    assert not loaded.has_begun
    target.update({"w": torch.ones(1)})
    loaded.load_state_dict(target.state_dict())
    assert loaded.has_begun


def test_call_with_replaces_parameters_for_one_call() -> None:
    layer = nn.Linear(2, 2)
    other = nn.Linear(2, 2)
    inputs = torch.randn(3, 2, generator=seeded())
    replaced = {f"head.{n}": p.detach() for n, p in other.named_parameters()}
    replaced["tail.weight"] = torch.zeros(1)
    assert torch.equal(call_with(layer, "head.", inputs, replaced), other(inputs))
    assert torch.equal(call_with(layer, "head.", inputs, None), layer(inputs))


def test_call_with_replaces_parameters_of_nested_layers() -> None:
    def network(seed: int) -> nn.Sequential:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Conv2d(1, 2, 3),
                nn.Flatten(),
                nn.Sequential(nn.Linear(8, 3, bias=False), nn.ELU()),
            )

    own, other, images = network(0), network(1), torch.rand(5, 1, 4, 4)
    replaced = {f"cnn.{n}": p.detach() for n, p in other.named_parameters()}
    assert torch.equal(call_with(own, "cnn.", images, replaced), other(images))
    assert not torch.equal(own(images), other(images))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_random_shift_is_replicate_padding_and_a_crop(dtype: torch.dtype) -> None:
    images = torch.randint(0, 256, (6, 3, 9, 7), generator=seeded()).to(dtype)
    shifted = random_shift(images, np.random.default_rng(3))
    rows, columns = np.random.default_rng(3).integers(-4, 5, size=(2, 6, 1))
    padded = F.pad(images.float(), (4, 4, 4, 4), mode="replicate").to(dtype)
    for i in range(6):
        y, x = 4 + int(rows[i, 0]), 4 + int(columns[i, 0])
        assert torch.equal(shifted[i], padded[i, :, y : y + 9, x : x + 7])
    assert shifted.dtype == dtype


def test_random_shift_reaches_every_offset_and_no_other() -> None:
    image = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    image[0, 0, 7, 7] = 1
    shifted = random_shift(image.expand(2000, 1, 15, 15), np.random.default_rng(0))
    places = {tuple(place) for place in shifted[:, 0].nonzero()[:, 1:].tolist()}
    assert places == {(y, x) for y in range(3, 12) for x in range(3, 12)}
