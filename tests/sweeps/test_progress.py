"""What a cell's folder says of it."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.cli import make_parser
from rl_infonce.cli.train import given_settings
from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.scoring.defaults import PROTOCOLS
from rl_infonce.scoring.scores_file import ProbeKey, ScoresFile
from rl_infonce.sweeps.commands import probe_command, train_command
from rl_infonce.sweeps.display import counts, live_table
from rl_infonce.sweeps.grid import make_grid
from rl_infonce.sweeps.progress import CellState, cell_state, last_complaint
from rl_infonce.training.plan import new_run
from tests.attacks.formats import SCORES_SETTINGS
from tests.sweeps.grids import GRID

PROBED = make_grid({**GRID, "probe": {}})
CELL = PROBED.cells()[0]
TRAINED = {"status": "done", "n_timesteps_done": 128, "wall_seconds": 2.5}


def record(folder: Path, **more: Any) -> Path:
    folder.mkdir()
    write_record(folder, {**new_record({"game": CELL.game}, 0), **more})
    return folder


@pytest.mark.parametrize(
    "more",
    [
        {"n_timesteps_done": "abc"},
        {"n_timesteps_done": None},
        {"wall_seconds": 10**400},
        {"wall_seconds": "3"},
        {"versions": ["torch"]},
        {"sessions": ["abc"]},
        {"n_timesteps_done": 2**63},
        {"sessions": [{"first_step": "3"}]},
        {"sessions": [{"last_step": 3.5}]},
        {"sessions": [{"last_step": None}]},
        {"sessions": [{"saved_step": "3"}]},
    ],
)
def test_a_record_of_other_kinds_of_values_is_failed_with_the_reason(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    state = cell_state(CELL, make_grid(GRID), record(tmp_path / "run", **more))
    assert state.status == "failed"
    assert f"a record of a run in {tmp_path / 'run' / 'run.json'}" in state.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"game": "pong"}, "game 'pong' instead of 'breakout'"),
        ({"algo": "dqn"}, "algo 'dqn' instead of 'ppo'"),
        ({"seed": 7}, "seed 7 instead of 0"),
        ({"n_timesteps": 256}, "n_timesteps 256 instead of 128"),
        ({"pretrained": "x"}, "pretrained 'x' instead of None"),
        ({"horizons": [4]}, "horizons [4] instead of None"),
        ({"infonce_coef": 0.7}, "infonce_coef 0.7 instead of 0.5"),
        ({"preset": "atc"}, "preset 'atc' instead of None"),
        ({"n_pairs": None}, "n_pairs None instead of 8"),
        ({"n_envs": 8}, "n_envs 8 instead of 1"),
        ({"freeze_encoder": True}, "freeze_encoder True instead of False"),
        ({"decoupled": True}, "decoupled True instead of None"),
        ({"hyperparams": ["n_steps:32"]}, "hyperparameters {'n_steps': 32} instead of"),
        ({"hyperparams": None}, "hyperparameters {} instead of {'n_steps': 64}"),
        ({"hyperparams": ["n_steps"]}, "Expected `--hyperparams` as name:value, got 'n_steps'"),
        ({}, ""),
        ({"device": "cuda", "save_freq": 3, "on_nan": "skip"}, ""),
    ],
)
def test_a_run_of_other_settings_is_not_the_cells(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    grid = make_grid({**GRID, "arms": ["mine"], "arm": {"mine": {"infonce_coef": 0.5}}})
    (cell,) = grid.cells()
    parsed = make_parser().parse_args(train_command(cell, grid, tmp_path / "run"))
    told = new_run(given_settings(parsed))[0]["arguments"]
    seed = changes.pop("seed", told.pop("seed"))
    (tmp_path / "run").mkdir()
    write_record(tmp_path / "run", {**new_record({**told, **changes}, seed), **TRAINED})
    state = cell_state(cell, grid, tmp_path / "run")
    assert state.status == ("failed" if words else "done")
    assert words in state.reason


@pytest.mark.parametrize("word", ['train_freq:[1, "episode"]', "train_freq:(1, 'episode')"])
def test_updates_may_come_at_the_ends_of_episodes(tmp_path: Path, word: str) -> None:
    train = {"hyperparameters": {"dqn": {"train_freq": [1, "episode"]}}}
    grid = make_grid({**GRID, "algos": ["dqn"], "arms": ["infonce"], "train": train})
    (cell,) = grid.cells()
    parsed = make_parser().parse_args(train_command(cell, grid, tmp_path / "run"))
    assert parse_hyperparameters(parsed.hyperparams) == {"train_freq": [1, "episode"]}
    (tmp_path / "run").mkdir()
    arguments = {"algo": "dqn", "hyperparams": [word]}
    write_record(tmp_path / "run", {**new_record(arguments, 0), **TRAINED})
    assert cell_state(cell, grid, tmp_path / "run") == CellState("done", 128, 2.5)


def test_a_list_of_one_is_what_a_study_searches(tmp_path: Path) -> None:
    (cell,) = make_grid({**GRID, "arms": ["infonce"]}).cells()
    cell = replace(cell, settings={**cell.settings, "horizons": 4})
    (tmp_path / "run").mkdir()
    for horizons, status in (([4], "done"), ([5], "failed"), ([4, 4], "failed")):
        write_record(tmp_path / "run", {**new_record({"horizons": horizons}, 0), **TRAINED})
        assert cell_state(cell, make_grid(GRID), tmp_path / "run").status == status


def test_a_session_without_a_checkpoint_has_saved_no_step(tmp_path: Path) -> None:
    session = {"first_step": 0, "last_step": 64, "saved_step": None, "wall_seconds": 1.0}
    state = cell_state(CELL, make_grid(GRID), record(tmp_path / "run", sessions=[session]))
    assert state == CellState("begun")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, CellState("begun")),
        ({"status": "interrupted", "n_timesteps_done": 64}, CellState("begun", 64)),
        ({"status": "failed", "n_timesteps_done": 64}, CellState("failed", 64)),
        ({"status": "done", "n_timesteps_done": 64}, CellState("begun", 64)),
        (TRAINED, CellState("done", 128, 2.5)),
    ],
)
def test_the_record_says_where_a_cell_stands(
    tmp_path: Path, more: dict[str, Any], expected: CellState
) -> None:
    grid = make_grid(GRID)
    assert cell_state(CELL, grid, tmp_path / "run") == CellState("missing")
    assert cell_state(CELL, grid, record(tmp_path / "run", **more)) == expected


KINDS = ("file", "random", "majority")


def scored(
    run_dir: Path, *probes: tuple[str, str, int, str], named: tuple[str, ...] = KINDS
) -> None:
    """Write scores of encoder, protocol and seed, each with its status."""
    file = ScoresFile(run_dir / "probe", SCORES_SETTINGS)
    for kind in named:
        file.replace_encoder(kind, {"name": kind, "kind": kind, "description": ""})
    figures = {"f1_weighted": 0.5, "f1_macro": 0.5, "accuracy": 0.5}
    scores = {
        **{"mean": figures, "intervals": {"mean": [0.1, 0.9]}, "categories": {}},
        **{"variables": {}, "not_probed": {}},
    }
    for encoder, protocol, seed, status in probes:
        more = {"scores": scores} if status == "done" else {"error": "ValueError: no"}
        file.put(ProbeKey("breakout", encoder, seed, protocol), status=status, **more)


def test_a_cell_is_done_when_all_its_features_are_probed(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", **TRAINED)
    assert cell_state(CELL, PROBED, run_dir).status == "trained"
    scored(run_dir, *[(kind, "converged", 0, "done") for kind in KINDS])
    scored(run_dir, *[(kind, "anand2019", 0, "done") for kind in KINDS[1:]])
    scored(run_dir, ("file", "anand2019", 0, "failed"))
    assert cell_state(CELL, PROBED, run_dir).status == "trained", "a probe failed"
    scored(run_dir, ("file", "anand2019", 0, "done"))
    assert cell_state(CELL, PROBED, run_dir).status == "done"
    more = make_grid({**GRID, "probe": {"protocol": ["converged"], "seeds": [0, 3]}})
    assert cell_state(CELL, more, run_dir).status == "trained", "seed 3 is missing"
    scored(run_dir, *[(kind, "converged", 3, "done") for kind in KINDS])
    assert cell_state(CELL, more, run_dir).status == "done"
    (run_dir / "probe" / "scores.json").write_text("{")
    assert cell_state(CELL, PROBED, run_dir).status == "trained"


def test_a_cell_that_died_while_what_stands_beside_was_probed_is_not_done(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run", **TRAINED)
    own = make_grid({**GRID, "probe": {"protocol": ["converged"]}})
    for kind, ended in (("file", "done"), ("random", "done"), ("majority", "failed")):
        scored(run_dir, (kind, "converged", 0, ended))
        assert cell_state(CELL, own, run_dir).status == "trained"
    scored(run_dir, ("majority", "converged", 0, "done"))
    assert cell_state(CELL, own, run_dir).status == "done"
    others = record(tmp_path / "others", **TRAINED)
    scored(others, named=())
    assert cell_state(CELL, own, others).status == "trained", "of no encoder"
    scored(others, ("random", "converged", 0, "done"), named=("random",))
    assert cell_state(CELL, own, others).status == "trained", "its own features are missing"


def test_what_is_probed_by_default_is_what_the_command_probes() -> None:
    grid = make_grid({**GRID, "probe": {}, "seeds": [5, 6]})
    for cell in grid.cells():
        parsed = make_parser().parse_args(probe_command(cell, grid, Path("run")))
        asked = {(protocol, seed) for protocol in parsed.protocol for seed in parsed.seeds}
        assert grid.probes(cell) == asked == {(p, cell.seed) for p in PROTOCOLS}
    assert make_grid(GRID).probes(CELL) == set()


def test_a_training_cell_is_as_far_as_its_last_whole_row(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run")
    (run_dir / "progress.csv").write_text("step,loss\n32,1.5\n64,1.25\n9")
    assert cell_state(CELL, PROBED, run_dir) == CellState("begun", 64)


def test_why_a_run_failed_is_its_last_complaint(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert last_complaint(log) == ""
    why = "rl-infonce train: Expected finite gradients, got NaN."
    log.write_text(f"Training: PPO\n{why}\nrl-infonce train: The run failed; it is in model.zip\n")
    assert last_complaint(log) == why


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run_dir = record(tmp_path / "run")
    (run_dir / "run.json").write_text("{")
    state = cell_state(CELL, PROBED, run_dir)
    assert state.status == "failed"
    assert str(run_dir / "run.json") in state.reason


def test_states_are_counted_and_shown() -> None:
    from rich.console import Console

    states = {f"cell-{i}": CellState("begun", i) for i in range(20)}
    states |= {"a": CellState("done"), "b": CellState("missing"), "c": CellState("missing")}
    assert counts(states) == "1 done, 20 begun, 2 missing"
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(live_table(states, 1000))
    text = console.export_text()
    assert "cell-15" in text
    assert "15 of 1,000" in text
    assert "cell-16" not in text
    assert "... and 4 more" in text
