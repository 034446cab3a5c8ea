"""The study of regimes: its distractors, a small run of it, and its tables beside its results."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_infonce.report.curves import area_under_curve
from tests.experiments.loading import EXPERIMENTS, RESULTS, load, study_page

pytest.importorskip("mujoco")
GRID = """
algorithm = "SAC"
n_timesteps = 120
tasks = ["InvertedPendulumWhite64-v5"]
seeds = [0]
unit = { "InvertedPendulumWhite64-v5" = "InvertedPendulum-v5" }
hyperparameters = { learning_starts = 50, buffer_size = 200, batch_size = 16 }
[arm.stock]
extractor = false
[arm.infonce]
n_pairs = 8
[arm.placebo]
n_pairs = 8
positives = "shuffled"
"""


@pytest.mark.slow
def test_a_small_grid_trains_its_arms_once_and_is_told_in_a_table(tmp_path: Path) -> None:
    regimes = load("regimes.py")
    (tmp_path / "grid.toml").write_text(GRID)
    grid = regimes.read_grid(tmp_path / "grid.toml")
    output = tmp_path / "out"
    output.mkdir()
    regimes.train_all(grid, tmp_path, output)
    files = {path.name: path.read_bytes() for path in output.glob("*.json")}
    of_task = {f"InvertedPendulumWhite64-v5-{arm}-0.json" for arm in grid.arms}
    assert files.keys() == of_task | {"InvertedPendulum-v5-stock-0.json"}
    run = json.loads(files["InvertedPendulumWhite64-v5-infonce-0.json"])
    assert run["last_infonce"]["loss"] > 0
    assert len(run["curve"]) == 100
    assert run["n_episodes"] > 1
    regimes.train_all(grid, tmp_path, output)
    assert {path.name: path.read_bytes() for path in output.glob("*.json")} == files
    table = regimes.table(grid, output)
    assert "| InvertedPendulum-v5 | stock | 1 |" in table
    assert table.count("\n") == 2 + 4


def test_the_area_is_that_of_the_reports() -> None:
    regimes = load("regimes.py")
    rng = np.random.default_rng(0)
    episodes = [(int(end), float(rng.normal())) for end in np.sort(rng.integers(300, 4000, 60))]
    curve = regimes.curve_of(episodes, 4000, 4096)
    assert curve[0] is None
    steps, returns = zip(*episodes, strict=True)
    expected = area_under_curve(steps, returns, 4000, n_steps_done=4096)
    assert regimes.area(curve) == pytest.approx(expected, abs=0.01)
    with pytest.raises(ValueError, match="Expected an episode"):
        regimes.curve_of([], 4000, 4096)


@pytest.mark.parametrize(("kind", "expected"), [("White", 0.0), ("Drifting", np.exp(-1 / 50))])
def test_distractors_have_their_correlation_and_a_seed(kind: str, expected: float) -> None:
    env = load("distractors.py").make("Hopper-v5", kind, 64)
    plain, _ = gym.make("Hopper-v5").reset(seed=3)

    def observe(n: int) -> Any:
        first, _ = env.reset(seed=3)
        return np.array([first, *(env.observation(plain) for _ in range(n))])

    observed = observe(400)
    np.testing.assert_array_equal(observed[:, :11], np.tile(plain.astype(np.float32), (401, 1)))
    noise = observed[:, 11:]
    assert noise.shape == (401, 64)
    assert abs(noise.std() - 1) < 0.25
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1] - expected) < 0.05
    np.testing.assert_array_equal(observe(5), observed[:6])
    assert gym.spec(f"Hopper{kind}64-v5") is not None


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_the_page_holds_the_tables_of_the_results(algorithm: str) -> None:
    regimes = load("regimes.py")
    grid = regimes.read_grid(EXPERIMENTS / "regimes" / f"{algorithm}_screen.toml")
    table = regimes.table(grid, RESULTS / "regimes" / f"{algorithm}_screen")
    assert table in study_page("regimes/README.md") + "\n"
