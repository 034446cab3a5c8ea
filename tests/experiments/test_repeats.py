"""What a study trained and what today's code trains, number by number."""

import json
from pathlib import Path

import pytest
import repeats
from checkouts import ROOT
from regime_grids import read_grid

from tests.experiments.loading import EXPERIMENTS, committed, study_page

pytest.importorskip("mujoco")


def test_every_default_that_is_published_is_trained_again() -> None:
    plans = list(repeats.plans())
    found = {(plan.study, plan.arm) for plan in plans}
    assert {(study, arm) for study in repeats.REGIMES for arm in ("baseline", "infonce")} <= found
    assert set(repeats.SWEEPS) <= found
    assert len(found) == len(plans)
    assert not {"stock", "oracle"} & {plan.arm for plan in plans}


def test_a_plan_is_a_run_of_the_study_with_fewer_steps(tmp_path: Path) -> None:
    plan = next(each for each in repeats.plans() if each.arm == "placebo")
    (tmp_path / "grid.toml").write_text(plan.grid)
    grid = read_grid(tmp_path / "grid.toml")
    whole = read_grid(ROOT / "experiments" / "regimes" / f"{plan.study}.toml")
    assert grid.arms == {"placebo": {"positives": "shuffled"}}
    assert grid.hyperparameters == whole.hyperparameters
    assert (grid.algorithm, grid.n_envs, grid.normalize) == (
        *(whole.algorithm, whole.n_envs),
        whole.normalize,
    )
    assert (grid.tasks, grid.n_timesteps) == ((plan.task,), plan.n_steps)


def test_a_command_of_a_sweep_keeps_all_but_its_steps_and_its_folder() -> None:
    plan = next(each for each in repeats.plans() if each.study == "dqn_interval")
    flags = " ".join(plan.command)
    assert f"-n {plan.n_steps} --run-dir OUT/run" in flags
    assert flags.endswith("--hyperparams buffer_size:50000 learning_starts:5000")


def test_returns_and_losses_alone_are_compared(tmp_path: Path) -> None:
    run = {"curve": [None, -3.5], "last_infonce": {"loss": 0.25, "accuracy_k1": 0.5}}
    (tmp_path / "Task-v0-infonce-0.json").write_text(json.dumps(run))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "progress.csv").write_text("time/fps,infonce/loss\n100,\n90,3.4\n")
    then = repeats.written_in(tmp_path)
    assert then == {"curve 1": -3.5, "loss": 0.25, "infonce/loss 1": 3.4}
    now = {"curve 1": -3.0, "loss": 0.25, "new": 1.0}
    expected = {"n_compared": 2, "n_equal": 1, "largest_difference": 0.5}
    assert repeats.compared(then, now) == expected
    with pytest.raises(RuntimeError, match="both trainings wrote, got none"):
        repeats.compared(then, {"new": 1.0})


@pytest.mark.slow
def test_a_training_is_repeated_and_one_that_fails_is_told(tmp_path: Path) -> None:
    plan = next(each for each in repeats.plans() if each.study == "sac_sparse_distractors")
    grid = plan.grid.replace(f"= {plan.n_steps}", "= 150").replace("= 1000", "= 100")
    short = plan._replace(grid=grid)
    then, now = (repeats.trained(short, ROOT, tmp_path / each) for each in ("then", "now"))
    assert repeats.compared(then, now)["largest_difference"] == 0
    with pytest.raises(RuntimeError, match=r"TypeError: .*no argument `positive`"):
        repeats.trained(
            short._replace(grid=short.grid + "positive = 1\n"), ROOT, tmp_path / "wrong"
        )


def test_the_page_holds_what_was_compared() -> None:
    rows = committed("repeats.json")["repeats"]
    assert {(row["study"], row["arm"]) for row in rows} == {
        (plan.study, plan.arm) for plan in repeats.plans()
    }
    assert repeats.table(rows).strip() in study_page("repeats.md")
    differing = {row["study"] for row in rows if row["n_equal"] < row["n_compared"]}
    assert differing == {"sac_sparse_distractors"}
    assert len(rows) - sum(row["study"] in differing for row in rows) == 17
    index = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    assert f"to the last digit in 17 of {len(rows)} arms" in index
    for study, said in (("ppo_selected", "PPO beside noise"), ("sac_sparse", "SAC beside noise")):
        row = next(
            each
            for each in rows
            if each["study"] == f"{study}_distractors" and each["arm"] == "infonce"
        )
        assert f"{said} {row['n_equal']} of {row['n_compared']}" in index
