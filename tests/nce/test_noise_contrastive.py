import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_infonce.nce import (
    effective_sample_size,
    exact_nll,
    info_nce,
    local_nce,
    negative_sampling,
    partition_nll,
    ranking_nce,
)
from tests import oracles
from tests.draws import seeded


class Given(NamedTuple):
    """Random scores and log q of 3 contexts."""

    positives: Tensor
    noise: Tensor
    positive_log_q: Tensor
    noise_log_q: Tensor


def given_samples(n_positives: int | None = None, n_noise: int = 5, seed: int = 0) -> Given:
    generator = seeded(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tail = () if n_positives is None else (n_positives,)
    return Given(normal(3, *tail), normal(3, n_noise), normal(3, *tail) - 2, normal(3, n_noise) - 2)


def columns(tensor: Tensor) -> list[list[float]]:
    return tensor.reshape(len(tensor), -1).tolist()


Estimator = Callable[..., Tensor]


def partition(g: Given, **kwargs: object) -> Tensor:
    return partition_nll(g.positives, g.noise, g.noise_log_q, **kwargs)  # type: ignore[arg-type]


def local(g: Given, **kwargs: object) -> Tensor:
    return local_nce(*g, **kwargs)  # type: ignore[arg-type]


def ranking(g: Given, **kwargs: object) -> Tensor:
    return ranking_nce(*g, **kwargs)  # type: ignore[arg-type]


def negative(g: Given, **kwargs: object) -> Tensor:
    return negative_sampling(g.positives, g.noise, **kwargs)  # type: ignore[arg-type]


ESTIMATORS: dict[str, Estimator] = {
    "partition": partition,
    "local": local,
    "ranking": ranking,
    "negative sampling": negative,
}
ALL = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
POSITIVES = pytest.mark.parametrize("n_positives", [None, 1, 4])


def by_hand() -> Given:
    """exp s = 3 with q = 1/2 for the positive; exp s = 2, 5 with q = 1/4, 1/2 for the noise."""
    values = [[3.0], [2.0, 5.0], [0.5], [0.25, 0.5]]
    positive, noise, positive_q, noise_q = (torch.tensor(v).double().log() for v in values)
    return Given(positive, noise[None], positive_q, noise_q[None])


def test_estimators_of_an_example_by_hand() -> None:
    hand = by_hand()
    log_partition = math.log((2 / 0.25 + 5 / 0.5) / 2)
    assert float(partition(hand)) == pytest.approx(log_partition - math.log(3))
    # p / (p + k q) with k = 2: 3 / (3 + 1); noise: 0.5 / (2 + 0.5) and 1 / (5 + 1)
    assert float(local(hand)) == pytest.approx(-math.log(3 / 4 * 0.5 / 2.5 * 1 / 6))
    assert float(ranking(hand)) == pytest.approx(-math.log(6 / (6 + 8 + 10)))
    assert float(negative(hand)) == pytest.approx(-math.log(3 / 4 * 1 / 3 * 1 / 6))
    size = effective_sample_size(hand.noise, hand.noise_log_q)
    assert float(size) == pytest.approx((8 + 10) ** 2 / (64 + 100))


def test_exact_nll_equals_loop_oracle() -> None:
    scores = given_samples(n_noise=7).noise
    targets = torch.tensor([6, 0, 3])
    expected = oracles.exact_nll(scores.tolist(), targets.tolist())
    assert exact_nll(scores, targets).tolist() == pytest.approx(expected, rel=1e-12)


@POSITIVES
@pytest.mark.parametrize("log_z", [0.0, torch.tensor(1.5), torch.tensor([0.5, -1.0, 2.0])])
def test_local_nce_equals_loop_oracle(n_positives: int | None, log_z: float | Tensor) -> None:
    g = given_samples(n_positives)
    constants = (torch.zeros(3) + log_z).tolist()
    positives, noise, positive_log_q, noise_log_q = map(columns, g)
    expected = oracles.local_nce(positives, noise, positive_log_q, noise_log_q, constants)
    assert local(g, log_z=log_z).tolist() == pytest.approx(expected, rel=1e-6)


@POSITIVES
def test_estimators_equal_loop_oracles(n_positives: int | None) -> None:
    g = given_samples(n_positives)
    positives, noise, positive_log_q, noise_log_q = map(columns, g)
    expected = {
        partition: oracles.partition_nll(positives, noise, noise_log_q),
        ranking: oracles.ranking_nce(positives, noise, positive_log_q, noise_log_q),
        negative: oracles.negative_sampling(positives, noise),
    }
    for estimator, losses in expected.items():
        assert estimator(g).tolist() == pytest.approx(losses, rel=1e-12)


def test_effective_sample_size_equals_loop_oracle_and_its_limits() -> None:
    g = given_samples()
    expected = oracles.effective_sample_size(columns(g.noise), columns(g.noise_log_q))
    assert effective_sample_size(g.noise, g.noise_log_q).tolist() == pytest.approx(expected)
    assert effective_sample_size(g.noise, g.noise).tolist() == pytest.approx([5.0] * 3)
    one_counts = g.noise_log_q + 100 * torch.arange(5)
    assert effective_sample_size(g.noise, one_counts).tolist() == pytest.approx([1.0] * 3)


@pytest.mark.parametrize(("n_noise", "size"), [(7, 1e4), (5, 1e6), (7, -1e4)])
def test_effective_sample_size_stays_in_its_range(n_noise: int, size: float) -> None:
    scores = torch.full((3, n_noise), size)
    scores[1, 0] += 2.0
    scores[2, 0] += 1e3
    log_q = torch.full((n_noise,), -1.5)
    sizes = effective_sample_size(scores, log_q)
    assert bool(((sizes >= 1) & (sizes <= n_noise)).all())
    torch.testing.assert_close(sizes, effective_sample_size(scores - size, log_q))
    assert sizes.tolist()[::2] == pytest.approx([n_noise, 1])


@ALL
def test_log_q_and_mask_broadcast_to_the_noise(estimator: Estimator) -> None:
    g = given_samples()
    shared = g._replace(noise_log_q=g.noise_log_q[0])
    spelled = g._replace(noise_log_q=g.noise_log_q[:1].expand(3, 5))
    torch.testing.assert_close(estimator(shared), estimator(spelled))
    mask = torch.tensor([True, False, True, True, False])
    torch.testing.assert_close(estimator(g, mask=mask), estimator(g, mask=mask.expand(3, 5)))


@ALL
@pytest.mark.parametrize("poison", [math.nan, -math.inf])
def test_masked_noise_counts_as_not_drawn(estimator: Estimator, poison: float) -> None:
    g = given_samples()
    mask = torch.tensor([True, False, True, True, False])
    kept = g._replace(noise=g.noise[:, mask], noise_log_q=g.noise_log_q[:, mask])
    poisoned = g._replace(
        noise=g.noise.masked_fill(~mask, math.nan).requires_grad_(),
        noise_log_q=g.noise_log_q.masked_fill(~mask, poison),
    )
    losses = estimator(poisoned, mask=mask)
    torch.testing.assert_close(losses, estimator(kept))
    (gradient,) = torch.autograd.grad(losses.sum(), poisoned.noise)
    assert bool(gradient[:, mask].all())
    assert not gradient[:, ~mask].any()


@ALL
def test_a_row_without_noise_costs_nothing_and_is_named(estimator: Estimator) -> None:
    g = given_samples()
    leaves = g._replace(
        positives=g.positives.clone().requires_grad_(), noise=g.noise.clone().requires_grad_()
    )
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    with pytest.warns(UserWarning, match=r"1 of 3 rows have no noise sample.*: 1\. Leave"):
        losses = estimator(leaves, mask=mask)
    assert float(losses.detach()[1]) == 0.0
    for gradient in torch.autograd.grad(losses.sum(), (leaves.positives, leaves.noise)):
        assert not gradient[1].any()
        assert bool(gradient.isfinite().all())
        assert bool(gradient[[0, 2]].any())
    torch.testing.assert_close(losses[[0, 2]], estimator(g)[[0, 2]])


@ALL
@POSITIVES
def test_estimators_pass_gradcheck_with_a_mask(
    estimator: Estimator, n_positives: int | None
) -> None:
    g = given_samples(n_positives)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 2] = mask[2, :3] = False

    def losses(positives: Tensor, noise: Tensor) -> Tensor:
        return estimator(g._replace(positives=positives, noise=noise), mask=mask)

    inputs = (g.positives.clone().requires_grad_(), g.noise.clone().requires_grad_())
    assert torch.autograd.gradcheck(losses, inputs)
    mask[1] = False  # no noise at all
    with pytest.warns(UserWarning, match="no noise sample"):
        assert torch.autograd.gradgradcheck(losses, inputs)


def test_log_q_of_rows_is_not_taken_for_that_of_columns() -> None:
    scores, noise, log_q = torch.zeros(2, 2), torch.zeros(2, 3), torch.tensor([-1.0, -2.0])
    with pytest.raises(ValueError, match=r"`positive_log_q` as \[2, 1\] or \[2, 2\]"):
        ranking_nce(scores, noise, log_q, noise)
    of_rows = ranking_nce(scores, noise, log_q[:, None], noise)
    assert of_rows[0] > of_rows[1]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_learned_log_z_passes_gradcheck_with_a_mask(shape: tuple[int, ...]) -> None:
    g = given_samples()
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 2] = False
    log_z = torch.full(shape, 0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: local_nce(*g, log_z=z, mask=mask), (log_z,))


def test_ranking_nce_with_uniform_noise_is_info_nce_with_explicit_negatives() -> None:
    g = given_samples()
    uniform = torch.full((3, 5), -math.log(9), dtype=torch.float64)
    losses = ranking_nce(g.positives, g.noise, uniform[:, 0], uniform)
    rows = [torch.cat([g.positives[i : i + 1], g.noise[i]])[None] for i in range(3)]
    torch.testing.assert_close(losses, torch.cat([info_nce(row) for row in rows]))
    scores = torch.cat([g.positives[:, None], g.noise], dim=1)
    torch.testing.assert_close(losses, info_nce(scores[:, None])[:, 0])  # as the page has it


def test_negative_sampling_shifts_the_scores_of_local_nce_by_log_k_q() -> None:
    g = given_samples()
    shifted = negative_sampling(
        g.positives - g.positive_log_q - math.log(5), g.noise - g.noise_log_q - math.log(5)
    )
    torch.testing.assert_close(shifted, local(g))


@pytest.mark.parametrize("n_noise", [1, 2])
def test_local_nce_without_log_q_is_least_at_the_density_ratio(n_noise: int) -> None:
    """Exact expectation over all pairs of 3 contexts and 3 outcomes, negatives from p(x)."""
    joint = given_samples(n_noise=3).noise.exp()
    joint = joint / joint.sum()
    marginal = joint.sum(dim=0)
    scores = (joint / joint.sum(dim=1, keepdim=True) / marginal).log().requires_grad_()
    draws = torch.cartesian_prod(*[torch.arange(3)] * (2 + n_noise))  # c, x and the noise
    c, x, noise = draws[:, 0], draws[:, 1], draws[:, 2:]
    no_log_q = torch.zeros((), dtype=torch.float64)
    losses = local_nce(scores[c, x], scores[c[:, None], noise], no_log_q, no_log_q)
    expected = (joint[c, x] * marginal[noise].prod(dim=1) * losses).sum()
    (gradient,) = torch.autograd.grad(expected, scores)
    assert float(gradient.abs().max()) < 1e-12  # and the loss is convex in the scores


def test_the_partition_function_is_estimated_without_bias() -> None:
    """The mean of the estimate over every possible draw of two samples is Z itself."""
    scores = given_samples(n_noise=4).noise[0]
    q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    draws = torch.cartesian_prod(torch.arange(4), torch.arange(4))  # [16, 2]
    zeros = torch.zeros(16, dtype=torch.float64)
    estimates = partition_nll(zeros, scores[draws], q.log()[draws]).exp()
    mean = (estimates * q[draws].prod(dim=1)).sum()
    torch.testing.assert_close(mean, scores.exp().sum())


@pytest.mark.parametrize("spread", [0.0, 0.25, 0.75])
def test_the_log_of_the_partition_function_is_biased_as_said(spread: float) -> None:
    """All draws of K from two outcomes of weight 1 +- spread, each with its probability; Z = 1."""
    n_noise = 200
    n_heavy = torch.arange(n_noise + 1, dtype=torch.float64)  # one row for each number of these
    log_q = math.log(0.5)
    is_heavy = torch.arange(n_noise) < n_heavy[:, None]
    weights = 1 + spread * (2 * is_heavy.double() - 1)
    binomial = [math.comb(n_noise, k) / 2**n_noise for k in range(n_noise + 1)]
    shares = torch.tensor(binomial, dtype=torch.float64)
    noise, noise_log_q = weights.log() + log_q, torch.tensor([log_q], dtype=torch.float64)
    losses = partition_nll(torch.zeros_like(n_heavy), noise, noise_log_q)
    bias = float((shares * losses).sum())
    sizes = effective_sample_size(noise, noise_log_q)
    said = float((shares * (1 / sizes - 1 / n_noise)).sum()) / -2
    assert bias == pytest.approx(said, rel=0.02, abs=1e-12)
    assert bias == pytest.approx(-(spread**2) / n_noise / 2, rel=0.02, abs=1e-12)


def test_partition_nll_over_the_whole_support_is_exact() -> None:
    scores = given_samples(n_noise=6).noise
    uniform = torch.full((3, 6), -math.log(6), dtype=torch.float64)
    targets = torch.tensor([0, 3, 5])
    losses = partition_nll(scores.gather(1, targets[:, None]), scores, uniform)
    torch.testing.assert_close(losses, exact_nll(scores, targets))


@ALL
@pytest.mark.parametrize("size", [1e4, 6e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_extreme_scores_stay_finite_and_exact(
    estimator: Estimator, size: float, dtype: torch.dtype
) -> None:
    log_q = torch.full((4, 2), -1.0, dtype=dtype)
    positives = torch.tensor([size, -size, size, -size], dtype=dtype).requires_grad_()
    noise = torch.tensor([[-size, -size], [size, -size], [size, -size], [-size, -size]])
    noise = noise.to(dtype).requires_grad_()
    half = Given(positives, noise, log_q[:, 0], log_q)
    losses = estimator(half)
    assert losses.dtype == torch.float32
    gradients = torch.autograd.grad(losses.sum(), (positives, noise))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    wide = Given(*(t.detach().double() for t in half))
    torch.testing.assert_close(losses.detach().double(), estimator(wide), rtol=1e-6, atol=1e-6)


@ALL
def test_estimators_ignore_autocast(estimator: Estimator) -> None:
    g = Given(*(t.float() for t in given_samples()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = estimator(g)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, estimator(g), rtol=0, atol=0)


ZEROS, FOUR = torch.zeros(3).double(), torch.zeros(4).double()
NOT_DRAWN = r"`noise_log_q` above -inf, got 6 samples with q = 0, which q cannot.*padding"
NOT_COVERED = r"`positive_log_q` above -inf, got 3 samples with q = 0.*cover the data"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"noise": torch.zeros(3, 0).double()}, ValueError, r"at least one.*noise.*\(3, 0\)"),
        ({"positives": torch.zeros(3, 0).double()}, ValueError, r"one positive.*\(3, 0\)"),
        ({"noise": torch.zeros(3).double()}, ValueError, r"`noise_scores`.*\[B, K\].*\(3,\)"),
        ({"positives": torch.zeros(2).double()}, ValueError, r"`positive_scores`.*\[3\].*\(2,\)"),
        ({"positives": torch.zeros(3)}, TypeError, r"`positive_scores`.*float64.*float32"),
        ({"noise": torch.zeros(3, 5).int()}, TypeError, r"`noise_scores`.*int32"),
        ({"positives": math.nan * ZEROS}, ValueError, r"`positive_scores`.*3 of"),
        ({"noise": torch.full((3, 5), math.inf).double()}, ValueError, r"`noise_scores`.*15 of 15"),
        ({"positive_log_q": FOUR}, ValueError, r"`positive_log_q`.*\(3,\).*\(4,\)"),
        ({"noise_log_q": FOUR}, ValueError, r"`noise_log_q`.*\(3, 5\).*\(4,\)"),
        ({"noise_log_q": torch.zeros(5).int()}, TypeError, r"`noise_log_q`.*int32"),
        ({"positive_log_q": torch.zeros(3).log()}, ValueError, NOT_COVERED),
        ({"noise_log_q": torch.tensor([0.0, 1, 1, 1, 0]).log()}, ValueError, NOT_DRAWN),
        ({"noise_log_q": torch.full((5,), math.nan)}, ValueError, r"`noise_log_q`.*finite"),
        ({"noise_log_q": torch.zeros(5, device="meta")}, ValueError, r"`noise_log_q`.*cpu.*meta"),
    ],
)
@pytest.mark.parametrize("estimator", [local, ranking])
def test_estimators_refuse_what_does_not_fit(
    estimator: Estimator, change: dict[str, Tensor], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        estimator(given_samples()._replace(**change))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"mask": torch.ones(3, 5)}, TypeError, r"boolean `mask`.*float32"),
        ({"mask": torch.ones(3, 4).bool()}, ValueError, r"`mask`.*\(3, 5\).*\(3, 4\)"),
        ({"log_z": math.nan}, ValueError, r"`log_z`.*nan"),
        ({"log_z": "0"}, TypeError, r"`log_z`.*'0'"),
        ({"log_z": torch.zeros(2)}, ValueError, r"`log_z`.*\[3\].*\(2,\)"),
        ({"log_z": torch.zeros(3, 5)}, ValueError, r"`log_z`.*\[3\].*\(3, 5\)"),
        ({"log_z": torch.tensor(math.nan)}, ValueError, r"`log_z` to be finite"),
    ],
)
def test_estimators_refuse_wrong_masks_and_local_nce_other_normalisers(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    for estimator in ESTIMATORS.values() if "mask" in given else [local]:
        with pytest.raises(error, match=message):
            estimator(given_samples(), **given)


@pytest.mark.parametrize(
    ("scores", "targets", "error", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), ValueError, r"`targets` in \[0, 3\).*rows: 1"),
        (torch.zeros(2, 3), torch.tensor([-1, 0]), ValueError, r"`targets` in \[0, 3\).*rows: 0"),
        (torch.zeros(2, 3), torch.tensor([0, 1, 2]), ValueError, r"`targets`.*\[2\].*\(3,\)"),
        (torch.zeros(2, 3), torch.zeros(2), TypeError, r"`targets`.*int64.*float32"),
        (torch.zeros(3), torch.tensor([0]), ValueError, r"`scores`.*\[B, V\].*\(3,\)"),
        (torch.zeros(2, 3).int(), torch.tensor([0, 1]), TypeError, r"`scores`.*int32"),
        (torch.full((1, 3), math.nan), torch.tensor([0]), ValueError, r"`scores`.*finite"),
    ],
)
def test_exact_nll_refuses_what_does_not_fit(
    scores: Tensor, targets: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        exact_nll(scores, targets)


def test_exact_nll_over_possible_outcomes_is_that_of_fewer() -> None:
    scores = torch.randn(3, 5, generator=seeded(), dtype=torch.float64, requires_grad=True)
    scores.data[:, 1] = math.inf  # an impossible outcome may have any score
    mask = torch.tensor([True, False, True, True, False])
    losses = exact_nll(scores, torch.tensor([0, 2, 3]), mask=mask)
    torch.testing.assert_close(losses, exact_nll(scores[:, mask], torch.tensor([0, 1, 2])))
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[:, ~mask] == 0).all()
    with pytest.raises(ValueError, match=r"`mask` to allow the outcome in `targets`, got 1 .*: 2"):
        exact_nll(scores, torch.tensor([0, 2, 4]), mask=mask)
    with pytest.raises(ValueError, match=r"3 of 15 entries NaN or infinite. Exclude .* `mask`"):
        exact_nll(scores, torch.tensor([0, 2, 3]))


def test_exact_nll_passes_gradcheck_and_follows_a_permutation_of_outcomes() -> None:
    scores, targets = given_samples().noise.requires_grad_(), torch.tensor([4, 0, 2])
    assert torch.autograd.gradcheck(lambda s: exact_nll(s, targets), (scores,))
    order = torch.tensor([2, 0, 4, 3, 1])
    moved = torch.argsort(order)[targets]
    torch.testing.assert_close(exact_nll(scores[:, order], moved), exact_nll(scores, targets))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e4), (torch.float16, 6e4)])
def test_exact_nll_of_extreme_scores_is_exact(dtype: torch.dtype, size: float) -> None:
    scores = torch.tensor([[size, -size, size], [-size, size, size]], dtype=dtype)
    losses = exact_nll(scores, torch.tensor([0, 0]))
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, torch.tensor([math.log(2), 2 * size + math.log(2)]))


FLOATS = st.floats(-30.0, 30.0, width=32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    positive=FLOATS,
    noise=st.lists(FLOATS, min_size=1, max_size=6),
    positive_log_q=st.floats(-10.0, 0.0),
    noise_log_q=st.floats(-10.0, 0.0),
    shift=st.floats(-20.0, 20.0),
    gain=st.floats(0.0, 10.0),
)
def test_what_shifts_of_the_scores_change_and_what_they_do_not(
    positive: float,
    noise: list[float],
    positive_log_q: float,
    noise_log_q: float,
    shift: float,
    gain: float,
) -> None:
    def double(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    g = Given(
        double(positive),
        double(*noise)[None],
        double(positive_log_q),
        double(noise_log_q).expand(1, len(noise)),
    )
    shifted = g._replace(positives=g.positives + shift, noise=g.noise + shift)
    better = g._replace(positives=g.positives + gain)
    for invariant in (partition, ranking):
        torch.testing.assert_close(invariant(shifted), invariant(g), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(local(shifted, log_z=shift), local(g), rtol=1e-8, atol=1e-8)
    for estimator in ESTIMATORS.values():
        assert float(estimator(better)) <= float(estimator(g)) + 1e-9
    for bounded in (local, ranking, negative):
        assert float(bounded(g)) >= 0.0
    size = effective_sample_size(g.noise, g.noise_log_q)
    assert 1.0 - 1e-9 <= float(size) <= len(noise) + 1e-9


def test_checks_of_values_can_be_skipped() -> None:
    g = given_samples()._replace(positives=torch.tensor([math.nan, 0.0, 0.0]).double())
    losses = ranking(g, validate_args=False)
    assert losses.isnan().tolist() == [True, False, False]


def test_noise_that_is_masked_out_reaches_no_gradient() -> None:
    log_z = torch.zeros((), requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    log_q = torch.tensor([[-1.0, -1.0, math.nan]])
    losses = local_nce(
        torch.zeros(1), torch.zeros(1, 3), torch.zeros(1), log_q, log_z=log_z, mask=mask
    )
    (gradient,) = torch.autograd.grad(losses.sum(), log_z)
    assert bool(gradient.isfinite())
