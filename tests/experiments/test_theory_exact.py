"""The experiments of experiments/theory: exact numbers, and that the page shows what was run."""

import itertools
import json
import math
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rl_infonce.nce import info_nce_bound, local_nce, partition_nll
from tests.experiments.loading import EXPERIMENTS, committed, load, study_page

NAMES = (
    "toy_categorical",
    "gradient_limit",
    "ranking_consistency",
    "gaussian_information",
    "out_of_distribution",
)


def theory(name: str) -> ModuleType:
    return load(f"theory/{name}.py")


exact, estimators, toy = theory("exact"), theory("toy_estimators"), theory("toy_categorical")
limit, ranking_consistency = theory("gradient_limit"), theory("ranking_consistency")
gaussian, ood_toy, ood = map(theory, ("gaussian_information", "ood_toy", "out_of_distribution"))


# The command


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_committed_result_can_be_drawn(name: str, tmp_path: Path) -> None:
    theory(name).draw(committed(f"theory/{name}.json"), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_command_reproduces_the_committed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(EXPERIMENTS / "theory" / "gradient_limit.py")
    monkeypatch.setattr(sys, "argv", [script, "--output", str(tmp_path / "new")])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    runpy.run_path(script, run_name="__main__")
    found = json.loads((tmp_path / "new" / "gradient_limit.json").read_text())
    expected = committed("theory/gradient_limit.json")
    assert found["limit"] == pytest.approx(expected["limit"], rel=1e-12)
    for row, committed_row in zip(found["rows"], expected["rows"], strict=True):
        assert row["normalised"] == pytest.approx(committed_row["normalised"], rel=1e-9)
    assert (tmp_path / "new" / "gradient_limit.png").exists()
    assert capsys.readouterr().out.strip() in study_page("theory/gradient_limit.md")


# Exact expectations


def test_enumerated_rows_have_the_expectation_of_ordered_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    joint = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    joint /= joint.sum()
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    value = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    rows = exact.enumerated(joint, q, 3)
    assert len(rows.weights) == 2 * 3 * 10
    # symmetric in the noise, and neither a sum nor a product over it
    losses = (1 + rows.contexts) * value[rows.positives] + value[rows.noise].logsumexp(dim=1) ** 2
    expected = sum(
        float(joint[c, v] * q[list(w)].prod())
        * ((1 + c) * float(value[v]) + float(value[list(w)].logsumexp(dim=0)) ** 2)
        for c, v in itertools.product(range(2), range(3))
        for w in itertools.product(range(3), repeat=3)
    )
    assert float(rows.mean(losses)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n_noise", [1, 2, 5])
def test_copied_rows_have_the_expectation_of_enumerated_ones_for_local_nce(n_noise: int) -> None:
    toy = estimators
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = []
    for build in (exact.enumerated, exact.copied):
        rows = build(toy.JOINT, toy.Q, n_noise)
        noise_scores = scores[rows.contexts[:, None], rows.noise]
        positive_scores = scores[rows.contexts, rows.positives]
        log_q = toy.LOG_Q[rows.positives], toy.LOG_Q[rows.noise]
        values.append(float(rows.mean(local_nce(positive_scores, noise_scores, *log_q))))
    assert values[1] == pytest.approx(values[0], rel=1e-12)


# Toy categorical: each number by arithmetic other than the losses'


def entropies() -> dict[str, float]:
    """What the optima must be, from p and q alone."""
    toy = estimators
    p, q, context = toy.TRUTH, toy.Q, toy.P_CONTEXT[:, None]
    local = context * (p * (1 + 4 * q / p).log() + 4 * q * (1 + p / (4 * q)).log())
    ranking = sum(
        float(context[c, 0] * p[c, v] * q[a] * q[b])
        * math.log(1 + float((p[c, a] / q[a] + p[c, b] / q[b]) * q[v] / p[c, v]))
        for c in range(3)
        for v, a, b in itertools.product(range(5), repeat=3)
    )
    return {
        "exact NLL": float(-(context * p * p.log()).sum()),
        "local NCE": float(local.sum()),
        "local NCE, learned log Z": float(local.sum()),
        "ranking NCE": ranking,
        "InfoNCE, log q corrected": ranking,
        "InfoNCE": ranking,
        "negative sampling": float(local.sum()),
    }


@pytest.mark.parametrize("name", entropies())
def test_exact_optimum_identifies_what_the_docstring_says(name: str) -> None:
    estimator = estimators.ESTIMATORS[name]
    (k,) = estimator.n_noise
    least, scores, log_z = toy.optimum(estimator, k)
    assert least == pytest.approx(entropies()[name], abs=1e-9)
    read = estimator.read(scores, log_z, k)
    torch.testing.assert_close(read.softmax(dim=1), estimators.TRUTH, rtol=0, atol=1e-6)
    assert float(toy.kl(read)) == pytest.approx(0.0, abs=1e-9)
    if name.startswith(("local", "negative")):  # log p itself, not up to a constant
        torch.testing.assert_close(read, estimators.TRUTH.log(), rtol=0, atol=1e-5)
    naive_error = float((scores.softmax(dim=1) - estimators.TRUTH).abs().max())
    if estimator.q_power:
        assert naive_error == pytest.approx(0.27, abs=0.01)
    else:
        assert naive_error < 1e-6
    z = (scores - log_z).logsumexp(dim=1).exp()
    expected = {
        "local": [1.0, 1.0, 1.0],
        "negative": (estimators.TRUTH / (4 * estimators.Q)).sum(dim=1).tolist(),
        "exact": [12.1453, 8.9417, 6.7913],
        "ranking": [12.1453, 8.9417, 6.7913],
    }.get(name.split()[0])
    if expected is not None:
        assert z.tolist() == pytest.approx(expected, abs=1e-4)


def committed_optima() -> dict[tuple[str, int], float]:
    fits = committed("theory/toy_categorical.json")["fits"]
    return {(fit["estimator"], fit["k"]): fit["optimum"] for fit in fits}


def test_optima_have_the_published_values() -> None:
    least = {name: value for (name, _), value in committed_optima().items()}
    found = [least[name] for name in ("exact NLL", "local NCE", "ranking NCE")]
    assert found == pytest.approx([1.081289, 2.060897, 0.770848], abs=1e-6)
    del least["partition NLL"]
    assert least == pytest.approx(entropies(), abs=1e-9)


def partition_loss(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Expect log X - s by E log X = integral of (e^-t - E e^-tX) dt / t, of X the estimate of Z."""
    toy = estimators
    step = 0.05
    t = torch.arange(-40, 40, step, dtype=torch.float64).exp()[:, None, None]
    transform = (toy.Q * (-t * scores.exp() / (toy.Q * k)).exp()).sum(dim=-1) ** k  # [T, C]
    log_z = step * ((-t[:, 0]).exp() - transform).sum(dim=0)
    loss: torch.Tensor = (toy.P_CONTEXT * log_z).sum() - (toy.JOINT * scores).sum()
    return loss


@pytest.mark.parametrize("k", [10, 15])
def test_the_partition_nlls_optimum_is_the_one_by_its_laplace_transform(k: int) -> None:
    scores = exact.zeros(3, 5)
    least = exact.minimise([scores], lambda: partition_loss(scores, k))
    assert committed_optima()["partition NLL", k] == pytest.approx(least, abs=1e-9)


def test_partition_nll_is_biased_for_finite_noise_and_exact_without_sampling() -> None:
    least, scores, _ = toy.optimum(estimators.ESTIMATORS["partition NLL"], 10)
    assert least == pytest.approx(committed_optima()["partition NLL", 10], abs=1e-9)
    assert float((scores.softmax(dim=1) - estimators.TRUTH).abs().max()) > 0.1
    # each outcome once, as uniform noise draws it on average
    noise_scores = scores.repeat_interleave(5, dim=0)
    log_q = torch.full((1, 5), -math.log(5), dtype=torch.float64)
    losses = partition_nll(scores.flatten(), noise_scores, log_q)
    torch.testing.assert_close(losses, -scores.log_softmax(dim=1).flatten())


def test_sampled_rows_follow_the_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "BATCH_SIZE", 20_000)
    monkeypatch.setattr(toy, "N_SEEDS", 2)
    noise = toy.CategoricalNoise(estimators.LOG_Q)
    rows = toy.sampled_rows(noise, 3, torch.Generator().manual_seed(0))
    for seed in range(2):
        own = rows.contexts // 3 == seed
        pairs = 5 * (rows.contexts[own] % 3) + rows.positives[own]
        share = torch.bincount(pairs, minlength=15) / 20_000
        torch.testing.assert_close(share.double(), estimators.JOINT.flatten(), rtol=0, atol=0.015)
    share = torch.bincount(rows.noise.flatten(), minlength=5) / rows.noise.numel()
    torch.testing.assert_close(share.double(), estimators.Q, rtol=0, atol=0.01)
    assert float(rows.weights.sum()) == pytest.approx(2.0)


@pytest.mark.parametrize(("optimiser", "gain"), [("SGD", 20), ("Adam", 4)])
def test_training_approaches_the_truth(optimiser: str, gain: float) -> None:
    run = toy.train("local NCE", 10, optimiser, n_steps=300)
    assert run["steps"][-1] == 300
    mean, least, largest = run["kl"][-1]
    assert least <= mean <= largest < run["kl"][0][0] / gain
    assert max(map(abs, run["log_z"][-1])) < max(map(abs, run["log_z"][0])) / gain * 2


def test_training_learns_log_z_where_asked() -> None:
    train = toy.train
    learned, fixed = (
        train(f"local NCE{what}", 10, "Adam", n_steps=50) for what in (", learned log Z", "")
    )
    assert max(learned["log_z"][-1]) < max(fixed["log_z"][-1]) - 0.1


def test_committed_training_agrees_with_the_theory() -> None:
    for runs in committed("theory/toy_categorical.json")["training"].values():
        for name, run in runs.items():
            biased = name == "partition NLL, K=10"
            assert (run["kl"][-1][0] > 0.05) == biased, name
            assert biased or run["kl"][-1][0] < 5e-4, name
            naive_fails = biased or name.startswith(("InfoNCE, K", "negative"))
            assert (run["naive_kl"][-1] > 0.05) == naive_fails, name
            normalised = max(map(abs, run["log_z"][-1])) < 0.05
            assert normalised == name.startswith("local NCE"), name


# Gradient limit


def test_nce_gradient_tends_to_the_likelihood_gradient_for_normalised_models_only() -> None:
    likelihood = limit.likelihood_gradient(limit.SCORES)
    expected = [0.27208, 0.08115, -0.12838, -0.11661, -0.10824]
    assert likelihood.tolist() == pytest.approx(expected, abs=5e-6)
    for k, error in ((1, 0.51990), (10, 0.099371), (100, 0.010951), (1000, 1.1064e-3)):
        gradient = limit.nce_gradient(limit.SCORES.log_softmax(dim=0), k)
        assert limit.distance(gradient, likelihood) == pytest.approx(error, rel=1e-4)
    for k in (1, 10, 1000):
        u = limit.SCORES.exp()
        formula = k * limit.Q / (u + k * limit.Q) * (limit.P - u)  # Mnih & Teh 2012, eq. 10
        torch.testing.assert_close(limit.nce_gradient(limit.SCORES, k), formula)
    expected = [-0.7170, -0.6519, -1.3319, -0.9254, -0.7082]
    assert limit.nce_gradient(limit.SCORES, 1000).tolist() == pytest.approx(expected, abs=5e-5)


# Ranking consistency


@pytest.mark.parametrize("k", [1, 2, 3])
def test_ranking_recovers_theta(k: int) -> None:
    assert ranking_consistency.fit_ranking(k) == pytest.approx(1.0, abs=1e-6)


BINARY = [
    ("none", 1, -0.0943, []),
    ("none", 1000, -0.0527, []),
    ("one learned", 1, 0.5008, [1.8923]),
    ("one learned", 5, 0.4782, [1.8701]),
    ("one learned", 50, 0.4713, [1.8633]),
    ("one learned", 1000, 0.4705, [1.8626]),
]


@pytest.mark.parametrize(("constants", "k", "theta", "gamma"), BINARY)
def test_binary_nce_misses_theta(constants: str, k: int, theta: float, gamma: list[float]) -> None:
    found, found_gamma = ranking_consistency.fit_binary(k, constants)
    assert found == pytest.approx(theta, abs=5e-5)
    assert found_gamma == pytest.approx(gamma, abs=5e-5)


@pytest.mark.parametrize("k", [1, 50])
def test_one_constant_per_context_recovers_theta(k: int) -> None:
    theta, gamma = ranking_consistency.fit_binary(k, "per context")
    assert theta == pytest.approx(1.0, abs=1e-6)
    log_z = [math.log(sum(map(math.exp, f))) for f in ((0, 1, 2, 3), (0, -1, -2, 1))]
    assert gamma == pytest.approx(log_z, abs=1e-6)


# Gaussian information

# Mean and std over batches of an independent numpy implementation; batches per N as committed.
GAUSSIAN: dict[tuple[int, int], dict[str, tuple[float, float]]] = {
    (64, 2): {"InfoNCE": (1.814, 0.195), "DV": (2.008, 0.252), "SMILE 5": (2.032, 0.246)},
    (64, 6): {"InfoNCE": (3.741, 0.125), "DV": (6.236, 0.670), "SMILE 5": (6.721, 0.458)},
    (64, 10): {"InfoNCE": (4.122, 0.037), "DV": (11.273, 1.337), "SMILE 5": (12.051, 0.695)},
    (128, 4): {"InfoNCE": (3.332, 0.152), "DV": (4.005, 0.301), "SMILE 1": (4.649, 0.242)},
    (128, 10): {"InfoNCE": (4.785, 0.036), "SMILE 1": (10.978, 0.308)},
    (512, 6): {"InfoNCE": (4.981, 0.087), "DV": (6.040, 0.252), "SMILE 1": (6.859, 0.141)},
    (512, 10): {"InfoNCE": (6.046, 0.030), "symmetric": (6.048, 0.029)},
}


def test_committed_information_agrees_with_an_independent_implementation() -> None:
    rows = {
        (row["n"], row["information"]): row
        for row in committed("theory/gaussian_information.json")["rows"]
    }
    for key, expected in GAUSSIAN.items():
        for name, (mean, std) in expected.items():
            standard_error = std * math.sqrt(2 / rows[key]["batches"])
            assert abs(rows[key]["mean"][name] - mean) < 4 * standard_error, (key, name)


def test_committed_information_shows_which_estimates_are_bounds() -> None:
    for row in committed("theory/gaussian_information.json")["rows"]:
        mean, truth = row["mean"], row["information"]
        assert mean["InfoNCE"] < min(truth, math.log(row["n"]))
        assert min(mean["SMILE 1"], mean["SMILE 5"]) > truth
        assert mean["DV"] > truth or row["std"]["DV"] < 0.3


def test_estimates_of_fresh_batches() -> None:
    found = gaussian.estimates(4.0, 64, 400, seed=1)
    means = {name: float(values.mean()) for name, values in found.items()}
    assert means["InfoNCE"] == pytest.approx(3.070, abs=0.04)
    assert means["symmetric"] == pytest.approx(3.071, abs=0.04)
    assert means["DV"] == pytest.approx(4.052, abs=0.09)
    assert means["SMILE 1"] == pytest.approx(4.656, abs=0.07)
    assert means["SMILE 5"] == pytest.approx(4.267, abs=0.08)
    assert all(float(found[name].max()) <= math.log(64) for name in ("InfoNCE", "symmetric"))
    assert found["NWJ"].std() > 2 * found["InfoNCE"].std()


def test_optimal_scores_are_the_log_density_ratio() -> None:
    x, y = gaussian.draw_pairs(3.0, (1, 4), torch.Generator().manual_seed(0))
    rho = math.sqrt(1 - math.exp(-2 * 3.0 / 20))
    conditional: Any = torch.distributions.Normal(rho * x[0, :, None], math.sqrt(1 - rho**2))
    marginal: Any = torch.distributions.Normal(0.0, 1.0)
    expected = (conditional.log_prob(y) - marginal.log_prob(y)).sum(dim=-1)
    torch.testing.assert_close(gaussian.optimal_scores(x, y, 3.0)[0], expected)
    assert float(info_nce_bound(gaussian.optimal_scores(x, y, 3.0))) <= math.log(4)


@pytest.mark.slow
def test_closed_form_of_the_spread_of_nwj() -> None:
    for information, n_pairs in ((0.5, 8), (1.0, 16)):
        found = gaussian.estimates(information, n_pairs, 20_000, seed=0)["NWJ"]
        expected = gaussian.exact_nwj_std(information, n_pairs)
        assert float(found.std()) == pytest.approx(expected, rel=0.04)
        assert float(found.mean()) == pytest.approx(information, abs=5 * expected / 20_000**0.5)


def test_closed_form_of_the_correlation_across_the_diagonal() -> None:
    x, y = gaussian.draw_pairs(1.0, (100_000, 2), torch.Generator().manual_seed(0))
    scores = gaussian.optimal_scores(x, y, 1.0)
    of_joint = 20 * (1 - math.exp(-2 * 1.0 / 20)) / 2
    moments = 2 * (gaussian.exact_nwj_std(1.0, 2) ** 2 - of_joint)
    expected = float((scores[:, 0, 1] + scores[:, 1, 0]).exp().mean())
    assert moments + 2 - math.exp(2.0) == pytest.approx(expected, abs=0.05)


# Out of distribution


def test_auroc_counts_pairs() -> None:
    auroc = ood.auroc
    generator = torch.Generator().manual_seed(0)
    inside, outside = (torch.randint(6, (n,), generator=generator).float() for n in (40, 25))
    wins = [float(a > b) + float(a == b) / 2 for a in inside for b in outside]
    assert auroc(inside, outside) == pytest.approx(sum(wins) / len(wins), abs=1e-12)
    assert auroc(inside + 10, outside) == 1.0
    assert auroc(inside - 10, outside) == 0.0


def test_densities_of_the_toy() -> None:
    toy = ood_toy
    generator = torch.Generator().manual_seed(0)
    means = toy.context_means(generator)
    pairs = toy.in_distribution(means, 7, generator)
    centres = torch.cat([means, torch.zeros(8, 24)], dim=1)
    density: Any = torch.distributions.Normal(centres, 1.0)
    log_p = density.log_prob(pairs.inputs[:, None]).sum(dim=2)
    own = log_p[torch.arange(7), pairs.contexts]
    torch.testing.assert_close(toy.log_likelihood(means, pairs), own)
    ratio = own - log_p.exp().double().mean(dim=1).log().float()
    torch.testing.assert_close(toy.exact_ratio(means, pairs), ratio, rtol=1e-4, atol=1e-4)


def test_kinds_change_what_they_say() -> None:
    toy = ood_toy
    means = toy.context_means(torch.Generator().manual_seed(0))
    for kind, signal_std, nuisance_std in (
        ("calm", 0.3, 0.3),
        ("wrong context", 1.0, 0.5),
        ("wild nuisance", 1.0, 1.5),
    ):
        pairs = toy.out_of_distribution(kind, means, 4000, torch.Generator().manual_seed(1))
        assert float(pairs.inputs[:, 4:].std()) == pytest.approx(nuisance_std, rel=0.02)
        distances = torch.cdist(pairs.inputs[:, :4], means)
        closest = distances.argmin(dim=1) == pairs.contexts
        if kind == "calm":
            assert float(pairs.inputs[:, :4].std()) == pytest.approx(signal_std, rel=0.05)
        else:
            assert bool((closest.float().mean() < 0.2) == (kind == "wrong context"))


def test_learned_ratio_is_normalised_over_the_references_of_each_context() -> None:
    toy = ood_toy
    generator = torch.Generator().manual_seed(0)
    means = toy.context_means(generator)
    critic = ood.learn(means, generator, n_steps=20)
    references = toy.in_distribution(means, 30, generator).inputs
    for context in range(toy.N_CONTEXTS):
        pairs = toy.Pairs(torch.full((30,), context), references)
        mean_ratio = ood.learned_ratio(critic, pairs, references).exp().mean()
        assert float(mean_ratio) == pytest.approx(1.0, rel=1e-4)


def test_learned_ratio_sees_what_the_likelihood_misses() -> None:
    found = ood.run(seed=0, n_steps=400)["auroc"]
    assert found["calm"]["likelihood"] < 0.05
    assert found["calm"]["learned ratio"] > 0.75
    assert found["wrong context"]["learned ratio"] > 0.9
    assert 0.4 < found["wild nuisance"]["exact ratio"] < 0.6
