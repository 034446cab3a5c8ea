"""The exact parts of `experiments/theory` by brute force, its commands, and what it publishes."""

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.draws import seeded
from tests.experiments.loading import EXPERIMENTS, RESULTS, committed, load, study_page
from tests.experiments.test_theory_exact import NAMES as EXACT
from tests.further import with_further

# `language_model.py` imports it by name, as a script imports its neighbour
word_corpora = load("theory/word_corpora.py")
language_model = load("theory/language_model.py")
language_model_speed = load("theory/language_model_speed.py")
noise_quality = load("theory/noise_quality.py")
batch_and_temperature = load("theory/batch_and_temperature.py")
false_negatives = load("theory/false_negatives.py")


def tiny_language() -> Any:
    return word_corpora.make_language(5, 2, seeded(), strength=2.0)


# The language


def test_entropy_is_that_of_the_chain_over_pairs_of_words() -> None:
    language = tiny_language()
    classes, probs = language.classes.tolist(), language.log_probs.exp().tolist()
    law = dict.fromkeys(itertools.product(range(5), repeat=2), 1 / 25)  # of the last two words
    for _ in range(100):
        following = dict.fromkeys(law, 0.0)
        for (u, v), w in itertools.product(law, range(5)):
            following[v, w] += law[u, v] * probs[classes[u]][classes[v]][w]
        law = following
    entropy = 0.0
    for (u, v), w in itertools.product(law, range(5)):
        prob = probs[classes[u]][classes[v]][w]
        entropy -= law[u, v] * prob * math.log(prob)
    assert word_corpora.entropy_rate(language) == pytest.approx(entropy, rel=1e-9)


def test_spoken_trigrams_follow_the_language() -> None:
    language = tiny_language()
    trigrams = word_corpora.speak(language, 100, 1000, seeded())
    assert trigrams.shape == (100_000, 3)
    pairs = language.classes[trigrams[:, :2]]
    for a, b in itertools.product(range(2), repeat=2):
        found = trigrams[(pairs[:, 0] == a) & (pairs[:, 1] == b), 2]
        shares = torch.bincount(found, minlength=5).double() / len(found)
        assert len(found) > 1000
        torch.testing.assert_close(shares, language.log_probs[a, b].exp(), rtol=0.0, atol=0.025)


class TrueModel:
    """Knows the language; `offset` is added to every score, `noise` to each."""

    def __init__(self, language: Any, offset: float = 0.0, noise: float = 0.0) -> None:
        self.language, self.offset, self.noise = language, offset, noise
        self.log_z = torch.zeros(())

    def context(self, before: Tensor) -> Tensor:
        return before

    def all_scores(self, before: Tensor) -> Tensor:
        a, b = self.language.classes[before].unbind(dim=1)
        scores: Tensor = self.language.log_probs[a, b] + self.offset
        return scores + self.noise * torch.randn(scores.shape, generator=seeded())


def test_perplexity_of_the_true_model_is_exp_of_the_entropy() -> None:
    corpus = word_corpora.synthetic_corpus(1, seed=3, n_words=50)
    language = word_corpora.make_language(50, 20, seeded(0))
    truth = language_model.judge(TrueModel(language), corpus)
    assert truth["perplexity"] == pytest.approx(math.exp(corpus.entropy), rel=1e-6)
    assert truth["log_z"] == pytest.approx(0.0, abs=1e-6)
    shifted = language_model.judge(TrueModel(language, offset=2.0), corpus)
    assert shifted["perplexity"] == pytest.approx(math.exp(corpus.entropy), rel=1e-6)
    assert shifted["log_z"] == pytest.approx(2.0, abs=1e-6)
    learned = TrueModel(language, offset=2.0)
    learned.log_z = torch.tensor(2.0)
    assert language_model.judge(learned, corpus)["log_z"] == pytest.approx(0.0, abs=1e-6)
    wrong = language_model.judge(TrueModel(language, noise=0.5), corpus)
    assert wrong["perplexity"] > 1.05 * truth["perplexity"]


def test_the_book_is_judged_on_words_that_were_not_trained_on(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("a b c " * 30 + "rare words here. " + "It's b " * 3 + "it's new " * 6)
    corpus = word_corpora.book_corpus(1, 0, book)
    # 111 words, cut at 99: known are a, b, c and "it's"; all others are word 0
    assert corpus.n_words == 5
    assert corpus.train.shape == (word_corpora.BATCH, 3)
    assert len(corpus.test) == 111 - 99 - 2
    assert set(corpus.test.flatten().tolist()) == {0, 4}
    assert {(1, 2, 3), (3, 0, 0)} <= set(map(tuple, corpus.train.tolist()))


def test_scores_of_chosen_words_are_those_of_all_words() -> None:
    model = language_model.WordModel(7, seeded())
    context = model.context(torch.tensor([[0, 1], [2, 3]]))
    every, chosen = model.all_scores(context), torch.tensor([[6, 0, 6], [1, 2, 3]])
    torch.testing.assert_close(model.scores(context, chosen), every.gather(1, chosen))
    torch.testing.assert_close(model.scores(context, chosen[0]), every[:, chosen[0]])


# The speed of an update


def dense_update(tables: Any, loss_of: Any) -> list[Tensor]:
    """Return what plain SGD on whole tables makes of them."""
    leaves = [table.clone().requires_grad_() for table in tables]
    gradients = torch.autograd.grad(loss_of(*leaves), leaves)
    rate = language_model_speed.LEARNING_RATE
    return [t.detach() - rate * g for t, g in zip(leaves, gradients, strict=True)]


@pytest.mark.parametrize("arm", language_model_speed.ARMS[1:], ids=lambda arm: arm.name)
def test_nce_update_is_sgd_and_touches_gathered_rows_only(arm: Any) -> None:
    speed = language_model_speed
    tables = speed.make_tables(2000, seeded())
    noise = speed.unigram_noise(torch.ones(2000))
    batch = torch.tensor([[1, 2, 3], [1, 4, 3], [5, 2, 6]])
    shape = (arm.k,) if arm.shared else (3, arm.k)
    drawn = noise.sample(shape, seeded(1))

    def loss(first: Tensor, second: Tensor, output: Tensor, bias: Tensor) -> Tensor:
        context = first[batch[:, 0]] + second[batch[:, 1]]
        scores = context @ output.T + bias[:, 0]
        of_noise = scores.gather(1, drawn.expand(3, -1))
        of_targets = scores.gather(1, batch[:, 2:])
        log_q = torch.full((1,), -math.log(2000))
        losses: Tensor = speed.local_nce(of_targets, of_noise, log_q, log_q)
        return losses.mean()

    before = [table.clone() for table in tables]
    expected = dense_update(tables, loss)
    speed.nce_update(tables, batch, noise, arm, seeded(1))
    for table, wanted in zip(tables, expected, strict=True):
        torch.testing.assert_close(table, wanted, rtol=1e-5, atol=1e-7)
    changed = [(t != b).any(dim=1).nonzero().flatten() for t, b in zip(tables, before, strict=True)]
    assert changed[0].tolist() == [1, 5]
    assert changed[1].tolist() == [2, 4]
    gathered = sorted({3, 6, *drawn.flatten().tolist()})
    assert changed[2].tolist() == changed[3].tolist() == gathered


def test_exact_update_is_sgd() -> None:
    speed = language_model_speed
    tables = speed.make_tables(20, seeded())
    batch = torch.tensor([[1, 2, 3], [1, 4, 3], [5, 2, 6]])

    def loss(first: Tensor, second: Tensor, output: Tensor, bias: Tensor) -> Tensor:
        context = first[batch[:, 0]] + second[batch[:, 1]]
        losses: Tensor = speed.exact_nll(context @ output.T + bias[:, 0], batch[:, 2])
        return losses.mean()

    expected = dense_update(tables, loss)
    speed.exact_update(tables, batch)
    for table, wanted in zip(tables, expected, strict=True):
        torch.testing.assert_close(table, wanted, rtol=1e-5, atol=1e-7)


# The quality of noise


def test_noise_that_is_the_data_costs_one_over_k() -> None:
    features, truth = noise_quality.make_truth(seeded())
    log_probs = (features @ truth).log_softmax(dim=0)
    same, uniform = (noise_quality.mixture(log_probs, share) for share in (1.0, 0.0))
    for k in (1, 3, 10):
        ratio = noise_quality.expected_ratio(features, truth, same, k)
        assert ratio == pytest.approx(1 + 1 / k)
        assert noise_quality.expected_ratio(features, truth, uniform, k) > ratio
    assert noise_quality.expected_ratio(features, truth, uniform, 10**7) == pytest.approx(1.0, 1e-3)


def test_maximum_likelihood_matches_the_mean_of_the_features() -> None:
    features, _ = noise_quality.make_truth(seeded())
    data = torch.randint(len(features), (300,), generator=seeded(1))
    estimate = noise_quality.fit_exact(features, data)
    fitted = (features @ estimate).softmax(dim=0) @ features
    torch.testing.assert_close(fitted, features[data].mean(dim=0), rtol=0.0, atol=1e-4)


def test_nce_fit_is_stationary_and_close_to_the_truth() -> None:
    features, truth = noise_quality.make_truth(seeded())
    noise = noise_quality.mixture((features @ truth).log_softmax(dim=0), 0.5)
    data = noise_quality.CategoricalNoise((features @ truth).log_softmax(dim=0)).sample(
        (20_000,), seeded(1)
    )
    estimate = noise_quality.fit_nce(features, data, noise, 2, seeded(2))
    expected = noise_quality.expected_ratio(features, truth, noise, 2) * len(truth) / 40_000
    assert noise_quality.divergence(features, truth, estimate) < 3 * expected
    assert noise_quality.divergence(features, truth, truth) == pytest.approx(0.0, abs=1e-12)


# Batch size and temperature


def test_pairs_have_the_cosines_and_the_information_they_are_said_to_have() -> None:
    batch = batch_and_temperature
    truth = batch.rotations(1, seeded())
    x, y = batch.sample_pairs(truth[0], 20_000, seeded(1))
    for side in (x, y):
        torch.testing.assert_close(side.norm(dim=-1), torch.ones(20_000))
        assert float(side.mean(dim=0).abs().max()) < 0.02
    grid, probs = batch.cosine_law()
    cosines = ((x @ truth[0]) * y).sum(dim=-1)
    assert float(cosines.mean()) == pytest.approx(float(probs @ grid), abs=5e-3)
    bounds = {t: float(batch.bound(truth, truth, t)) for t in (0.05, 0.1, 0.2)}
    assert bounds[0.1] == pytest.approx(batch.true_information(), abs=0.1)
    assert bounds[0.1] > max(bounds[0.05], bounds[0.2]) + 0.1


def test_gradient_noise_falls_with_the_batch_and_signal_per_pair_rises() -> None:
    found = [
        batch_and_temperature.signal_to_noise(False, n, 0.1, seed=0, n_pairs=4096)
        for n in (4, 16, 64)
    ]
    noise, per_pair = ([one[name] for one in found] for name in ("noise", "per_pair"))
    assert noise[0] > noise[1] > noise[2]
    assert per_pair[0] < per_pair[1] < 2 * per_pair[0]


def test_sgd_finds_the_rotation() -> None:
    maps, truth = batch_and_temperature.train(32, 0.1, [1.0, 1e-6], 0, n_runs=2, n_pairs=4096)
    errors = batch_and_temperature.error(maps, truth)  # [runs, rates]
    assert errors.shape == (2, 2)
    assert float(errors[:, 0].max()) < 0.05
    assert float(errors[:, 1].min()) > 0.3


# False negatives


def test_only_the_masked_loss_never_pushes_a_class_apart() -> None:
    classes = torch.tensor([0, 1, 0, 1, 2])
    same = (classes[:, None] == classes[None]) & ~torch.eye(5, dtype=torch.bool)
    for name in false_negatives.LOSSES:
        cosines = (torch.rand(5, 5, generator=seeded()) * 2 - 1).requires_grad_()
        loss = false_negatives.losses(name, cosines, classes, 0.5).sum()
        (gradient,) = torch.autograd.grad(loss, cosines)
        if name == "masked":
            assert bool((gradient[same] == 0).all())
        else:
            assert bool((gradient[same] > 0).all())
        assert bool((gradient[classes[:, None] != classes[None]] > 0).all())


def test_rows_at_the_floor_have_no_gradient_of_negatives() -> None:
    cosines = torch.rand(6, 6, generator=seeded()) * 2 - 1
    cosines[:3] = -0.5
    cosines.fill_diagonal_(0.9)
    # a mean of 0.0033 is left to negatives: above 0, below the floor of exp(-5) = 0.0067
    cosines[3] = 0.2 * math.log(0.1 + 0.9 * 0.0033)
    cosines[3, 3] = 0.0
    cosines.requires_grad_()
    loss = false_negatives.losses("debiased_info_nce", cosines, torch.zeros(6), 0.2).sum()
    (gradient,) = torch.autograd.grad(loss, cosines)
    off_diagonal = gradient[~torch.eye(6, dtype=torch.bool)].reshape(6, 5)
    clamped = (off_diagonal == 0).all(dim=1)
    assert clamped[:4].all()
    assert not clamped.all()
    share = false_negatives.at_floor(cosines, 0.2)
    assert share == pytest.approx(float(clamped.double().mean()))


# Commands and what they published

COMMANDS = {
    "language_model": ("--seeds", "0", "--steps", "2", "--book-steps", "1", "--jobs", "1"),
    "language_model_speed": ("--rounds", "1", "--updates", "1", "--vocabularies", "300", "600"),
    "noise_quality": ("--seeds", "2", "--noise-counts", "1"),
    "batch_and_temperature": ("--runs", "2", "--pairs", "1024"),
    "false_negatives": ("--seeds", "0", "--steps", "2"),
}


@pytest.mark.slow
@pytest.mark.thorough
def test_several_processes_find_what_one_finds() -> None:
    """In a process of its own: workers import the script by name."""
    program = (
        "import language_model as lm; lm.SETTINGS = lm.SETTINGS[:2]\n"
        "if __name__ == '__main__': assert lm.run([0], 2, 1, 2) == lm.run([0], 2, 1, 1)"
    )
    folder = EXPERIMENTS / "theory"
    script = [sys.executable, "-c", program]
    subprocess.run(
        script, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(EXPERIMENTS.parent)}
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", with_further(COMMANDS, {"language_model", *list(COMMANDS)[2:]}))
def test_command_writes_its_numbers_and_draws_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", [name, "--output", str(tmp_path), *COMMANDS[name]])
    module = sys.modules[name]
    module.main()
    torch.set_num_threads(threads)
    summary = json.loads((tmp_path / f"{name}.json").read_text())
    assert (tmp_path / f"{name}.png").stat().st_size > 5_000
    printed = capsys.readouterr().out
    assert all(table in printed for table in tables(name, summary))


def tables(name: str, summary: dict[str, Any]) -> list[str]:
    """Return every table that the command prints."""
    module = load(f"theory/{name}.py")
    if name == "batch_and_temperature":
        return [module.table(summary, sweep) for sweep in ("batch", "temperature")]
    if name == "toy_categorical":
        return [module.table(summary), module.training_table(summary)]
    return [module.table(summary)]


@pytest.mark.parametrize("name", [*COMMANDS, *EXACT])
def test_page_shows_the_command_the_tables_and_the_figure_of_the_committed_run(name: str) -> None:
    shown = study_page(f"theory/{name}.md")
    for table in tables(name, committed(f"theory/{name}.json")):
        assert table in shown
    assert f"python experiments/theory/{name}.py --output experiments/results/theory\n" in shown
    assert f"]({name}.png)" in shown
    assert (RESULTS / "theory" / f"{name}.png").stat().st_size > 10_000


def test_masking_helps_in_every_committed_run_and_debiasing_fails_at_its_floor() -> None:
    summary = committed("theory/false_negatives.json")

    def accuracy(loss: str, temperature: float) -> list[float]:
        found: list[float] = false_negatives.of_setting(summary, loss, temperature, "nearest_mean")
        assert len(found) == 5
        return found

    for temperature in false_negatives.TEMPERATURES:
        pairs = zip(accuracy("masked", temperature), accuracy("info_nce", temperature), strict=True)
        assert all(masked > plain for masked, plain in pairs)
    pairs = zip(accuracy("debiased_info_nce", 0.1), accuracy("info_nce", 0.1), strict=True)
    assert all(debiased < plain for debiased, plain in pairs)


def test_committed_noise_agrees_with_the_theory_where_the_theory_is_asymptotic() -> None:
    summary = committed("theory/noise_quality.json")
    for share, measured in summary["measured"].items():
        for k in map(str, summary["noise_counts"]):
            mean, error = noise_quality.mean_and_error(measured[k])
            assert mean == pytest.approx(summary["theory"][share][k], abs=2 * error)


def test_committed_best_rates_lie_inside_the_grid() -> None:
    rates = batch_and_temperature.RATES
    for row in committed("theory/batch_and_temperature.json")["rows"]:
        assert rates[0] < row["rate"] < rates[-1]


def test_the_second_measurement_of_updates_stands_on_its_page() -> None:
    for name in ("language_model_speed", "language_model_speed_again"):
        table = language_model_speed.table(committed(f"theory/{name}.json"))
        assert table.strip() in study_page("theory/language_model_speed.md")
