import math
from collections.abc import Callable

import pytest
import torch

from rl_infonce.nce import CategoricalNoise, uniform_noise, unigram_noise
from tests.draws import seeded

Q = torch.tensor([0.4, 0.25, 0.0, 0.15, 0.12, 0.08], dtype=torch.float64)


@pytest.mark.parametrize("n_outcomes", [1, 2, 7, 100])
def test_alias_table_holds_exactly_the_distribution(n_outcomes: int) -> None:
    q = torch.rand(n_outcomes, generator=seeded(), dtype=torch.float64).softmax(0)
    noise = CategoricalNoise(q.log())
    mass = torch.zeros(n_outcomes, dtype=torch.float64)
    mass.index_add_(0, torch.arange(n_outcomes), noise.keep / n_outcomes)
    mass.index_add_(0, noise.alias, (1 - noise.keep) / n_outcomes)
    torch.testing.assert_close(mass, q)


def test_samples_follow_the_distribution() -> None:
    drawn = CategoricalNoise(Q.log()).sample((100_000,), seeded())
    shares = torch.bincount(drawn, minlength=6) / 100_000
    assert float(shares[2]) == 0.0
    standard_error = (Q * (1 - Q) / 100_000).sqrt()
    assert bool(((shares - Q).abs() <= 4 * standard_error).all())


def test_samples_come_from_the_generator_alone() -> None:
    noise = CategoricalNoise(Q.log())
    state = torch.get_rng_state()
    first, second = noise.sample((3, 5), seeded(1)), noise.sample((3, 5), seeded(1))
    assert first.shape == (3, 5)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_log_prob_reads_off_log_q() -> None:
    outcomes = torch.tensor([[0, 3], [2, 5]])
    expected = Q.log()[outcomes].float()
    torch.testing.assert_close(CategoricalNoise(Q.log()).log_prob(outcomes), expected)


def test_uniform_and_rounded_probabilities_are_normalised_exactly() -> None:
    rounded = CategoricalNoise(torch.tensor([0.3335, 0.3335, 0.3335]).log())
    for noise, n in ((rounded, 3), (uniform_noise(8), 8)):
        torch.testing.assert_close(noise.log_probs.exp(), torch.full((n,), 1 / n).double())


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_unigram_noise_is_proportional_to_powers_of_counts(power: float) -> None:
    counts = torch.tensor([8, 0, 1, 16])
    weights = [8**power, 0.0, 1.0, 16**power]
    expected = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    torch.testing.assert_close(unigram_noise(counts, power=power).log_probs.exp(), expected)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int64])
def test_outcomes_of_any_integer_kind_have_their_log_prob(kind: torch.dtype) -> None:
    noise = unigram_noise(torch.tensor([8, 4, 2, 2]))
    found = noise.log_prob(torch.tensor([3, 0, 1, 1], dtype=kind))
    torch.testing.assert_close(found, torch.tensor([1 / 8, 1 / 2, 1 / 4, 1 / 4]).log())


NO_OUTCOME = r"`outcomes` in \[0, 4\)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: CategoricalNoise(torch.zeros(3)),
            ValueError,
            r"`log_probs` to be normalised.*sum to 3",
        ),
        (lambda: CategoricalNoise(torch.tensor([math.nan, 0])), ValueError, r"normalised.*nan"),
        (lambda: CategoricalNoise(torch.zeros(0)), ValueError, r"normalised.*sum to 0"),
        (lambda: CategoricalNoise(torch.zeros(2, 2)), ValueError, r"`log_probs`.*\[V\].*\(2, 2\)"),
        (lambda: CategoricalNoise(torch.zeros(1).int()), TypeError, r"`log_probs`.*int32"),
        (lambda: unigram_noise(torch.tensor([1.0, -1.0])), ValueError, r"`counts`.*>= 0"),
        (lambda: unigram_noise(torch.zeros(2).int()), ValueError, r"`counts`.*not all 0"),
        (lambda: unigram_noise(torch.tensor([1, math.inf])), ValueError, r"`counts` to be finite"),
        (lambda: unigram_noise(torch.ones(2, 2)), ValueError, r"`counts`.*\[V\]"),
        (lambda: unigram_noise(torch.ones(2), power=-0.5), ValueError, r"`power`.*-0\.5"),
        (lambda: unigram_noise(torch.ones(2), power="1"), TypeError, r"`power`.*'1'"),  # type: ignore[arg-type]
        (lambda: uniform_noise(0), ValueError, r"`n_outcomes`.*0"),
        (lambda: uniform_noise(2.5), TypeError, r"`n_outcomes` to be an integer, got 2\.5"),  # type: ignore[arg-type]
        (lambda: uniform_noise(4).log_prob(torch.tensor([0, -1])), ValueError, NO_OUTCOME),
        (lambda: uniform_noise(4).log_prob(torch.tensor([0, 4])), ValueError, NO_OUTCOME),
    ],
)
def test_noise_refuses_what_does_not_fit(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_uniform_noise_is_drawn_on_its_device() -> None:
    with torch.device("meta"):  # torch's default there
        noise = uniform_noise(8, device="cpu")
    assert noise.sample((3,), torch.Generator()).device.type == "cpu"
