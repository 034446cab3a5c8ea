from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from rl_infonce.probing import Anand2019, Probe, fit_probe, split_episodes
from rl_infonce.probing.anand2019 import batches, draw_by_episode

SHORT = Anand2019(learning_rate=3e-2, max_epochs=12, patience=3, plateau_patience=1)


# Three variables, from readable to pure noise, on 5 features.
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(900, 5)).astype(np.float32)
LABELS: dict[str, npt.NDArray[Any]] = {
    "easy": (FEATURES[:, 0] > 0) + 200,
    "hard": np.digitize(FEATURES @ np.arange(5), [-6, -2, 2, 6]),
    "noise": RNG.integers(0, 3, 900),
}
EPISODE_IDS = np.repeat(np.arange(30), 30)
SPLIT = split_episodes(EPISODE_IDS, RNG)


def fit(protocol: Anand2019, seed: int) -> Probe:
    ids = EPISODE_IDS
    return fit_probe(FEATURES, LABELS, SPLIT, protocol=protocol, episode_ids=ids, seed=seed)


def published_loop(name: str, settings: Anand2019, seed: int) -> nn.Linear:
    """Train one variable as the published code does, which tests the last weights."""
    untrained = fit(replace(settings, max_epochs=0), seed).classifiers[name]
    probe = nn.Linear(5, 256)
    probe.load_state_dict({"weight": untrained.weight, "bias": untrained.bias})
    optimizer = torch.optim.Adam(probe.parameters(), lr=settings.learning_rate, eps=1e-5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", patience=settings.plateau_patience, factor=0.2, min_lr=1e-5
    )
    inputs, targets = torch.as_tensor(FEATURES), torch.as_tensor(LABELS[name]).long()
    best_accuracy, counter = -1.0, 0
    rng = np.random.default_rng(seed)
    for _ in range(settings.max_epochs):
        for rows in batches(SPLIT.train, EPISODE_IDS, settings, rng):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(probe(inputs[rows]), targets[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rows = np.concatenate(list(batches(SPLIT.validation, EPISODE_IDS, settings, rng)))
        accuracy = float((probe(inputs[rows]).argmax(dim=1) == targets[rows]).double().mean())
        if accuracy > best_accuracy:
            best_accuracy, counter = accuracy, 0
        else:
            counter += 1
            if counter >= settings.patience:
                break
        schedule.step(accuracy)
    return probe


@pytest.mark.parametrize("sampling", ["episodes", "frames"])
def test_one_product_equals_one_run_per_variable(sampling: str) -> None:
    settings = replace(SHORT, sampling=sampling)
    probe = fit(settings, seed=4)
    n_epochs = probe.settings["n_epochs"]
    assert len(set(n_epochs.values())) > 1  # else no variable drops out before another
    for name, found in probe.classifiers.items():
        reference = published_loop(name, settings, seed=4)
        torch.testing.assert_close(found.weight, reference.weight.data, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.bias, reference.bias.data, rtol=1e-4, atol=1e-5)


def test_defaults_are_the_published_ones() -> None:
    assert Anand2019() == Anand2019(
        sampling="episodes",
        resample_test=True,
        learning_rate=3e-4,
        batch_size=64,
        max_epochs=100,
        patience=15,
        plateau_patience=5,
    )


def test_draws_are_uniform_over_episodes_and_then_over_frames() -> None:
    rng = np.random.default_rng(0)
    episode_ids = np.array([5, 5, 5, 5, 2, 9, 9, 2, 7])
    rows = np.array([7, 0, 1, 2, 3, 4, 5, 6] * 1)  # row 8 is not in the part
    drawn = np.concatenate([draw_by_episode(rows, episode_ids, rng) for _ in range(6000)])
    shares = np.bincount(drawn, minlength=9) / len(drawn)
    expected = np.array([1 / 12] * 4 + [1 / 6] * 4 + [0])
    np.testing.assert_allclose(shares, expected, atol=0.01)


def test_frames_visit_every_frame_once_and_drop_the_incomplete_batch() -> None:
    settings = Anand2019(sampling="frames", batch_size=8)
    rows = np.arange(100, 130)
    found = list(batches(rows, None, settings, np.random.default_rng(0)))
    assert [len(batch) for batch in found] == [8, 8, 8]
    assert len(set(np.concatenate(found).tolist())) == 24
    (only,) = batches(rows[:5], None, settings, np.random.default_rng(0))
    assert sorted(only) == [100, 101, 102, 103, 104]


def test_same_seed_same_probe_and_torch_stream_untouched() -> None:
    state = torch.get_rng_state()
    first, again, other = (fit(replace(SHORT, max_epochs=2), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.classifiers["hard"].weight, again.classifiers["hard"].weight)
    assert not torch.equal(first.classifiers["hard"].weight, other.classifiers["hard"].weight)


def test_features_whose_squares_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`features` whose squares float32 holds, .* got .*e\+30"):
        fit_probe(
            FEATURES * np.float32(1e30), LABELS, SPLIT, protocol=SHORT, episode_ids=EPISODE_IDS
        )


def test_drawing_by_episodes_needs_episodes() -> None:
    with pytest.raises(ValueError, match=r"`episode_ids` .*sampling='episodes'"):
        fit_probe(FEATURES, LABELS, SPLIT, protocol="anand2019")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": "frame"}, "Did you mean 'frames'"),
        ({"batch_size": 0}, "`batch_size` to be a finite number >= 1, got 0"),
        ({"learning_rate": 0.0}, "`learning_rate` to be a finite number > 0"),
        ({"patience": 0}, "`patience` to be a finite number >= 1"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Anand2019(**settings)
