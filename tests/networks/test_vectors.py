"""Parts of encoders of vectors against numpy and their equations."""

import numpy as np
import pytest
import torch
from stable_baselines3.common.utils import get_parameters_by_name
from torch import nn

from rl_infonce.networks.vectors import (
    AverageL1Norm,
    RunningNormalizer,
    VectorMLP,
    short_columns,
    shrunk_columns,
)
from tests.draws import normal, seeded

SIZES = (1, 7, 64, 3, 200)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
def test_running_statistics_are_numpys_over_all_batches(offset: float, scale: float) -> None:
    normalizer = RunningNormalizer(3).double()
    batches = [normal(size, 3, seed=size) * scale + offset for size in SIZES]
    for batch in batches:
        normalizer.update(batch)
    every = np.concatenate([batch.numpy() for batch in batches])
    np.testing.assert_allclose(normalizer.get_buffer("running_mean"), every.mean(axis=0))
    np.testing.assert_allclose(normalizer.get_buffer("running_var"), every.var(axis=0), rtol=1e-6)
    assert int(normalizer.get_buffer("running_count")) == sum(SIZES)
    normalized = normalizer(torch.from_numpy(every)).numpy()
    mean, variance = every.mean(axis=0), every.var(axis=0)
    expected = (every - mean) / np.sqrt(variance + 1e-8 + (1e-6 * mean) ** 2)
    np.testing.assert_allclose(normalized, expected, rtol=1e-5, atol=1e-6)


def test_large_offsets_keep_their_spread_in_single_precision() -> None:
    """The sum of squares minus the squared sum would lose it: 1e8 beside 1."""
    normalizer = RunningNormalizer(1)
    batches = [(normal(size, 1, seed=size) + 1e4).float() for size in SIZES]
    for batch in batches:
        normalizer.update(batch)
    every = torch.cat(batches).double()
    torch.testing.assert_close(
        normalizer.get_buffer("running_var").double(),
        every.var(dim=0, unbiased=False),
        rtol=1e-3,
        atol=0,
    )


def test_statistics_do_not_drift_over_many_batches() -> None:
    normalizer, batches = RunningNormalizer(1), [normal(64, 1, seed=i).float() for i in range(500)]
    for batch in batches:
        normalizer.update(batch)
    every = torch.cat(batches).double()
    mean, variance = (float(normalizer.get_buffer(f"running_{name}")) for name in ("mean", "var"))
    assert mean == pytest.approx(float(every.mean()), abs=1e-4)
    assert variance == pytest.approx(float(every.var(unbiased=False)), rel=1e-4)


def test_before_the_first_update_vectors_pass_unchanged() -> None:
    vectors = torch.linspace(-9, 9, 12).reshape(4, 3)
    torch.testing.assert_close(RunningNormalizer(3)(vectors), vectors)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1234.5, 1e5 / 3, -1e7 / 3])
def test_constant_dimensions_come_out_as_0(constant: float) -> None:
    normalizer = RunningNormalizer(2)
    vectors = torch.stack([torch.full((500,), constant), torch.arange(500.0)], dim=1)
    for part in (vectors[:10], vectors[10:11], vectors[11:150], vectors[150:]):
        normalizer.update(part)
    normalized = normalizer(vectors)
    assert normalized.isfinite().all()
    assert normalized[:, 0].abs().max() < 0.3
    assert normalized[:, 1].std() == pytest.approx(1, abs=0.05)


def test_what_comes_out_is_clipped() -> None:
    normalizer = RunningNormalizer(1)
    normalizer.update(normal(100, 1).float())
    assert normalizer(torch.tensor([[1e9], [-1e9]])).flatten().tolist() == [10.0, -10.0]


BAD = [torch.nan, torch.inf, -torch.inf, 1e20, -3e38]


@pytest.mark.parametrize("bad", BAD)
def test_an_input_that_is_never_finite_spoils_no_other_one(bad: float) -> None:
    clean, spoilt = RunningNormalizer(2), RunningNormalizer(3)
    for size in SIZES:
        vectors = normal(size, 2, seed=size).float() * 300 + 1000
        clean.update(vectors)
        spoilt.update(torch.cat([vectors, torch.full((size, 1), bad)], dim=1))
        spoilt.update(torch.full((4, 3), bad))  # not one that counts
    assert torch.equal(spoilt.get_buffer("running_count"), clean.get_buffer("running_count"))
    for name, untouched in (("running_mean", 0.0), ("running_var", 1.0)):
        found = spoilt.get_buffer(name)
        torch.testing.assert_close(found[:2], clean.get_buffer(name))
        assert found[2] == untouched


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("when", [0, 3])
def test_a_number_that_is_not_finite_or_huge_is_left_out(bad: float, when: int) -> None:
    clean, spoilt = RunningNormalizer(3), RunningNormalizer(3)
    for number in range(6):
        vectors = normal(64, 3, seed=number).float() + 1000
        clean.update(vectors)
        if number == when:
            vectors[5, 0] = vectors[6, 2] = bad
        spoilt.update(vectors)
        if number == when == 0:  # the rest of its own batch stands for it
            rest = vectors[:, 0][torch.arange(64) != 5].double()
            mean, variance = (spoilt.get_buffer(f"running_{each}")[0] for each in ("mean", "var"))
            assert float(mean) == pytest.approx(float(rest.mean()))
            assert float(variance) == pytest.approx(float(rest.var(unbiased=False)), rel=1e-3)
    assert float(spoilt.get_buffer("running_count")) == 6 * 64
    for name in ("running_mean", "running_var"):
        found, expected = spoilt.get_buffer(name), clean.get_buffer(name)
        assert torch.equal(found[1], expected[1])
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


def test_vectors_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`vectors`.*\(4, 2\)"):
        RunningNormalizer(3).update(torch.zeros(4, 2))


def test_sb3_finds_all_statistics_for_its_target_networks() -> None:
    network = nn.Sequential(RunningNormalizer(3), nn.Linear(3, 2))
    found = get_parameters_by_name(network, ["running_"])
    assert [each.data_ptr() for each in found] == [each.data_ptr() for each in network.buffers()]
    assert len(found) == 3


def test_average_l1_norm_is_its_equation() -> None:
    features = normal(5, 8)
    expected = features.numpy() / np.abs(features.numpy()).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(AverageL1Norm()(features), expected)


def test_average_l1_norm_leaves_zeros_and_has_a_gradient_there() -> None:
    features = torch.zeros(2, 4, requires_grad=True)
    normalized = AverageL1Norm()(features)
    assert not normalized.any()
    (gradient,) = torch.autograd.grad(normalized.sum(), [features])
    assert gradient.isfinite().all()


def test_features_of_the_mlp_have_an_average_absolute_value_of_1() -> None:
    network = VectorMLP(6, 16)
    features = network(torch.randn(9, 6, generator=seeded()))
    assert features.shape == (9, 16)
    torch.testing.assert_close(features.abs().mean(dim=1), torch.ones(9))
    assert features.min() < 0


def test_features_with_other_weights_are_those_of_the_other_network() -> None:
    own, other = VectorMLP(6, 16), VectorMLP(6, 16)
    vectors = torch.randn(5, 6, generator=seeded())
    weights = {f"mlp.{name}": each for name, each in other.named_parameters()}
    assert torch.equal(own.with_weights(vectors, weights, "mlp."), other(vectors))
    assert not torch.equal(own(vectors), other(vectors))


@pytest.mark.parametrize("amount", [0.0, 0.5, 2.0])
def test_shrunk_columns_minimise_the_group_lasso(amount: float) -> None:
    given = normal(5, 7, seed=3)
    given[:, 2] = 0.0
    amounts = amount * torch.tensor([1.0, 1.0, 1.0, 0.0, 0.5, 1.0, 1.0])
    shrunk = shrunk_columns(given, amounts)

    def objective(weight: torch.Tensor) -> torch.Tensor:
        distance = (weight - given).square().sum(dim=0) / 2
        return distance + amounts * weight.square().sum(dim=0).sqrt()

    lowest = objective(shrunk)
    for seed in range(200):
        nudge = normal(5, 7, seed=seed) * 10.0 ** -(seed % 5)
        assert (objective(shrunk + nudge) >= lowest - 1e-12).all()
    short = given.norm(dim=0) <= amounts
    assert torch.equal(shrunk.norm(dim=0) == 0, short | (given.norm(dim=0) == 0))
    assert shrunk.isfinite().all()


def test_short_columns_are_those_below_half_of_a_mean_weighted_by_length() -> None:
    lengths = [4.0, 4.0, 1.7, 1.8, 0.0, 0.1, 0.1, 0.1]
    weight = normal(5, 8, seed=3)
    weight *= torch.tensor(lengths) / weight.norm(dim=0)
    weighted = sum(each * each for each in lengths) / sum(lengths)
    expected = [each < weighted / 2 for each in lengths]
    assert short_columns(weight).tolist() == expected
    assert sum(expected) == 4
    assert not short_columns(torch.zeros(5, 3)).any()
    assert not short_columns(normal(5, 1, seed=3)).any()
