"""What stands between the linear layers of an encoder, against the papers' equations."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_infonce import settings
from rl_infonce.networks import encoder_form
from rl_infonce.networks.architectures import conv_output_shape, make_trunk, randomise_
from rl_infonce.networks.encoder_form import CReLU, EncoderForm, SimplicialEmbedding
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.presets import preset_settings
from rl_infonce.settings import ENCODER_SETTINGS, InfoNCESettings
from tests.draws import seeded

FORMS: dict[str, dict[str, Any]] = {
    "nature": {},
    "elu": {"activation": "elu"},
    "crelu": {"activation": "crelu"},
    "layer": {"normalization": "layer"},
    "linear": {"feature_activation": "linear"},
    "average_l1": {"feature_activation": "average_l1", "activation": "elu"},
    "simplicial": {"feature_activation": "simplicial"},
    "layer_crelu": {"normalization": "layer", "activation": "crelu"},
    "layer_linear": {"normalization": "layer", "feature_activation": "linear"},
    "crelu_relu": {"activation": "crelu", "feature_activation": "relu"},
}

Values = list[float]


# -- the papers' equations, one number at a time ---------------------------------------------------


def relu(values: Values) -> Values:
    return [max(x, 0.0) for x in values]


def elu(values: Values) -> Values:
    """Clevert et al. 2016, eq. 15, alpha = 1."""
    return [x if x > 0 else math.exp(x) - 1 for x in values]


def crelu(values: Values) -> Values:
    """Shang et al. 2016: the concatenation of ReLU(x) and ReLU(-x)."""
    return [*relu(values), *relu([-x for x in values])]


def average_l1(values: Values) -> Values:
    """Fujimoto et al. 2023: x / (1/N sum_i |x_i|)."""
    mean = sum(abs(x) for x in values) / len(values)
    return [x / mean for x in values]


def simplicial(values: Values) -> Values:
    """Lavoie et al. 2022: exp(z_ij / t) / sum_k exp(z_ik / t) for each vector i of 8, t = 1."""
    found = []
    for start in range(0, len(values), 8):
        powers = [math.exp(x) for x in values[start : start + 8]]
        found += [power / sum(powers) for power in powers]
    return found


def layer_norm(values: Values, gains: Values, biases: Values) -> Values:
    """Ba et al. 2016, eq. 3 and 4, of all units of one layer; gains and biases are per channel."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in values) / len(values) + 1e-5)
    each = len(values) // len(gains)
    return [
        gains[index // each] * (x - mean) / deviation + biases[index // each]
        for index, x in enumerate(values)
    ]


OF_TRUNK = {"relu": relu, "elu": elu, "crelu": crelu}


def of_features(form: EncoderForm, values: Values) -> Values:
    match form.feature_activation:
        case "linear":
            return values
        case "average_l1":
            return average_l1(values)
        case "simplicial":
            return simplicial(values)
    return OF_TRUNK[form.feature_activation or form.activation](values)


def normalised(form: EncoderForm, values: Values, rest: list[Any]) -> Values:
    if form.normalization == "none":
        return values
    norm = rest.pop(0)
    return layer_norm(values, norm.weight.tolist(), norm.bias.tolist())


def features_by_hand(encoder: PixelEncoder, image: Tensor) -> Values:
    """Return the features of one image, the layers' products in float64."""
    maps = image.double()[None] / 255
    form = encoder.form
    rest: list[Any] = [part for part in encoder.cnn if isinstance(part, nn.Conv2d | nn.GroupNorm)]
    while rest:
        conv = rest.pop(0)
        maps = nn.functional.conv2d(maps, conv.weight.double(), conv.bias.double(), conv.stride)
        values = OF_TRUNK[form.activation](normalised(form, maps.flatten().tolist(), rest))
        maps = torch.tensor(values, dtype=torch.float64).view(1, -1, *maps.shape[2:])
    rest = [part for part in encoder.linear if isinstance(part, nn.Linear | nn.GroupNorm)]
    last = rest.pop(0)
    values = (last.weight.double() @ maps.flatten() + last.bias.double()).tolist()
    return of_features(form, normalised(form, values, rest))


def small(**form: Any) -> PixelEncoder:
    return PixelEncoder((2, 40, 44), 16, generator=seeded(), form=EncoderForm(**form))


def images(n: int = 3, shape: Sequence[int] = (2, 40, 44)) -> Tensor:
    array = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    return torch.from_numpy(array)


@pytest.mark.parametrize("name", FORMS)
def test_features_are_those_of_the_papers_equations(name: str) -> None:
    encoder = small(**FORMS[name])
    with torch.no_grad():
        for parameter in encoder.parameters():  # also gains and biases
            if parameter.dim() == 1:
                parameter.add_(
                    torch.randn(parameter.shape, generator=seeded(len(parameter))), alpha=0.3
                )
        found = encoder(images())
    assert found.shape == (3, encoder.features_dim) == (3, 16)
    for features, image in zip(found, images(), strict=True):
        expected = torch.tensor(features_by_hand(encoder, image), dtype=torch.float32)
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_parts_of_a_batch_stand_in_their_places() -> None:
    inputs = torch.randn(2, 3, 4, 5, generator=seeded())
    assert torch.equal(CReLU()(inputs), torch.cat([inputs.clamp(min=0), -inputs.clamp(max=0)], 1))
    flat = torch.randn(2, 24, generator=seeded())
    found = SimplicialEmbedding()(flat)
    expected = [simplicial(row) for row in flat.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected))
    torch.testing.assert_close(found.view(2, 3, 8).sum(dim=2), torch.ones(2, 3))


@pytest.mark.parametrize("name", FORMS)
def test_units_pushed_below_zero_come_back_but_for_those_of_relu(name: str) -> None:
    encoder = small(**FORMS[name])
    last: Any = encoder.linear[0]
    with torch.no_grad():
        last.bias -= 20
    encoder(images())[:, ::2].square().sum().backward()
    has_gradient = bool((last.weight.grad != 0).any())
    assert has_gradient == (encoder.form.of_features != "relu" or "layer" in name)


@pytest.mark.parametrize("name", FORMS)
def test_an_impala_takes_every_form(name: str) -> None:
    form = EncoderForm(**FORMS[name])
    encoder = PixelEncoder((2, 40, 44), 16, generator=seeded(), encoder="impala", form=form)
    maps = encoder.local_features(images())
    assert maps.shape == (3, encoder.local_dim, 5, 6)
    assert encoder.local_dim == (64 if form.activation == "crelu" else 32)
    assert encoder(images()).shape == (3, 16)
    encoder(images()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    own = {type(part) for part in encoder.cnn.modules()}
    others = {nn.ReLU, nn.ELU, CReLU} - {type(form.behind_convolution(1)[-1])}
    assert not own & others
    n_norms = sum(isinstance(part, nn.GroupNorm) for part in encoder.modules())
    # two for each of six blocks, one behind them, one of the features
    assert n_norms == (14 if form.normalization == "layer" else 0)


def test_an_untrained_norm_changes_no_scale() -> None:
    for part in small(normalization="layer").modules():
        if isinstance(part, nn.GroupNorm):
            assert torch.equal(part.weight, torch.ones(part.num_channels))
            assert not part.bias.any()
    trunk = make_trunk("nature", (2, 40, 44), EncoderForm(normalization="layer"))
    with torch.no_grad():
        for parameter in trunk.parameters():
            parameter.fill_(3)
    randomise_(trunk, seeded())
    norms = [part for part in trunk if isinstance(part, nn.GroupNorm)]
    assert [{*part.weight.tolist()} for part in norms] == [{1.0}] * 3
    assert not any(part.bias.any() for part in norms)


def test_the_usual_form_is_nature_cnns() -> None:
    assert EncoderForm() == EncoderForm(feature_activation=None) == encoder_form.NATURE
    assert encoder_form.NATURE.changes == {}
    assert EncoderForm(activation="elu").changes == {"activation": "elu"}
    same = EncoderForm(activation="elu", feature_activation="elu")
    assert same == EncoderForm(activation="elu")
    assert [*small().state_dict()] == [
        f"{layer}.{kind}"
        for layer in ("cnn.0", "cnn.2", "cnn.4", "linear.0")
        for kind in ("weight", "bias")
    ]


def test_the_settings_are_those_of_the_form() -> None:
    assert InfoNCESettings().of_encoder == asdict(EncoderForm())
    assert tuple(encoder_form.ACTIVATIONS) == settings.ACTIVATIONS
    given: dict[str, Any] = {"feature_activation": "simplicial", "normalization": "layer"}
    assert preset_settings("atc", given).of_encoder == asdict(EncoderForm(**given))
    assert [*ENCODER_SETTINGS] == [*asdict(EncoderForm())]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("activation", "gelu"),
        ("activation", "linear"),
        ("normalization", "batch"),
        ("normalization", None),
        ("feature_activation", "softmax"),
    ],
)
def test_a_form_that_there_is_not_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        EncoderForm(**{name: value})


@pytest.mark.parametrize(
    ("form", "group"),
    [({"activation": "crelu"}, 2), ({"feature_activation": "simplicial"}, 8)],
)
def test_features_that_do_not_fit_into_groups_are_refused(form: dict[str, Any], group: int) -> None:
    with pytest.raises(ValueError, match=rf"`features_dim` to be a multiple of {group} .*got 15"):
        PixelEncoder((2, 40, 44), 15, generator=None, form=EncoderForm(**form))
    assert (
        PixelEncoder((2, 40, 44), 24, generator=None, form=EncoderForm(**form)).features_dim == 24
    )


def test_forms_leave_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    for form, name in itertools.product(FORMS.values(), ("nature", "impala")):
        PixelEncoder((2, 40, 44), 16, generator=seeded(), encoder=name, form=EncoderForm(**form))
    assert torch.equal(torch.get_rng_state(), before)
    assert conv_output_shape(
        make_trunk("nature", (4, 84, 84), EncoderForm(activation="crelu")), (4, 84, 84)
    ) == (128, 7, 7)
