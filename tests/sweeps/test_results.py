"""A report reads of a sweep's cells what their files say, and merges nothing that differs."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_infonce.cli import main, make_parser
from rl_infonce.files import durable
from rl_infonce.runs.run_directory import new_record, read_record, write_record
from rl_infonce.scoring.scores_file import ProbeKey, ScoresFile
from rl_infonce.sweeps.results import _of_other_losses, read_results
from rl_infonce.sweeps.sweep_folder import SweepFolder
from tests.attacks.formats import SCORES_SETTINGS
from tests.cli.running import refusal
from tests.full_disk import no_room
from tests.sweeps.finished_cells import finished
from tests.sweeps.grids import begun_sweep


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    probe = {"n_frames": 10, "protocol": ["converged"]}
    return begun_sweep(tmp_path / "sweep", seeds=[0, 1], probe=probe)


def test_finished_cells_are_read_and_others_named(folder: SweepFolder) -> None:
    finished(folder, 0)
    results = read_results(folder)
    (run,) = results.runs
    assert (run.game, run.algo, run.arm, run.seed) == ("breakout", "ppo", "baseline", 0)
    assert (run.n_steps, run.n_steps_done, run.seconds) == (128, 130, 3.5)
    np.testing.assert_array_equal(run.steps, [40, 40, 100, 129])
    np.testing.assert_array_equal(run.returns, [1.0, 2.5, 3.0, 9.0])
    steps, values = run.curves["infonce/grad_ratio"]
    assert (steps.tolist(), values.tolist()) == ([128], [0.5])
    steps, values = run.curves["infonce/mi_lower_bound"]
    assert (steps.tolist(), values.tolist()) == ([64, 128], [1.5, 2.0])
    assert run.probes == {
        "converged": {
            "trained": {"mean": 0.5, "agent_localization": 0.5},
            "untrained": {"mean": 0.25, "agent_localization": 0.5},
        }
    }
    assert run.command.startswith("rl-infonce train --game breakout --algo ppo --seed 0")
    assert "processors" in run.machine
    assert results.missing == [
        "breakout-ppo-infonce-0 (missing)",
        "breakout-ppo-baseline-1 (missing)",
        "breakout-ppo-infonce-1 (missing)",
    ]


def test_cells_that_the_grid_lacks_are_named_and_trials_are_not(tmp_path: Path) -> None:
    made = begun_sweep(tmp_path / "sweep", seeds=[0, 1])
    for index in (0, 2):
        finished(made, index)
    trial = replace(made.grid(), seeds=(0,), settings={"trial_000": {}})
    made.note_cells(trial)
    (cell,) = trial.cells()
    made.run_dir(cell).mkdir(parents=True)
    write_record(made.run_dir(cell), new_record({}, 0))
    fewer = replace(made.grid(), seeds=(0,))
    assert read_results(made).not_planned == []
    assert read_results(made, fewer).not_planned == ["breakout-ppo-baseline-1"]


def test_a_finished_run_without_its_episodes_is_named(folder: SweepFolder) -> None:
    (finished(folder, 0) / "episodes.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"no episodes\.csv there"):
        read_results(folder)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_return_that_is_no_number_is_named(
    folder: SweepFolder, tmp_path: Path, value: str
) -> None:
    pytest.importorskip("matplotlib")
    finished(folder, 0)
    with (finished(folder, 1) / "episodes.csv").open("a") as file:
        file.write(f"130,1,{value}\n")
    said = refusal("report", str(folder.path), "-o", str(tmp_path / "out"))
    assert "breakout, ppo, infonce, seed 0: Expected finite `returns`, got NaN or inf" in said


def test_arms_keep_the_grids_order_whatever_is_missing(tmp_path: Path) -> None:
    arms = ["low", "mid", "high"]
    own = {arm: {"infonce_coef": 0.1 * i} for i, arm in enumerate(arms)}
    made = begun_sweep(tmp_path / "sweep", seeds=[0, 1], arms=arms, arm=own)
    for index in range(1, 6):  # the first cell, of "low", is missing
        finished(made, index)
    assert list(dict.fromkeys(run.arm for run in read_results(made).runs)) == arms


def test_a_killed_session_shortens_no_run(folder: SweepFolder) -> None:
    run_dir = finished(folder, 0)
    # killed at some step after 104; the last fifth of 130 steps took 2 s
    last = {"first_step": 104, "last_step": 130, "wall_seconds": 2.0}
    record = {**read_record(run_dir), "wall_seconds": 2.0, "sessions": [{"first_step": 0}, last]}
    write_record(run_dir, record)
    (run,) = read_results(folder).runs
    assert run.seconds == pytest.approx(10.0)


def test_a_trained_cell_is_named_and_its_features_are_left_out(folder: SweepFolder) -> None:
    run_dir = finished(folder, 0)
    (run_dir / "probe" / "scores.json").write_text("{")
    results = read_results(folder)
    (run,) = results.runs
    assert not run.probes
    assert results.missing[0] == (
        "breakout-ppo-baseline-0 (trained; its return counts, its features are not probed yet)"
    )


def test_features_that_cannot_be_probed_are_named_with_the_reason(
    folder: SweepFolder, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    for index in (0, 2, 3):
        finished(folder, index)
    file = ScoresFile(finished(folder, 1) / "probe", SCORES_SETTINGS)
    error = "ValueError: Expected `features` to vary. The encoder has collapsed."
    file.put(ProbeKey("breakout", "m", 0, "converged"), status="failed", error=error)
    results = read_results(folder)
    assert len(results.runs) == 4
    assert results.missing == [
        "breakout-ppo-infonce-0 (trained; its return counts, its features could not be probed: "
        f"{error})"
    ]
    assert main(["report", str(folder.path), "-o", str(tmp_path / "out")]) == 0
    report = (tmp_path / "out" / "report.md").read_text()
    assert "Where an arm's own settings made them collapse, what is left of it looks" in report
    file.replace_encoder("n", file.content["encoders"]["m"])
    file.write()
    assert read_results(folder).missing[0].endswith("its features are not probed yet)")


def test_a_grid_edited_in_its_folder_is_not_reported(folder: SweepFolder) -> None:
    finished(folder, 0)
    path = folder.path / "grid.toml"
    path.write_text(path.read_text().replace("n_pairs = 8", "n_pairs = 16"))
    with pytest.raises(ValueError, match=r"breakout-ppo-baseline-0: n_pairs 16 \(was 8\)"):
        read_results(folder)


def test_hosts_are_those_that_trained(folder: SweepFolder) -> None:
    run_dir = finished(folder, 0)
    on_a_gpu = {"host": "node7", "hardware": "NVIDIA H200"}
    sessions = [on_a_gpu, {"host": "node3"}, on_a_gpu, {}]
    write_record(run_dir, {**read_record(run_dir), "sessions": sessions, "device": "cuda:0"})
    (run,) = read_results(folder).runs
    assert run.machine == "node3, node7 (NVIDIA H200), cuda:0"


def test_commits_are_those_of_all_sessions(folder: SweepFolder, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run_dirs = [finished(folder, index) for index in range(4)]
    first, second = "1" * 40, "2" * 40 + "-dirty"
    for run_dir in run_dirs:
        record = read_record(run_dir)
        sessions = [{"versions": record["versions"], "git_commit": first}]
        write_record(run_dir, {**record, "git_commit": first, "sessions": sessions})
    assert [run.commits for run in read_results(folder).runs] == [(first,)] * 4
    assert main(["report", str(folder.path), "-o", str(tmp_path / "out")]) == 0
    assert "commits" not in (tmp_path / "out" / "report.md").read_text()
    assert f"Commits of rl_infonce: {first}." in (tmp_path / "out" / "report.html").read_text()
    record = read_record(run_dirs[2])
    record["sessions"] = [*record["sessions"], {**record["sessions"][0], "git_commit": second}]
    write_record(run_dirs[2], record)
    (changed,) = (run for run in read_results(folder).runs if len(run.commits) > 1)
    assert (changed.arm, changed.seed, changed.commits) == ("baseline", 1, (first, second))
    assert main(["report", str(folder.path), "-o", str(tmp_path / "out")]) == 0
    named = "Trained by 2 commits of rl_infonce: 111111111111 (4 runs), 222222222222-dirty (1 run)."
    for name in ("report.md", "report.html"):
        assert named in (tmp_path / "out" / name).read_text()
    assert f"{first}, {second}." in (tmp_path / "out" / "report.html").read_text()


def test_a_run_of_no_checkout_has_no_commit(folder: SweepFolder) -> None:
    run_dir = finished(folder, 0)
    write_record(run_dir, {**read_record(run_dir), "git_commit": None})
    (run,) = read_results(folder).runs
    assert run.commits == ()


def test_commands_can_be_pasted(tmp_path: Path) -> None:
    folder = begun_sweep(tmp_path / "my sweep")
    finished(folder, 0)
    (run,) = read_results(folder).runs
    parsed = make_parser().parse_args(shlex.split(run.command)[1:])
    assert parsed.run_dir == Path("breakout-ppo-baseline-0"), "in the cell the run is there already"
    assert (parsed.game, parsed.seed, parsed.n_timesteps) == ("breakout", 0, 128)


def test_other_versions_are_merged_only_if_asked(folder: SweepFolder, tmp_path: Path) -> None:
    finished(folder, 0)
    run_dir = finished(folder, 1)
    record = read_record(run_dir)
    record["versions"] = {**record["versions"], "torch": "1.0", "python": "3.1"}
    write_record(run_dir, record)
    with pytest.raises(ValueError, match=r"infonce-0 .*torch 1\.0 instead of 2.*--mixed-versions"):
        read_results(folder)
    results = read_results(folder, mixed_versions=True)
    assert len(results.runs) == 2
    (note,) = results.notes
    assert note.startswith("breakout-ppo-infonce-0 (trained with torch 1.0 instead of ")
    pytest.importorskip("matplotlib")
    words = ["report", str(folder.path), "-o", str(tmp_path / "out")]
    assert "torch 1.0 instead of 2" in refusal(*words)
    assert main([*words, "--mixed-versions"]) == 0
    report = (tmp_path / "out" / "report.md").read_text()
    assert f"Other versions: {note}." in report
    assert note not in report.split("Missing: ")[1].split("\n")[0]


@pytest.mark.parametrize("index", [0, 1])
def test_a_session_with_other_versions_is_named_too(folder: SweepFolder, index: int) -> None:
    run_dirs = [finished(folder, 0), finished(folder, 1)]
    record = read_record(run_dirs[index])
    sessions = [{"versions": {**record["versions"], **more}} for more in ({}, {"torch": "1.0"})]
    write_record(run_dirs[index], {**record, "sessions": sessions})
    with pytest.raises(
        ValueError, match=rf"{run_dirs[index].name} .*torch 2\S+, 1\.0 instead of 2"
    ):
        read_results(folder)
    with pytest.raises(ValueError, match=rf"torch is 2.*, 1\.0 in {run_dirs[index].name}"):
        folder.check_versions(folder.grid())


def test_runs_of_an_arm_with_other_defaults_are_not_merged(folder: SweepFolder) -> None:
    losses = {0: 0.0, 1: 0.1, 2: 0.0, 3: 0.01}  # baseline and infonce, seed 0 and 1
    for index, coef in losses.items():
        run_dir = finished(folder, index)
        record = read_record(run_dir)
        sessions = [{**each, "loss": {"infonce_coef": coef}} for each in record["sessions"]]
        write_record(run_dir, {**record, "sessions": sessions})
    told = "breakout-ppo-infonce-1 (trained with infonce_coef 0.01 instead of 0.1 of breakout-ppo-"
    with pytest.raises(ValueError, match=re.escape(f"and defaults, got {told}infonce-0).")):
        read_results(folder)
    assert read_results(folder, mixed_versions=True).notes == [f"{told}infonce-0)"]


def test_what_an_earlier_version_did_not_note_of_a_loss_is_what_it_was_given(
    folder: SweepFolder,
) -> None:
    cell = folder.grid().cells()[1]
    arguments = {"precision": "bf16", "action_conditioning": None}
    noted = {"precision": "bf16", "action_conditioning": False}
    noted |= {"with_observation": True, "select_inputs": False}
    first: dict[Any, Any] = {}
    for loss in ({"n_pairs": 32}, {"n_pairs": 32, **noted}):
        record = {"arguments": arguments, "sessions": [{"loss": loss}]}
        assert not list(_of_other_losses(cell, record, first))
    (told,) = _of_other_losses(cell, {"arguments": {}, "sessions": [{"loss": {}}]}, first)
    assert "precision fp32 instead of bf16" in told


@pytest.mark.parametrize("name", ["labels_hash", "frames_hash", "penalty_patience"])
def test_other_labels_frames_or_searches_are_not_merged(folder: SweepFolder, name: str) -> None:
    own: dict[str, Any] = {name: "own"}
    about: dict[str, Any] = {name: "other"}
    finished(folder, 0, **own)
    finished(folder, 1, **about)
    with pytest.raises(ValueError, match=rf"same {name}, got other in .*infonce-0 and"):
        read_results(folder)


def test_other_splits_are_not_merged(folder: SweepFolder) -> None:
    finished(folder, 0)
    path = finished(folder, 1) / "probe" / "scores.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "settings": {**content["settings"], "split_by": "x"}}))
    with pytest.raises(ValueError, match=r"same split_by, got x in .*infonce-0 and None before"):
        read_results(folder)


def test_scores_that_say_nothing_of_their_search_compare_with_any(folder: SweepFolder) -> None:
    finished(folder, 0)
    finished(folder, 1, penalty_patience=3)
    finished(folder, 2)
    assert len(read_results(folder).runs) == 3


def test_a_run_whose_probes_are_removed_is_probed_again(folder: SweepFolder) -> None:
    probes = finished(folder, 0) / "probe"
    grid = folder.grid()
    assert not folder.job(grid.cells()[0], grid).commands
    shutil.rmtree(probes)
    assert [words[0] for words in folder.job(grid.cells()[0], grid).commands] == ["probe"]


def test_probes_of_other_variables_are_not_merged(folder: SweepFolder) -> None:
    for index, variables in enumerate((["x", "y"], ["x"])):
        path = finished(folder, index) / "probe" / "scores.json"
        content = json.loads(path.read_text())
        for entry in content["cells"]:
            entry["scores"]["variables"] = dict.fromkeys(variables, entry["scores"]["mean"])
        path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"same variables, got y \(converged, seed 0\) in some"):
        read_results(folder)


@pytest.mark.parametrize("text", ["step,return\nx,1\n", "a,b\n1,2\n", "step,return\n1,x\n", "\0"])
def test_files_of_something_else_are_named(folder: SweepFolder, text: str) -> None:
    run_dir = finished(folder, 0)
    (run_dir / "episodes.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"numbers by step in {run_dir / 'episodes.csv'}"):
        read_results(folder)


def test_the_command_writes_page_tables_and_runs(
    folder: SweepFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for index in range(4):
        finished(folder, index)
    assert main(["report", str(folder.path), "-o", str(tmp_path / "out")]) == 0
    names = ["report.html", "report.md", "runs.csv"]
    assert capsys.readouterr().out.split() == [str(tmp_path / "out" / name) for name in names]
    assert "no detectable difference" in (tmp_path / "out" / "report.md").read_text()
    assert len((tmp_path / "out" / "runs.csv").read_text().splitlines()) == 5
    assert "human-normalised" in (tmp_path / "out" / "report.html").read_text()
    assert main(["report", str(folder.path), "--raw"]) == 0
    assert "human-normalised" not in (folder.path / "report.html").read_text()
    assert main(["report", str(folder.path), "--against", "infonce"]) == 0
    assert "| against infonce |" in (folder.path / "report.md").read_text()
    said = refusal("report", str(folder.path), "--against", "infonse")
    assert "Expected `--against` to be one of ['baseline', 'infonce'], got 'infonse'." in said
    assert "Did you mean 'infonce'?" in said


def test_nothing_to_report_exits_2(folder: SweepFolder) -> None:
    for given in ("none", str(folder.path)):
        assert "Expected" in refusal("report", given)


def test_a_report_that_a_full_disk_refuses_has_failed(
    folder: SweepFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    finished(folder, 0)
    monkeypatch.setattr(durable, "_write", no_room)
    assert main(["report", str(folder.path), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("rl-infonce report: ")
    assert "No space left" in said
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "file").touch()
    assert "`--output` to be a folder" in refusal(
        "report", str(folder.path), "-o", f"{tmp_path}/file"
    )


def test_a_search_that_has_not_begun_is_nothing_to_report(tmp_path: Path) -> None:
    search = {"infonce_coef": {"low": 0.0, "high": 1.0}}
    folder = begun_sweep(tmp_path / "sweep", study={"n_trials": 1, "search": search})
    said = refusal("report", str(folder.path))
    assert "got none: breakout-ppo-baseline-0 (missing); " in said


def test_human_scores_are_above_those_of_random_agents() -> None:
    from rl_infonce.atari import games
    from rl_infonce.atari.human_scores import human_scores

    scores = human_scores()
    assert len(scores) == 57
    assert set(scores) <= set(games())
    assert all(human > random for random, human in scores.values())
    assert json.dumps(scores["breakout"]) == "[1.7, 30.5]"
    # Sources disagree here only: Agent57's table has 0.0, ours is that of Wang et al. 2016.
    assert scores["video_pinball"] == (16256.9, 17667.9)
