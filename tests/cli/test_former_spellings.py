"""What users wrote for earlier versions still works, and one line names the present spelling."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.cli import make_parser
from rl_infonce.runs.run_directory import new_record, read_record, write_record
from rl_infonce.sweeps.grid import GridError, make_grid, read_grid
from rl_infonce.sweeps.study import run_study
from rl_infonce.sweeps.sweep_folder import SweepFolder
from tests.cli.running import errors_of
from tests.sweeps.grids import GRID, write_grid

pytestmark = pytest.mark.atari


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["probe", "--encoder", "a", "b"], "features_of", ["a", "b"]),
        (["train", "--encoder", "a"], "pretrained", Path("a")),
    ],
)
def test_a_former_flag_is_taken_for_the_present_one(
    capsys: pytest.CaptureFixture[str], words: list[str], name: str, value: object
) -> None:
    twice = [*words[:1], "--game", "pong", *words[1:], *words[1:]]
    arguments = make_parser().parse_args(twice)
    assert getattr(arguments, name) == value
    assert name in arguments.given
    assert not hasattr(arguments, "encoder")
    flag = f"--{name.replace('_', '-')}"
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        f"rl-infonce {words[0]}: {words[1]} is now called {flag}. The former name still works; "
        "please use the new one."
    )
    make_parser().parse_args([words[0], "--game", "pong", flag, *words[2:]])
    assert not capsys.readouterr().err


def test_a_former_preset_is_taken_for_the_present_one(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = make_parser().parse_args(["train", "--game", "pong", "--preset", "stdim"])
    assert arguments.preset == "spatial_cpc"
    (said,) = capsys.readouterr().err.splitlines()
    assert "the preset stdim is now called spatial_cpc. The former name still works" in said


@pytest.mark.parametrize("command", ["probe", "train"])
def test_help_tells_the_present_spelling_alone(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args([command, "--help"])
    assert not re.search(r"--encoder\b(?!-)", capsys.readouterr().out)


def test_a_record_of_a_former_version_is_read_by_present_names(tmp_path: Path) -> None:
    write_record(tmp_path, new_record({"game": "pong", "encoder": "e.safetensors"}, 0))
    record = read_record(tmp_path)
    assert record["arguments"] == {"game": "pong", "pretrained": "e.safetensors"}
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


def former_grid(path: Path, name: str = "encoder") -> Path:
    path.with_name("e.safetensors").touch()
    own = {name: str(path.with_name("e.safetensors"))}
    return write_grid(path, arms=["a", "b"], arm={"a": own, "b": {**own, "n_pairs": 4}})


def test_a_grid_of_a_former_version_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.sweeps.estimate.seconds_of", lambda *_: 1.0)
    monkeypatch.setattr("rl_infonce.sweeps.estimate.disk_of_all", lambda *_: 0)
    path, output = tmp_path / "grid.toml", str(tmp_path / "sweep")
    words = ("sweep", str(former_grid(path)), "-o", output, "--dry-run")
    assert errors_of(*words, code=0) == (
        "rl-infonce sweep: the key `encoder` of a grid is now called `pretrained`. The former name "
        "still works; please use the new one.\n"
    )
    former = read_grid(path)
    former_grid(path, "pretrained")
    assert not errors_of(*words, code=0)
    assert read_grid(path) == former
    with pytest.raises(GridError, match=r"setting in \[train\]: 'encoder'"):
        make_grid({**GRID, "train": {"encoder": "e", "pretrained": "e"}})


def test_a_sweep_of_a_former_version_goes_on(tmp_path: Path) -> None:
    folder, path = SweepFolder(tmp_path / "sweep"), former_grid(tmp_path / "grid.toml")
    folder.path.mkdir()
    grid = read_grid(path)
    folder.adopt(grid, path.read_bytes())
    for cell in grid.cells():
        folder.run_dir(cell).mkdir(parents=True)
        arguments = {"encoder": cell.settings["pretrained"], "n_pairs": cell.settings["n_pairs"]}
        write_record(folder.run_dir(cell), new_record(arguments, 0))
    noted = folder.path / "sweep.json"
    noted.write_text(noted.read_text().replace('"pretrained"', '"encoder"'))
    assert '"encoder":' in noted.read_text()
    folder.adopt(read_grid(path), path.read_bytes())
    assert {state.status for state in folder.states(folder.grid()).values()} == {"begun"}
    settings = [cell["settings"] for cell in json.loads(noted.read_text())["cells"].values()]
    assert all("pretrained" in each and "encoder" not in each for each in settings)


def test_a_study_of_a_former_version_goes_on(tmp_path: Path) -> None:
    optuna: Any = pytest.importorskip("optuna")
    files = [str(tmp_path / name) for name in "ab"]
    search = {"encoder": {"choices": files}}
    study = {"n_trials": 2, "search": search}
    grid = make_grid({**GRID, "train": {"n_pairs": 8}, "study": study})
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    former = optuna.create_study(
        study_name="study", storage=optuna.storages.JournalStorage(backend), direction="maximize"
    )
    former.ask().suggest_categorical("encoder", files)
    former.set_user_attr("train", {"n_pairs": 8})
    found: list[Any] = []

    def train(own: Any) -> bool:
        found.extend((cell.name, dict(cell.settings)) for cell in own.cells())
        return False

    assert not list(run_study(SweepFolder(tmp_path), grid, train, None))
    ((name, settings),) = found
    assert name == "breakout-ppo-trial_000-0"
    assert settings["pretrained"] in files


def test_a_study_of_former_presets_asks_for_more_trials(tmp_path: Path) -> None:
    optuna: Any = pytest.importorskip("optuna")
    study = {"n_trials": 2, "search": {"preset": {"choices": ["cpc", "stdim"]}}}
    grid = make_grid({**GRID, "study": study})
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    former = optuna.create_study(
        study_name="study", storage=optuna.storages.JournalStorage(backend), direction="maximize"
    )
    trial = former.ask()
    trial.suggest_categorical("preset", ["cpc", "stdim"])
    former.tell(trial, 1.0)
    found: list[Any] = []

    def train(own: Any) -> bool:
        found.extend(cell.settings["preset"] for cell in own.cells())
        return False

    list(run_study(SweepFolder(tmp_path), grid, train, None))
    assert len(found) == 1
    assert set(found) <= {"cpc", "spatial_cpc"}
