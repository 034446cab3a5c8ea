from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from rl_infonce.probing import (
    Converged,
    LabelledObservations,
    Probe,
    Split,
    fit_probe,
    make_task,
    probe_features,
)
from rl_infonce.probing.converged import _Problem
from tests.probing import fakes

N_TRAIN, N_ALL = 700, 1000
SPLIT = Split(np.arange(N_TRAIN), np.arange(N_TRAIN, 850), np.arange(850, N_ALL))


def correlated_features(seed: int = 0, n_features: int = 12) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(n_features, n_features)) * np.logspace(0, -2, n_features)
    return (rng.normal(size=(N_ALL, n_features)) @ mixing * 3 + 5).astype(np.float32)


def some_labels(features: npt.NDArray[np.float32], seed: int = 1) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    direction = (features - features.mean(0)) @ rng.normal(size=features.shape[1])
    noisy = direction / direction.std() + rng.normal(size=len(features)) / 2
    return {
        "two": (noisy > 0.3).astype(np.uint8),
        "seven": np.digitize(noisy, np.linspace(-1.5, 1.5, 6)).astype(np.uint8) * 30,
        "forty": np.clip((noisy * 8 + 20), 0, 39).astype(np.uint8) + 100,
    }


FEATURES = correlated_features()
LABELS = some_labels(FEATURES)
_TRAIN = FEATURES[SPLIT.train].astype(np.float64)
INPUTS = (FEATURES - _TRAIN.mean(0)) / _TRAIN.std(0)


def mean_loss(scores: npt.NDArray[np.float64], right: npt.NDArray[np.int64]) -> float:
    """Return the mean cross-entropy of scores [N, C], in nats."""
    highest = scores.max(axis=1)
    log_sums = np.log(np.exp(scores - highest[:, None]).sum(axis=1)) + highest
    return float((log_sums - scores[np.arange(len(scores)), right]).mean())


def objective(probe: Probe, name: str, values: npt.NDArray[Any], penalty: float) -> float:
    """Return the penalised training loss of a fitted classifier, in float64."""
    weight, bias, classes = vars(probe.classifiers[name]).values()
    right = np.searchsorted(classes, values[SPLIT.train])
    scores = INPUTS[SPLIT.train] @ weight.double().numpy().T + bias.double().numpy()
    return mean_loss(scores, right) + penalty / 2 * float(weight.double().square().sum())


def of_scikit_learn(labels: npt.NDArray[Any], penalty: float) -> LogisticRegression:
    x, y = INPUTS[SPLIT.train], labels[SPLIT.train]
    # with two classes it has one weight vector u for two opposite ones, u/2 and -u/2
    factor = 2 if len(np.unique(y)) == 2 else 1
    return LogisticRegression(C=factor / penalty / N_TRAIN, tol=1e-8, max_iter=20_000).fit(x, y)


def oracle(labels: npt.NDArray[Any], penalty: float) -> tuple[float, npt.NDArray[np.float64]]:
    """Return scikit-learn's optimum: the penalised loss and the weights [C, D]."""
    model = of_scikit_learn(labels, penalty)
    weights, bias = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        weights, bias = np.concatenate([-weights, weights]) / 2, np.append(-bias, bias) / 2
    right = np.searchsorted(model.classes_, labels[SPLIT.train])
    loss = mean_loss(INPUTS[SPLIT.train] @ weights.T + bias, right)
    return loss + penalty / 2 * float(np.square(weights).sum()), weights


@pytest.mark.parametrize("penalty", [1e-1, 1e-3])
def test_optimum_is_that_of_scikit_learn(penalty: float) -> None:
    settings = Converged(penalties=(penalty,), tolerance=1e-8)
    probe = fit_probe(FEATURES, LABELS, SPLIT, protocol=settings)
    for name, values in LABELS.items():
        optimum, weights = oracle(values, penalty)
        found = objective(probe, name, values, penalty)
        assert found == pytest.approx(optimum, abs=2e-6)
        ours = probe.classifiers[name].weight.numpy()
        np.testing.assert_allclose(ours - ours.mean(0), weights, atol=0.02 * np.abs(weights).max())


def test_default_tolerance_is_within_a_thousandth_of_the_optimum() -> None:
    probe = fit_probe(FEATURES, LABELS, SPLIT)
    for name, values in LABELS.items():
        penalty = probe.settings["chosen_penalty"][name]
        optimum, _ = oracle(values, penalty)
        found = objective(probe, name, values, penalty)
        assert optimum - 1e-6 < found < optimum + 1e-3


def validation_loss(values: npt.NDArray[Any], penalty: float) -> float:
    """Return the loss of scikit-learn's model over validation frames of known classes."""
    model = of_scikit_learn(values, penalty)
    rows = SPLIT.validation[np.isin(values[SPLIT.validation], model.classes_)]
    log_probabilities = model.predict_log_proba(INPUTS[rows])
    places = np.searchsorted(model.classes_, values[rows])
    return float(-log_probabilities[np.arange(len(rows)), places].mean())


def test_penalty_is_chosen_by_validation_loss_for_each_variable() -> None:
    settings = Converged(path_tolerance=1e-7)
    chosen = fit_probe(FEATURES, LABELS, SPLIT, protocol=settings).settings["chosen_penalty"]
    assert len(set(chosen.values())) > 1
    for name, values in LABELS.items():
        losses = {p: validation_loss(values, p) for p in settings.penalties[:9]}
        assert losses[chosen[name]] == pytest.approx(min(losses.values()), abs=2e-3)


def test_a_first_rise_of_the_validation_loss_does_not_end_the_path() -> None:
    # what tells the classes apart has little variance, and what differs by episode has much
    rng = np.random.default_rng(4)
    episodes = np.repeat(np.arange(50), 100)
    shares = rng.dirichlet(np.ones(4), 50)
    values = np.array([rng.choice(4, p=shares[episode]) for episode in episodes])
    nuisance = rng.normal(size=(50, 16))[episodes] + 0.3 * rng.normal(size=(len(episodes), 16))
    features = nuisance @ rng.normal(size=(16, 64)) + 0.2 * rng.normal(size=(4, 64))[values]
    features = (features + 1e-3 * rng.normal(size=features.shape)).astype(np.float32)
    data = LabelledObservations(features, {"y": values}, episodes)
    task = make_task(data, np.random.default_rng(0))
    losses: list[float] = []
    validation_loss_of = _Problem.validation_loss

    def note(problem: _Problem, variable: int, weights: torch.Tensor) -> float:
        losses.append(validation_loss_of(problem, variable, weights))
        return losses[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Problem, "validation_loss", note)
        scores, _ = probe_features(features, task)
    assert losses[1] > losses[0]
    assert losses[2] > losses[0] > losses[3]
    assert scores.mean.f1_weighted > 0.99


@pytest.mark.parametrize(
    ("penalties", "chosen"),
    [((1.0, 1e-2, 1e-3, 1e-4), 1e-3), ((1.0, 1e-2, 1e-4), 1e-2), ((1e-5, 1e-6), 1e-5)],
)
def test_a_variable_that_validation_cannot_judge_is_named(
    penalties: tuple[float, ...], chosen: float
) -> None:
    labels = {**LABELS, "two": LABELS["two"].copy()}
    labels["two"][SPLIT.validation] = 9  # a room that training has not seen
    words = rf"No validation frame of two has a class .* so the penalty is {chosen:g}, not chosen"
    with pytest.warns(UserWarning, match=words):
        probe = fit_probe(FEATURES, labels, SPLIT, protocol=Converged(penalties=penalties))
    assert probe.settings["chosen_penalty"]["two"] == chosen
    right = probe.predict(FEATURES)["two"][SPLIT.test] == labels["two"][SPLIT.test]
    assert right.mean() > 0.75


def test_variables_do_not_influence_one_another() -> None:
    settings = Converged(tolerance=1e-8, path_tolerance=1e-6)
    together = fit_probe(FEATURES, LABELS, SPLIT, protocol=settings)
    for name, values in LABELS.items():
        alone = fit_probe(FEATURES, {name: values}, SPLIT, protocol=settings)
        penalty = alone.settings["chosen_penalty"][name]
        assert together.settings["chosen_penalty"][name] == penalty
        a, b = (objective(p, name, values, penalty) for p in (together, alone))
        assert a == pytest.approx(b, abs=1e-6)


def test_scale_and_offset_of_features_do_not_matter() -> None:
    factors = 2.0 ** np.random.default_rng(0).integers(-12, 12, FEATURES.shape[1])
    plain = fit_probe(FEATURES, LABELS, SPLIT).predict(FEATURES)
    scaled = (FEATURES * factors).astype(np.float32)
    rescaled = fit_probe(scaled, LABELS, SPLIT).predict(scaled)
    for name in LABELS:
        np.testing.assert_array_equal(plain[name], rescaled[name])


def test_features_far_from_zero_are_read_as_those_around_it() -> None:
    offset = 2**15 + 1 / 3  # whose float32 is off by a hundredth of their spread
    far = (np.random.default_rng(0).normal(offset, 1 / 64, (N_ALL, 8))).astype(np.float32)
    near = (64 * (far.astype(np.float64) - offset)).astype(np.float32)
    labels, settings = some_labels(near), Converged(penalties=(1e-3,), tolerance=1e-7)
    found, expected = (
        fit_probe(each, labels, SPLIT, protocol=settings).predict(each) for each in (far, near)
    )
    for name in labels:
        np.testing.assert_array_equal(found[name], expected[name])


def test_constant_and_dead_dimensions_change_nothing_even_when_they_wake_up() -> None:
    constant = np.full((N_ALL, 2), [0.0, 1e6], np.float32)
    constant[SPLIT.test] += 1e6
    padded = np.concatenate([FEATURES, constant], axis=1)
    plain, with_constant = (fit_probe(f, LABELS, SPLIT) for f in (FEATURES, padded))
    for name in LABELS:
        assert not with_constant.classifiers[name].weight[:, -2:].any()
        np.testing.assert_array_equal(
            plain.predict(FEATURES)[name], with_constant.predict(padded)[name]
        )


def test_only_classes_of_the_training_part_are_predicted() -> None:
    values = LABELS["seven"].copy()
    values[SPLIT.validation[:50]] = 251
    values[SPLIT.test] = 252
    probe = fit_probe(FEATURES, {"x": values}, SPLIT)
    assert set(probe.classifiers["x"].classes.tolist()) == set(values[SPLIT.train].tolist())
    assert set(probe.predict(FEATURES)["x"].tolist()) <= set(values[SPLIT.train].tolist())


def test_a_variable_that_never_changes_is_predicted_as_it_is() -> None:
    labels = {"still": np.full(N_ALL, 9), **LABELS}
    assert set(fit_probe(FEATURES, labels, SPLIT).predict(FEATURES)["still"].tolist()) == {9}


def test_stopping_before_the_optimum_is_said() -> None:
    settings = Converged(max_evaluations=2)
    with (
        pytest.warns(
            UserWarning, match=r"of 3 variables did not converge to 1e-05 nats within `ma"
        ),
        pytest.warns(
            UserWarning, match="3 of 3 variables did not reach the end of their penalties"
        ),
    ):
        fit_probe(FEATURES, LABELS, SPLIT, protocol=settings)


def test_penalties_are_compared_by_exact_products_and_fast_ones_leave_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(products, "fp32_precision"):
        pytest.skip("torch before 2.9")
    before, seen = products.fp32_precision, []
    compared = _Problem.validation_loss

    def noting(*args: Any) -> float:
        seen.append(products.fp32_precision)
        return compared(*args)

    monkeypatch.setattr(_Problem, "validation_loss", noting)
    state = torch.get_rng_state()
    fit_probe(FEATURES, LABELS, SPLIT)
    assert set(seen) == {before}
    assert products.fp32_precision == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalties": ()}, "at least one of `penalties`"),
        ({"penalties": (1e-3, 1e-2)}, "`penalties` to fall"),
        ({"penalties": (1.0, 0.0)}, "`penalties` to be a finite number > 0"),
        ({"tolerance": 0.0}, "`tolerance` to be a finite number > 0"),
        ({"max_evaluations": 0}, "`max_evaluations` to be a finite number >= 1"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Converged(**settings)


def test_penalties_are_a_sequence_and_evaluations_a_count() -> None:
    assert Converged(penalties=[1e-3]).penalties == (1e-3,)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"`penalties` to be a sequence .* got 0.001. Pass a single"
    ):
        Converged(penalties=1e-3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`max_evaluations` to be an integer"):
        Converged(max_evaluations=10.5)  # type: ignore[arg-type]


def test_features_that_vary_by_rounding_alone_are_refused() -> None:
    task = fakes.task()
    features = np.full((len(task.episode_ids), 3), 1000, np.float32)
    features[::2] = np.nextafter(np.float32(1000), np.float32(2000))
    with pytest.raises(ValueError, match="`features` to vary"):
        probe_features(features, task)
