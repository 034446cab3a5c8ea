"""InfoNCE on MinAtar: every arm on few steps, and the table's arithmetic."""

import json
from pathlib import Path

import numpy as np
import pytest

from rl_infonce.report.power import smallest_difference
from tests.experiments.loading import load

script = load("minatar_arms.py")


@pytest.mark.slow
@pytest.mark.thorough
def test_every_arm_trains_and_notes_its_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = script.REPORTED._replace(games=("breakout",), seeds=(0,))
    for _ in range(2):
        script.train_all(study, tmp_path, tmp_path, 1024)
    assert len(capsys.readouterr().out.splitlines()) == 3, "the second time there is nothing to do"
    for arm in script.ARMS:
        run = json.loads((tmp_path / f"breakout-{arm}-0.json").read_text())
        steps, returns = zip(*run["episodes"], strict=True)
        assert list(steps) == sorted(steps)
        assert all(step % script.N_ENVS == 0 for step in steps)
        assert 900 < max(steps) <= 1024
        assert min(returns) >= 0
    assert "| breakout | infonce | 1 | missing | missing | missing | missing |" in script.table(
        study, tmp_path, "mean over training"
    )


@pytest.mark.parametrize("game", ["breakout", "space_invaders"])
def test_the_horizon_is_the_same_in_all_games(game: str) -> None:
    env = script.make_env(game, 0)
    for arm in ("infonce", "placebo"):
        extractor = script.make_model(env, script.ARMS[arm], 0).policy.features_extractor
        assert extractor.horizons == (4,)


def test_candidates_differ_in_what_they_are_named_for() -> None:
    env = script.make_env("breakout", 0)
    others = {
        "baseline": 0.0,
        "unclipped_0": 0.0,
        "coef_003": 0.03,
        "coef_001": 0.01,
        "stdim_001": 0.01,
    }
    for name, arm in script.CANDIDATES.items():
        model = script.make_model(env, arm, 0)
        assert model.policy.features_extractor.infonce_coef == others.get(name, 0.1)
        assert model.max_grad_norm == (1e6 if name.startswith("unclipped") else 0.5)
        assert arm.decoupled == (name == "decoupled_01")


def put(folder: Path, arm: str, seed: int, n_steps: int, episodes: list[list[float]]) -> None:
    """Write a run of Breakout whose last episode may end beyond its budget."""
    run = {"game": "breakout", "arm": arm, "seed": seed, "n_steps": n_steps}
    run |= {"n_steps_done": max(n_steps, episodes[-1][0]), "episodes": episodes}
    (folder / f"breakout-{arm}-{seed}.json").write_text(json.dumps(run))


def test_runs_of_other_lengths_are_named(tmp_path: Path) -> None:
    for seed, n_steps in enumerate((100, 100, 50)):
        put(tmp_path, "infonce", seed, n_steps, [[48, 1.0]])
    with pytest.raises(ValueError, match=r"of 100 steps.* got 50 in breakout-infonce-2\.json\."):
        script.scores(script.REPORTED, tmp_path, "mean over training")


def test_cells_become_squares_of_pixels() -> None:
    env = script.CellsAsPixels(script.BaseEnv("breakout"))
    shown, _ = env.reset(seed=0)
    cells = env.unwrapped.game.state()
    assert env.observation_space.contains(shown)
    squares = shown.reshape(4, 10, 4, 10, 4)
    assert np.array_equal(squares.min(axis=(2, 4)), squares.max(axis=(2, 4)))
    assert np.array_equal(squares[:, :, 0, :, 0] == 255, cells.transpose(2, 0, 1))
    assert set(np.unique(shown)) == {0, 255}


def test_the_table_pairs_by_seed(tmp_path: Path) -> None:
    returns = {"baseline": (1.0, 1.0), "infonce": (4.0, 6.0), "placebo": (3.0, 5.0)}
    for arm, values in returns.items():
        for seed, value in enumerate(values):
            put(tmp_path, arm, seed, 100, [[8, value], [104, -99.0]])
    rows = script.table(script.REPORTED, tmp_path, "mean over training").splitlines()
    # +3 and +5: mean 4, standard error 1, t of 1 degree of freedom 12.706
    expected = "5.00 (-7.71 to 17.71) | +4.00 (-8.71 to +16.71) | missing | +1.00 (+1.00 to +1.00)"
    assert f"| breakout | infonce | 2 | {expected} | 1.00 (1.00 to 1.00) |" in rows
    assert "| breakout | baseline | 2 | 1.00 (1.00 to 1.00) | - | - | - | - |" in rows
    assert "| space_invaders | placebo | 0 | missing | missing | missing | - | missing |" in rows


def test_what_could_have_been_found_is_that_of_pairs(tmp_path: Path) -> None:
    # differences 0, 1, 2: their variance is 1; the baseline scatters by 10
    returns = {"baseline": (0, 10, 20), "infonce": (0, 11, 22)}
    for arm, values in returns.items():
        for seed, value in enumerate(values):
            put(tmp_path, arm, seed, 100, [[96, value]])
    (row,) = [
        r
        for r in script.table(script.REPORTED, tmp_path, "last tenth").splitlines()
        if "| infonce | 3" in r
    ]
    assert row.split(" | ")[5] == f"{smallest_difference([1.0], 3):.2f}"
