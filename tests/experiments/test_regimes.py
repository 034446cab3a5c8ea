"""The study of regimes: its distractors, a small run of it, and its tables beside its results."""

import json
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import control_pixels
import gymnasium as gym
import numpy as np
import pytest
import regime_units
from distractors import make
from gymnasium.envs.registration import EnvSpec, registry
from regime_grids import Grid, cells, read_grid, runs_of
from regime_pages import draw, map_table, table, tasks_table, tried_table
from regime_scores import area, effect, row_of
from regime_training import curve_of, make_model, train_all

from rl_infonce.report.curves import area_under_curve
from rl_infonce.report.statistics import Interval
from tests.experiments.loading import EXPERIMENTS
from tests.experiments.regime_maps import present, words_of, words_of_picture
from tests.sb3.fakes import StampedEnv

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


@pytest.mark.thorough
@pytest.mark.slow
def test_a_small_grid_trains_its_arms_once_and_is_told_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    grid = read_grid(tmp_path / "grid.toml")
    output = tmp_path / "out"
    output.mkdir()
    train_all(grid, tmp_path, output)
    files = {path.name: path.read_bytes() for path in output.glob("*.json")}
    of_task = {f"InvertedPendulumWhite64-v5-{arm}-0.json" for arm in grid.arms}
    assert files.keys() == of_task | {"InvertedPendulum-v5-stock-0.json"}
    run = json.loads(files["InvertedPendulumWhite64-v5-infonce-0.json"])
    assert run["last_infonce"]["loss"] > 0
    assert len(run["curve"]) == 100
    assert run["n_episodes"] > 1
    train_all(grid, tmp_path, output)
    assert {path.name: path.read_bytes() for path in output.glob("*.json")} == files
    page = table(grid, output)
    assert "| InvertedPendulum-v5 | stock | 1 |" in page
    assert page.count("\n") == 2 + 4


def test_an_arm_without_noise_has_the_inputs_of_the_task_alone(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    grid = read_grid(tmp_path / "grid.toml")
    (task,) = grid.tasks
    n_inputs = [
        make_model(grid, task, {"infonce_coef": 0.0, **arm}, 0).observation_space.shape
        for arm in ({}, {"without_noise": True})
    ]
    assert n_inputs == [(4 + 64,), (4,)]


def stamped(**_kwargs: Any) -> gym.Env[Any, Any]:
    """Return an environment of images."""
    return StampedEnv(lengths=(12, 20), continuous=True)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_grid_of_images_names_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry, "Stamped-v0", EnvSpec("Stamped-v0", entry_point=stamped))
    head = GRID.partition("[arm")[0].replace("InvertedPendulumWhite64-v5", "Stamped-v0")
    lines = [line for line in head.splitlines() if not line.startswith("unit")]
    arms = ["[arm.infonce]", "n_pairs = 8", "[arm.augment_only]"]
    arms += ["infonce_coef = 0.0", "augment_observations = true"]
    (tmp_path / "grid.toml").write_text("\n".join(['policy = "CnnPolicy"', *lines, *arms]))
    grid = read_grid(tmp_path / "grid.toml")
    train_all(grid, tmp_path, tmp_path)
    loss, augmented = (
        json.loads((tmp_path / f"Stamped-v0-{arm}-0.json").read_text()) for arm in grid.arms
    )
    assert loss["last_infonce"]["loss"] > 0
    assert not loss["loss"]["isolated"]
    assert not augmented["last_infonce"]


@pytest.mark.skipif(find_spec("dm_control") is None, reason="needs dm_control")
@pytest.mark.parametrize("task", control_pixels.TASKS)
def test_control_is_seen_as_pictures(task: str) -> None:
    env = gym.make(task)
    assert env.observation_space.shape == (4, 84, 84)
    observed, _ = env.reset(seed=0)
    after, *_ = env.step(env.action_space.sample())
    assert (observed != after).any()
    name, _, _ = control_pixels.TASKS[task].partition("/")[2].rpartition("-")
    assert task == "".join(part.title() for part in name.split("-")) + "Pixels-v0"


def test_the_area_is_that_of_the_reports() -> None:
    rng = np.random.default_rng(0)
    episodes = [(int(end), float(rng.normal())) for end in np.sort(rng.integers(300, 4000, 60))]
    curve = curve_of(episodes, 4000, 4096)
    assert curve[0] is None
    steps, returns = zip(*episodes, strict=True)
    expected = area_under_curve(steps, returns, 4000, n_steps_done=4096)
    assert area(curve) == pytest.approx(expected, abs=0.01)
    with pytest.raises(ValueError, match="Expected an episode"):
        curve_of([], 4000, 4096)


@pytest.mark.parametrize(("kind", "expected"), [("White", 0.0), ("Drifting", np.exp(-1 / 50))])
def test_distractors_have_their_correlation_and_a_seed(kind: str, expected: float) -> None:
    env = make("Hopper-v5", kind, 64)
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


@pytest.mark.parametrize("task", ["CartPole-v1", "InvertedPendulumWhite128-v5"])
def test_the_file_of_random_returns_says_what_a_random_agent_earns(task: str) -> None:
    known = json.loads(regime_units.RANDOM_RETURNS.read_text())
    assert (
        known[task]
        == regime_units.random_return(task)
        == pytest.approx(regime_units.played_at_random(task))
    )


@pytest.mark.parametrize("line", ["normalise = true", "[hyperparameter]", "[train]"])
def test_what_a_grid_does_not_know_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(f"{line}\n{GRID}" if "=" in line else f"{GRID}\n{line}\n")
    with pytest.raises(
        ValueError, match=rf"Expected the keys .* got also .*{line.split()[0][1:-1]}"
    ):
        read_grid(path)


def test_a_setting_that_later_runs_have_and_former_ones_not_is_no_other_loss(
    tmp_path: Path,
) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    grid = read_grid(tmp_path / "grid.toml")._replace(seeds=(0, 1))
    (task,), (arm, *_) = grid.tasks, grid.arms
    usual = {"n_pairs": 256, "isolated": True}
    losses = [{**usual, "select_inputs": None, "former": 1}, usual]
    for seed, loss in enumerate(losses):
        run = {"n_steps": grid.n_timesteps, "settings": grid.arms[arm], "loss": loss}
        (tmp_path / f"{task}-{arm}-{seed}.json").write_text(json.dumps(run))
    assert len(runs_of(grid, tmp_path)[task, arm]) == 2
    run["loss"] = {**usual, "select_inputs": False}
    (tmp_path / f"{task}-{arm}-1.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match="to have the loss of the other seeds, got another"):
        runs_of(grid, tmp_path)


def test_every_task_of_a_grid_has_a_random_return() -> None:
    known = json.loads(regime_units.RANDOM_RETURNS.read_text())
    for path in sorted((EXPERIMENTS / "regimes").glob("*.toml")):
        grid = read_grid(path)
        missing = {*grid.tasks, *grid.unit.values()} - set(known)
        assert not missing, f"Run `python experiments/regimes.py random {path}`: {missing}"


def test_random_returns_are_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regime_units, "RANDOM_RETURNS", tmp_path / "random.json")
    monkeypatch.setattr(regime_units, "played_at_random", {"a": 1.5, "b": 2.0}.__getitem__)
    (tmp_path / "random.json").write_text('{"b": -1.0}')
    assert [regime_units.random_return(task) for task in "ab"] == [1.5, -1.0]
    grid = read_grid(EXPERIMENTS / "regimes" / "ppo_tasks.toml")
    regime_units.note_random_returns([grid._replace(tasks=("a",), unit={"a": "b"})])
    assert json.loads((tmp_path / "random.json").read_text()) == {"a": 1.5, "b": -1.0}


def test_forms_are_counted_once_and_only_where_a_loss_was_trained(tmp_path: Path) -> None:
    arms = {
        "stock": "extractor = false",
        "baseline": "infonce_coef = 0.0",
        "placebo": 'positives = "shuffled"',
        "infonce": "",
        "wide": "features_dim = 512",
    }
    grids = {}
    for name, task in (("first", "HopperWhite128-v5"), ("second", "HalfCheetahDrifting128-v5")):
        lines = [
            f'algorithm = "PPO"\nn_timesteps = 9\ntasks = ["{task}", "Hopper-v5"]\nseeds = [0]'
        ]
        lines += [f"[arm.{arm}]\n{setting}" for arm, setting in arms.items()]
        (tmp_path / f"{name}.toml").write_text("\n".join(lines))
        grids[name] = grid = read_grid(tmp_path / f"{name}.toml")
        (tmp_path / name).mkdir()
        for arm in arms:
            run = {"n_steps": 9, "settings": grid.arms[arm], "curve": [1.0] * 100}
            for trained in (task, "Hopper-v5") if arm != "wide" else (task,):
                (tmp_path / name / f"{trained}-{arm}-0.json").write_text(json.dumps(run))
    assert tried_table(grids, tmp_path).splitlines()[2:] == [
        "| PPO | no noise | 1 | Hopper-v5 |",
        "| PPO | noise that drifts | 2 | HalfCheetahDrifting128-v5 |",
        "| PPO | white noise | 2 | HopperWhite128-v5 |",
    ]


def confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int = 6, head: str = ""
) -> tuple[Grid, Path]:
    """Write the runs of a study in which the loss doubles scores, and return grid and folder."""
    monkeypatch.setattr(regime_units, "random_return", lambda task: 0.0)
    arms = {"stock": 1.0, "baseline": 1.1, "placebo": 0.9, "infonce": 2.2}
    lines = [
        f'algorithm = "SAC"\nn_timesteps = 100\nregime = "SAC, easy"\n{head}',
        f'tasks = ["a", "b"]\nseeds = {list(range(seeds))}\nunit = {{ a = "c", b = "c" }}',
        *(f"[arm.{arm}]\nextractor = {str(arm != 'stock').lower()}" for arm in arms),
    ]
    (tmp_path / "grid.toml").write_text("\n".join(lines))
    grid = read_grid(tmp_path / "grid.toml")
    output = tmp_path / "grid"
    output.mkdir()
    rng = np.random.default_rng(0)
    for seed, task, arm in cells(grid):
        luck = float(np.random.default_rng(seed).uniform(0, 0.2))
        score = 1.0 if task == "c" else arms[arm] * (1 + luck)
        if arm in ("stock", "placebo") and task != "c":
            score += rng.normal(scale=0.01)
        run = {
            "n_steps": 100,
            "settings": grid.arms[arm],
            "curve": np.linspace(0, 20 * score, 100).tolist(),  # its mean is ten scores
            "processor_seconds": 2.0 if arm == "infonce" else 1.0,
        }
        (output / f"{task}-{arm}-{seed}.json").write_text(json.dumps(run))
    return grid, output


def test_the_map_tells_and_draws_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    grid, output = confirmed(tmp_path, monkeypatch)
    row = row_of(grid, output)
    assert row.n_seeds == 6
    assert row.ratio == pytest.approx((2.0, 2.0, 2.0))  # each run of the loss has twice its partner
    luck = [np.random.default_rng(seed).uniform(0, 0.2) for seed in range(6)]
    over_baseline = present(row.over["baseline"]).mean
    assert over_baseline == pytest.approx(1.1 * (1 + np.mean(luck)))
    assert present(row.differences["placebo"]).high < 0 < present(row.over["placebo"]).low
    text = map_table([row])
    assert "| SAC, easy | a, b | 6 |" in text
    assert "| 2.00 (2.00 to 2.00) | " in text
    assert text.endswith(" | helps |\n")
    # In half of the steps a rising curve has a little less than half of its mean.
    half = np.mean(np.linspace(0, 2, 100)[:50])
    assert present(row.at_equal_time).mean == pytest.approx(
        (2.2 * half - 1.1) * (1 + np.mean(luck))
    )
    assert row.on_tasks["a"].cost == 2.0
    assert present(row.on_tasks["b"].over_baseline).mean == pytest.approx(over_baseline)
    (_, _, first, second) = tasks_table([row]).splitlines()
    assert first.startswith("| SAC, easy | a | +")
    assert " | -0.01" in first, "the loss takes all its gain at twice the time"
    assert second.endswith(" | 2.00 |")
    draw([row], tmp_path / "map.svg")
    assert words_of(tmp_path / "map.svg") == words_of_picture([row])


def test_a_study_of_few_runs_has_no_interval_on_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, output = confirmed(tmp_path, monkeypatch, seeds=4)
    row = row_of(grid, output)
    assert row.over["baseline"] is row.ratio is None
    assert "| 0 | missing | missing | missing | - | missing | missing |" in map_table([row])


def test_a_task_without_enough_runs_leaves_no_interval_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, output = confirmed(tmp_path, monkeypatch)
    for seed in (0, 1):
        (output / f"b-baseline-{seed}.json").unlink()
    row = row_of(grid, output)
    assert row.over["baseline"] is row.ratio is row.at_equal_time is None
    assert present(row.over["placebo"]).low > 0
    assert present(row.on_tasks["a"].over_baseline).low > 0


def test_a_task_on_which_settings_were_chosen_is_in_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, output = confirmed(tmp_path, monkeypatch, head='tuned_on = ["b"]')
    row = row_of(grid, output)
    assert "| SAC, easy | a | 6 |" in map_table([row])
    assert row.over["baseline"] == row.on_tasks["a"].over_baseline
    assert "| SAC, easy | b, tuned on | +" in tasks_table([row])
    told = "{:+.3f} ({:+.3f} to {:+.3f})".format(*present(row.over["baseline"])[:3])
    assert f"| infonce | baseline | {told} |" in table(grid, output)


def test_at_equal_time_what_the_loss_costs_is_as_uncertain_as_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, output = confirmed(tmp_path, monkeypatch)
    certain = present(row_of(grid, output).at_equal_time)
    for task, seed in product(grid.tasks, range(6)):
        path = output / f"{task}-infonce-{seed}.json"
        run = json.loads(path.read_text())
        path.write_text(json.dumps(run | {"processor_seconds": 1.2 + 0.32 * seed}))
    uncertain = present(row_of(grid, output).at_equal_time)
    assert uncertain.mean == pytest.approx(certain.mean, abs=0.02)  # their median is 2.0
    assert uncertain.low < certain.low - 0.1
    assert certain.high + 0.1 < uncertain.high


def test_runs_of_another_loss_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, output = confirmed(tmp_path, monkeypatch)
    for seed, n_pairs in ((2, 256), (4, 32)):
        path = output / f"a-infonce-{seed}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"loss": {"n_pairs": n_pairs}}))
    with pytest.raises(ValueError, match=r"a-infonce-4.json to have the loss of the other seeds"):
        runs_of(grid, output)


@pytest.mark.parametrize(
    ("over_baseline", "over_placebo", "expected"),
    [
        ((0.2, 0.1, 0.3), (0.2, 0.1, 0.3), "helps"),
        ((0.2, 0.1, 0.3), (0.2, -0.1, 0.5), "undecided"),
        ((0.2, -0.1, 0.5), (0.2, 0.1, 0.3), "undecided"),
        ((-0.2, -0.3, -0.1), (0.2, 0.1, 0.3), "costs"),
    ],
)
def test_a_loss_helps_that_beats_baseline_and_placebo(
    over_baseline: tuple[float, ...], over_placebo: tuple[float, ...], expected: str
) -> None:
    found = effect(Interval(*over_baseline), Interval(*over_placebo))
    assert found == expected
