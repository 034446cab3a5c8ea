"""The arms of a sweep beside offline ST-DIM: one real encoder, and the tables' arithmetic."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.runs.run_directory import read_record, write_record
from rl_infonce.scoring.scores_file import read_scores
from rl_infonce.sweeps.grid import read_grid
from rl_infonce.sweeps.sweep_folder import SweepFolder
from tests.experiments.loading import load
from tests.probing.quick import quick_probes
from tests.sweeps.finished_cells import finished
from tests.sweeps.grids import begun_sweep, write_grid

script = load("ppo_arms.py")


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.filterwarnings("ignore:Expected at least 3 games")
@pytest.mark.thorough
def test_an_encoder_is_pretrained_and_probed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quick_probes(monkeypatch)
    probe = {"n_frames": 500, "protocol": ["converged"]}
    grid = read_grid(write_grid(tmp_path / "grid.toml", probe=probe))
    (tmp_path / "offline").mkdir()
    for _ in range(2):
        script.pretrain(grid, tmp_path, tmp_path, "128 frames", 1000)
    assert capsys.readouterr().out.count(f"Pretraining {tmp_path / 'breakout-0'}\n") == 1
    ((_, run),) = script.offline_runs(grid, tmp_path)
    assert (run.game, run.arm, run.seed) == ("breakout", "stdim_offline", 0)
    assert 0 < run.probes["converged"]["trained"]["mean"] < 1
    content = read_scores(tmp_path / "offline" / "breakout-0.json")
    assert content["settings"]["view"] == "agent"
    assert {"random", "majority", "file"} == {each["kind"] for each in content["encoders"].values()}
    monkeypatch.setattr(script, "N_STATES", 50)
    script.spread(grid, tmp_path, tmp_path)
    found = json.loads((tmp_path / "offline_spread.json").read_text())
    (cell,) = found["cells"]
    assert 0 <= cell["untrained"]["dead_share"] < 1 < cell["untrained"]["effective_rank"] < 50
    assert cell["untrained"] != cell["stdim_offline"]
    rank = cell["stdim_offline"]["effective_rank"]
    assert f" | {rank:.0f} | 1 |" in script.spread_table(found)
    monkeypatch.setattr("rl_infonce.scoring.probe_runner.make_task", None)
    (tmp_path / "breakout-0" / "probe" / "scores.md").unlink()
    encoder = tmp_path / "breakout-0" / "encoder.safetensors"
    settings = grid.probe_settings(grid.cells()[0])
    with pytest.raises(RuntimeError, match=r"features of .*encoder\.safetensors to be scored"):
        script.probe("breakout", 0, settings, encoder)


def test_the_spread_is_that_of_all_encoders_or_left_as_it_is(tmp_path: Path) -> None:
    probe = {"n_frames": 500, "protocol": ["converged"]}
    grid = read_grid(write_grid(tmp_path / "grid.toml", probe=probe, seeds=[0, 1]))
    (tmp_path / "breakout-1").mkdir()
    (tmp_path / "breakout-1" / "encoder.safetensors").touch()
    (tmp_path / "offline_spread.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"got none of breakout-0\. Run `pretrain`"):
        script.spread(grid, tmp_path, tmp_path)
    assert (tmp_path / "offline_spread.json").read_text() == "{}"


def sweep(folder: Path, f1: list[float], frames: str = "b", **changes: Any) -> SweepFolder:
    """Return a finished sweep of two arms and two seeds whose features know so much."""
    probe = {"n_frames": 10, "protocol": ["converged"]}
    made = begun_sweep(folder, seeds=[0, 1], probe=probe, **changes)
    for index, each in enumerate(f1):
        finished(made, index, f1=each, frames_hash=frames)
    return made


def test_the_tables_compare_features_of_the_same_frames(tmp_path: Path) -> None:
    output = sweep(tmp_path / "sweep", [0.5, 0.625, 0.5, 0.75]).path
    (output / "offline").mkdir()
    other = sweep(tmp_path / "other", [0.75, 0.5, 0.8125, 0.5])
    for cell in other.grid().cells():
        if cell.arm == "baseline":
            scores = other.run_dir(cell) / "probe" / "scores.json"
            scores.rename(output / "offline" / f"breakout-{cell.seed}.json")
    text = script.table(output)
    assert "| converged, mean F1 | untrained | baseline | infonce | stdim_offline |" in text
    assert "| breakout: mean | 0.250 | 0.500 | 0.688 | 0.781 |" in text
    # by hand: seeds gain 0.125 and 0.25; half width 12.706 * 0.0884 / sqrt(2)
    assert "+0.19 (-0.61 to +0.98)" in text.split("against baseline: mean F1, converged")[1]
    against_untrained = text.split("against untrained: mean F1, converged")[1]
    assert "| stdim_offline | higher | +0.53 (+0.13 to +0.93) |" in against_untrained

    cells = sweep(tmp_path / "frames", [0.5, 0.5], frames="others")
    (output / "offline").rename(cells.path / "offline")
    with pytest.raises(ValueError, match="frames and labels of stdim_offline, got others"):
        script.table(cells.path)


def test_arms_are_compared_with_the_untrained_scores_beside_them(tmp_path: Path) -> None:
    made = sweep(tmp_path / "sweep", [0.5, 0.5, 0.5, 0.5])
    for cell in made.grid().cells():
        if cell.arm == "infonce":
            path = made.run_dir(cell) / "probe" / "scores.json"
            content = json.loads(path.read_text())
            for each in content["cells"]:
                if content["encoders"][each["encoder"]]["kind"] == "random":
                    each["scores"]["mean"]["f1_weighted"] = 0.375
            path.write_text(json.dumps(content))
    tables = script.table(made.path).split("against ")
    found = {table.split(" | ")[0]: table for table in tables}
    assert (
        "| infonce | higher | +0.125 (+0.125 to +0.125) |" in found["untrained: mean F1, converged"]
    )
    same = found["baseline: F1 of the same untrained encoder, converged"]
    assert "| infonce | higher | +0.125 (+0.125 to +0.125) |" in same


def test_the_loss_is_compared_with_its_placebo(tmp_path: Path) -> None:
    arms = ["baseline", "infonce", "placebo"]
    # seed 0, then seed 1; over the placebo infonce gains 0.125 and 0.25
    output = sweep(tmp_path / "sweep", [0.5, 0.625, 0.5, 0.5, 0.75, 0.5], arms=arms).path
    text = script.table(output)
    features = text.split("against placebo: mean F1, converged")[1].split("\n\n")[0]
    assert "| infonce | no detectable difference | +0.19 (-0.61 to +0.98) |" in features
    assert "| placebo |" not in features
    returns = text.split("against placebo: mean return over the budget")[1].split("\n\n")[0]
    assert "| infonce | no detectable difference | +0.000 (+0.000 to +0.000) |" in returns


def test_returns_are_compared_at_equal_wall_clock_too(tmp_path: Path) -> None:
    made = sweep(tmp_path / "sweep", [0.5, 0.5, 0.5, 0.5])
    for cell in made.grid().cells():
        if cell.arm == "infonce":
            record = read_record(made.run_dir(cell))
            slower = [{**session, "wall_seconds": 7.0} for session in record["sessions"]]
            write_record(made.run_dir(cell), {**record, "wall_seconds": 7.0, "sessions": slower})
    text = script.table(made.path)
    heading = "against baseline: mean return over the budget"
    equal_steps, equal_seconds = (part.split("\n\n|")[0] for part in text.split(heading)[1:])
    assert "| infonce | no detectable difference | +0.000" in equal_steps
    assert equal_seconds.startswith(", at equal wall-clock |")
    assert "| infonce | lower | -" in equal_seconds
    assert (
        "takes this many times the seconds of baseline, a median by game: breakout 2.00 (2 pairs)"
        in equal_seconds
    )


def test_a_baseline_that_is_not_probed_yet_is_named(tmp_path: Path) -> None:
    made = sweep(tmp_path / "sweep", [0.5, 0.5, 0.5, 0.5])
    for cell in made.grid().cells():
        if cell.arm == "baseline":
            (made.run_dir(cell) / "probe" / "scores.json").unlink()
    text = script.table(made.path)
    for against, arm in {"baseline": "infonce", "untrained": "baseline"}.items():
        table = text.split(f"against {against}: mean F1, converged")[1].split("\n\n")[0]
        assert f"| {arm} | not compared, see below |" in table
    assert "| infonce | higher | +0.25" in table, "the untrained encoder was probed beside it also"
    assert "infonce: left out breakout, seeds 0, 1: only one arm has a score of it" in text
