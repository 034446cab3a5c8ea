import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import median_absolute_error, r2_score

from rl_infonce.probing import Split, mean_position_scores, ridge_probe

SPLIT = Split(np.arange(300), np.arange(300, 400), np.arange(400, 600))


_RNG, _SCALES = np.random.default_rng(0), np.logspace(-3, 3, 9)
_PLAIN = _RNG.normal(size=(600, 9)) * _SCALES + 4
POSITION = 80 + (_PLAIN / _SCALES) @ _RNG.normal(size=9) * 10
FEATURES = _PLAIN.astype(np.float32)


def test_a_linear_position_is_read_to_a_fraction_of_a_pixel() -> None:
    scores, readings = ridge_probe(FEATURES, {"ball_x": POSITION}, SPLIT)
    assert scores["ball_x"].r2 > 0.9999
    assert scores["ball_x"].median_absolute_error < 0.1
    np.testing.assert_allclose(readings["ball_x"], POSITION[SPLIT.test], atol=0.5)


def test_scores_and_readings_equal_scikit_learn() -> None:
    noisy = POSITION + np.random.default_rng(1).normal(size=600) * 20
    penalties = (1e-3, 1e-1, 10.0)
    scores, readings = ridge_probe(FEATURES, {"x": noisy}, SPLIT, penalties=penalties)
    train = FEATURES[SPLIT.train].astype(np.float64)
    inputs = (FEATURES - train.mean(0)) / train.std(0)
    models = [Ridge(alpha=p * 300).fit(inputs[SPLIT.train], noisy[SPLIT.train]) for p in penalties]
    errors = [
        np.square(m.predict(inputs[SPLIT.validation]) - noisy[SPLIT.validation]).mean()
        for m in models
    ]
    best = int(np.argmin(errors))
    expected = models[best].predict(inputs[SPLIT.test])
    np.testing.assert_allclose(readings["x"], expected, rtol=1e-6)
    found = scores["x"]
    assert found.penalty == penalties[best]
    assert found.r2 == pytest.approx(r2_score(noisy[SPLIT.test], expected))
    assert found.median_absolute_error == pytest.approx(
        median_absolute_error(noisy[SPLIT.test], expected)
    )


def test_the_floor_is_the_training_mean() -> None:
    split = Split(np.arange(4), np.arange(4, 6), np.arange(6, 10))
    position = np.array([1.0, 3.0, np.nan, 8.0, 0.0, 0.0, 2.0, np.nan, 5.0, 9.0])  # mean 4
    score = mean_position_scores({"x": position}, split)["x"]
    assert score.median_absolute_error == 2  # of 2, 1 and 5
    assert score.r2 == pytest.approx(
        1 - (4 + 1 + 25) / np.square(np.array([2, 5, 9]) - 16 / 3).sum()
    )
    assert score.r2 < 0  # which the mean of the test part would have
    assert score.penalty == np.inf


def test_noise_reads_nothing() -> None:
    scores, _ = ridge_probe(FEATURES, {"x": np.random.default_rng(1).normal(size=600)}, SPLIT)
    assert -0.1 < scores["x"].r2 < 0.05


def test_frames_without_a_position_are_left_out() -> None:
    hidden = np.random.default_rng(0).random(600) < 0.3
    holes = np.where(hidden, np.nan, POSITION)
    scores, readings = ridge_probe(FEATURES, {"full": POSITION, "holes": holes}, SPLIT)
    kept = Split(*(rows[~hidden[rows]] for rows in SPLIT))
    alone, _ = ridge_probe(FEATURES, {"x": POSITION}, kept)
    assert scores["holes"] == alone["x"]
    assert len(readings["holes"]) == 200
    assert np.isfinite(readings["holes"]).all()


def test_a_position_that_does_not_move_has_no_r2() -> None:
    position = POSITION.copy()
    position[SPLIT.test] = 7.0
    assert np.isnan(ridge_probe(FEATURES, {"x": position}, SPLIT)[0]["x"].r2)
    position[SPLIT.test] = 80.3  # the mean of 200 of them is another number
    assert np.isnan(mean_position_scores({"x": position}, SPLIT)["x"].r2)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"`positions\['x'\]` of shape \[600\], got \(5,\)"):
        ridge_probe(FEATURES, {"x": POSITION[:5]}, SPLIT)
    with pytest.raises(ValueError, match=r"`penalties` to be a finite number > 0, got 0\.0"):
        ridge_probe(FEATURES, {"x": POSITION}, SPLIT, penalties=(0.0,))
    with pytest.raises(ValueError, match="at least one of `penalties`, got none"):
        ridge_probe(FEATURES, {"x": POSITION}, SPLIT, penalties=())
    with pytest.raises(ValueError, match=r"`positions\['x'\]` for 600 frames or more.*got 5\."):
        mean_position_scores({"x": POSITION[:5]}, SPLIT)
    with pytest.raises(ValueError, match=r"`positions\['y'\]` of shape \[600\], got \(601,\)"):
        mean_position_scores({"x": POSITION, "y": np.zeros(601)}, SPLIT)
    with pytest.raises(ValueError, match=r"`positions\['x'\]` of shape \[K\], got \(600, 1\)"):
        mean_position_scores({"x": POSITION[:, None]}, SPLIT)
    position = POSITION.copy()
    position[SPLIT.validation] = np.nan
    with pytest.raises(ValueError, match=r"`positions\['x'\]` in some validation frame"):
        ridge_probe(FEATURES, {"x": position}, SPLIT)
