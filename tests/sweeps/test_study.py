"""A study searches settings, goes on where it was interrupted, and leaves failures out."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.sweeps.grid import Grid, GridError, make_grid, read_grid
from rl_infonce.sweeps.study import best_trial, read_search, run_study, trials_grid
from rl_infonce.sweeps.study_run import StudyRun
from rl_infonce.sweeps.sweep_folder import SweepFolder
from rl_infonce.sweeps.sweep_run import SweepRun
from tests.cli.running import output_of
from tests.sweeps.grids import GRID, write_grid

SEARCH = {
    "infonce_coef": {"low": 0.0, "high": 1.0},
    "n_pairs": {"choices": [8, 16]},
    "hyperparameters.n_epochs": {"low": 1, "high": 4},
}
STUDY = {"n_trials": 12, "search": SEARCH}


def score(settings: Any) -> float:
    return float(0.1 * (settings["n_pairs"] == 16) - (settings["infonce_coef"] - 0.3) ** 2)


class Trainer:
    """Finishes cells at once, with returns that depend on their settings.

    Of one trial, the cell of seed 0 has the status "done" without an episode, or another one.
    """

    def __init__(
        self, folder: SweepFolder, stop_at: int = 99, fail_at: int = 99, status: str = "done"
    ) -> None:
        self.folder, self.stop_at, self.fail_at, self.status = folder, stop_at, fail_at, status
        self.settings: list[Any] = []

    def __call__(self, grid: Grid) -> bool:
        cells = grid.cells()
        self.settings.append(dict(cells[0].settings))
        if len(self.settings) == self.stop_at:
            return False
        for cell in cells:
            run_dir = self.folder.run_dir(cell)
            run_dir.mkdir(parents=True, exist_ok=True)
            has_failed = cell.seed == 0 and len(self.settings) == self.fail_at
            status = self.status if has_failed else "done"
            ended = {"status": status, "n_timesteps_done": grid.n_timesteps}
            write_record(run_dir, {**new_record({}, cell.seed), **ended})
            value = score(cell.settings) + 0.01 * cell.seed
            episodes = f"step,return\n{grid.n_timesteps},{value}\n"
            (run_dir / "episodes.csv").write_text("step\n" if has_failed else episodes)
        return True


def test_a_journal_that_a_full_disk_cut_off_goes_on(folder: SweepFolder) -> None:
    assert len(list(run_study(folder, grid(), Trainer(folder, stop_at=4), None))) == 3
    journal = folder.path / "study.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    found = list(run_study(folder, grid(), Trainer(folder), None))
    assert [name for name, _, _ in found][-1] == "trial_012", "trial_003 lost a setting"
    assert best_trial(folder) is not None
    refused = rf"journal of a study in {re.escape(str(journal))}, got: .*Bring back"
    for rest in (journal.read_bytes(), b""):
        journal.write_bytes(b'{"op_code": no\n' + rest)
        for read in (best_trial, read_search):  # the latter reads a copy
            with pytest.raises(ValueError, match=refused):
                read(folder)


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    pytest.importorskip("optuna")
    return SweepFolder(tmp_path)


def grid() -> Grid:
    return make_grid({**GRID, "seeds": [0, 2], "train": {}, "study": STUDY})


def test_settings_are_searched_and_scored_by_all_runs(folder: SweepFolder) -> None:
    train = Trainer(folder)
    found = list(run_study(folder, grid(), train, None))
    assert [name for name, _, _ in found] == [f"trial_{i:03d}" for i in range(12)]
    for (_, settings, value), trained in zip(found, train.settings, strict=True):
        assert value == pytest.approx(score(settings) + 0.01)
        assert dict(trained) == dict(settings)
        assert 1 <= settings["hyperparameters"]["n_epochs"] <= 4
    values = [value for _, _, value in found if value is not None]
    assert max(values) > 0.05, "near the best, 0.11"
    assert not list(run_study(folder, grid(), train, None)), "nothing is left to do"


def test_an_interrupted_trial_goes_on_first(folder: SweepFolder) -> None:
    stopping = Trainer(folder, stop_at=4)
    assert len(list(run_study(folder, grid(), stopping, None))) == 3
    again = Trainer(folder)
    found = list(run_study(folder, grid(), again, None))
    assert [name for name, _, _ in found] == [f"trial_{i:03d}" for i in range(3, 12)]
    assert again.settings[0] == stopping.settings[3]


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_trial_that_was_killed_is_tried_again(folder: SweepFolder, status: str) -> None:
    found = list(run_study(folder, grid(), Trainer(folder, fail_at=2, status=status), None))
    assert [value is None for _, _, value in found] == [False, True] + [False] * 10
    again = Trainer(folder, fail_at=1, status=status)
    (name, settings, value), *others = run_study(folder, grid(), again, None)
    assert (name, dict(settings), value) == ("trial_001", dict(found[1][1]), None)
    assert not others, "it is tried again, once"
    ((name, _, value),) = run_study(folder, grid(), Trainer(folder), None)
    assert (name, value is None) == ("trial_001", False)
    assert not list(run_study(folder, grid(), Trainer(folder), None))


def test_a_trial_with_a_return_that_is_no_number_has_failed(folder: SweepFolder) -> None:
    class Diverging(Trainer):
        def __call__(self, grid: Grid) -> bool:
            goes_on = super().__call__(grid)
            with (self.folder.run_dir(grid.cells()[0]) / "episodes.csv").open("a") as file:
                file.write(f"{grid.n_timesteps},nan\n")
            return goes_on

    ((_, _, value),) = run_study(folder, short_grid(1), Diverging(folder), None)
    assert value is None
    assert not list(run_study(folder, short_grid(1), Trainer(folder), None)), "it has failed"


@pytest.mark.parametrize("status", ["failed", "done"])
def test_a_trial_that_failed_by_itself_is_not_repeated(folder: SweepFolder, status: str) -> None:
    failing = Trainer(folder, stop_at=4, fail_at=2, status=status)
    found = list(run_study(folder, grid(), failing, None))
    assert [value is None for _, _, value in found] == [False, True, False]
    again = list(run_study(folder, grid(), Trainer(folder), None))
    assert [name for name, _, _ in again] == [f"trial_{i:03d}" for i in range(3, 12)]
    assert not list(run_study(folder, grid(), Trainer(folder), None)), "it was one of the trials"
    best = best_trial(folder)
    assert best is not None
    assert best[0] != "trial_001"


@pytest.mark.parametrize("has_episodes", [True, False])
def test_a_trial_ends_though_its_features_cannot_be_probed(
    folder: SweepFolder, has_episodes: bool
) -> None:
    own = short_grid(1, probe={"n_frames": 10})
    trainer = Trainer(folder, fail_at=99 if has_episodes else 1)
    ((_, _, value),) = run_study(folder, own, trainer, None)
    assert (value is not None) == has_episodes
    assert not list(run_study(folder, own, Trainer(folder), None)), "it has ended"


def test_a_trial_whose_files_cannot_be_read_is_tried_again(folder: SweepFolder) -> None:
    class Damaging(Trainer):
        def __call__(self, grid: Grid) -> bool:
            goes_on = super().__call__(grid)
            (self.folder.run_dir(grid.cells()[0]) / "run.json").write_text("{")
            return goes_on

    ((name, _, value),) = run_study(folder, short_grid(1), Damaging(folder), None)
    assert (name, value) == ("trial_000", None)
    ((name, _, value),) = run_study(folder, short_grid(1), Trainer(folder), None)
    assert (name, value is None) == ("trial_000", False)


def test_trials_of_a_second_session_are_new_and_the_best_is_of_all(folder: SweepFolder) -> None:
    assert best_trial(folder) is None
    short = {**STUDY, "n_trials": 3}
    grids = [make_grid({**GRID, "train": {}, "study": {**short, "n_trials": n}}) for n in (3, 6)]
    first, second = (list(run_study(folder, each, Trainer(folder), None)) for each in grids)
    coefs = [settings["infonce_coef"] for _, settings, _ in first + second]
    assert len(coefs) == len(set(coefs)) == 6
    best = best_trial(folder)
    assert best is not None
    name, settings, value = max(first + second, key=lambda trial: trial[2] or -9)
    assert (best[0], dict(best[1]), best[2]) == (name, dict(settings), value)


def short_grid(n_trials: int = 3, **changes: Any) -> Grid:
    study = {**STUDY, "n_trials": n_trials, **changes.pop("study", {})}
    return make_grid({**GRID, "train": {}, "study": study, **changes})


def test_a_folder_that_was_moved_keeps_its_study(folder: SweepFolder, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "before")
    folder.path.mkdir()
    list(run_study(folder, short_grid(2), Trainer(folder), None))
    moved = SweepFolder(folder.path.rename(tmp_path / "after"))
    ((name, _, _),) = run_study(moved, short_grid(3), Trainer(moved), None)
    assert name == "trial_002"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"games": ["pong"]}, r"games \['pong'\] \(was \['breakout'\]\)"),
        ({"seeds": [0, 1]}, r"seeds \[0, 1\]"),
        ({"n_timesteps": 256}, r"n_timesteps 256 \(was 128\)"),
        ({"train": {"n_envs": 2}}, r"train {'n_envs': 2} \(was {}\)"),
        ({"study": {"measure": "final"}}, r"measure final \(was area\)"),
    ],
)
def test_trials_of_other_trainings_are_not_mixed(
    folder: SweepFolder, changes: dict[str, Any], message: str
) -> None:
    list(run_study(folder, short_grid(1), Trainer(folder), None))
    with pytest.raises(ValueError, match=rf"got {message}.*another --output"):
        next(run_study(folder, short_grid(2, **changes), Trainer(folder), None))


def test_trials_go_on_on_another_device(folder: SweepFolder) -> None:
    for n_trials, device in ((1, "cuda"), (2, "cpu")):
        own = short_grid(n_trials, train={"device": device})
        assert len(list(run_study(folder, own, Trainer(folder), None))) == 1
    with pytest.raises(ValueError, match=r"got train {'n_envs': 2} \(was {}\)"):
        next(run_study(folder, short_grid(3, train={"n_envs": 2}), Trainer(folder), None))


def test_other_choices_are_refused_and_leave_no_half_trial(folder: SweepFolder) -> None:
    list(run_study(folder, short_grid(1), Trainer(folder), None))
    search: Any = {**SEARCH, "n_pairs": {"choices": [8, 16, 32]}}
    refused = r"choices and kinds of ranges in `study.search`.* others"
    for _ in range(3):
        with pytest.raises(ValueError, match=refused):
            next(run_study(folder, short_grid(3, study={"search": search}), Trainer(folder), None))
    train = Trainer(folder)
    found = [name for name, _, _ in run_study(folder, short_grid(3), train, None)]
    assert found == ["trial_004", "trial_005"], "those that were refused do not count"
    assert not list(run_study(folder, short_grid(3), train, None))
    planned = trials_grid(short_grid(3), folder.begun())
    assert all(folder.states(planned)[name].status == "done" for name in folder.begun())
    assert all(settings.keys() >= {"infonce_coef", "n_pairs"} for settings in train.settings)


def test_a_trial_that_was_killed_while_it_was_made_up_is_not_trained(folder: SweepFolder) -> None:
    from rl_infonce.sweeps import study

    list(run_study(folder, short_grid(1), Trainer(folder), None))
    half = study._study(study._optuna(), folder).ask()
    half.suggest_categorical("n_pairs", [8, 16])
    found = [name for name, _, _ in run_study(folder, short_grid(3), Trainer(folder), None)]
    assert found == ["trial_002", "trial_003"], "another one takes its place"


def test_a_trial_whose_cells_have_begun_goes_on_though_more_is_searched(
    folder: SweepFolder,
) -> None:
    class Stopping(Trainer):
        def __call__(self, grid: Grid) -> bool:
            self.folder.run_dir(grid.cells()[0]).mkdir(parents=True)
            return False

    list(run_study(folder, short_grid(1), Stopping(folder), None))
    search: Any = {**SEARCH, "temperature": {"low": 0.1, "high": 1.0}}
    grown = short_grid(2, study={"search": search})
    found = {
        name: settings for name, settings, _ in run_study(folder, grown, Trainer(folder), None)
    }
    assert list(found) == ["trial_000", "trial_001"]
    assert ("temperature" in found["trial_000"], "temperature" in found["trial_001"]) == (
        False,
        True,
    )


def test_a_trial_that_training_refuses_has_failed(folder: SweepFolder) -> None:
    class Refusing(Trainer):
        def __call__(self, grid: Grid) -> bool:
            for cell in grid.cells():
                self.folder.run_dir(cell).mkdir(parents=True)
            return True

    ((name, _, value),) = run_study(folder, short_grid(1), Refusing(folder), None)
    assert (name, value) == ("trial_000", None)
    assert not list(run_study(folder, short_grid(1), Trainer(folder), None)), "it is not repeated"


def test_a_cell_of_another_trial_is_not_taken_for_ones_own(folder: SweepFolder) -> None:
    list(run_study(folder, short_grid(1), Trainer(folder), None))
    (folder.path / "study.log").unlink()
    search = {"infonce_coef": {"low": 2.0, "high": 3.0}, "n_pairs": {"choices": [8]}}
    with pytest.raises(ValueError, match=r"trial_000-0: .*infonce_coef 2\..* \(was 0\."):
        next(run_study(folder, short_grid(1, study={"search": search}), Trainer(folder), None))


def test_a_trial_with_the_settings_of_an_earlier_one_has_its_value(folder: SweepFolder) -> None:
    train = Trainer(folder)
    search = {"infonce_coef": {"choices": [0.0, 1.0]}, "n_pairs": {"choices": [8]}}
    own = short_grid(6, study={"search": search})
    found = list(run_study(folder, own, train, None))
    assert len(found) == 6
    assert 1 <= len(train.settings) <= 2
    assert len({(settings["infonce_coef"], value) for _, settings, value in found}) <= 2


def test_settings_that_failed_are_not_trained_again(folder: SweepFolder) -> None:
    class Diverging(Trainer):
        def __call__(self, grid: Grid) -> bool:
            has_diverged = grid.cells()[0].settings["infonce_coef"] == 1.0
            self.fail_at = len(self.settings) + 1 if has_diverged else 99
            return super().__call__(grid)

    train = Diverging(folder, status="failed")
    search = {"infonce_coef": {"choices": [0.0, 1.0]}, "n_pairs": {"choices": [8]}}
    own = short_grid(8, study={"search": search})
    found = list(run_study(folder, own, train, None))
    coefs = [settings["infonce_coef"] for _, settings, _ in found]
    assert [value is None for _, _, value in found] == [coef == 1.0 for coef in coefs]
    assert coefs.count(1.0) > 1
    assert [settings["infonce_coef"] for settings in train.settings].count(1.0) == 1
    assert not list(run_study(folder, own, train, None)), "each was one of the trials"


def test_settings_that_failed_once_are_no_fault_of_the_machine(folder: SweepFolder) -> None:
    own = short_grid(5, study={"search": {"n_pairs": {"choices": [8]}}})

    def fail(_ends: object, grid: Grid) -> dict[str, int]:
        (cell,) = grid.cells()
        folder.run_dir(cell).mkdir(parents=True)
        return {cell.name: 1}

    sweep = SimpleNamespace(grid=own, folder=folder, train=lambda own: own)
    study = StudyRun(cast(SweepRun, sweep), fail)
    assert [trial.value for trial in study.trials()] == [None] * 5
    assert (study.n_failed, study.is_hopeless, study.code) == (1, False, 1)


def test_the_sampler_is_seeded_with_the_grid(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    found = []
    for index, seeds in enumerate([[0], [1], [0]]):
        own = make_grid({**GRID, "seeds": seeds, "train": {}, "study": {**STUDY, "n_trials": 1}})
        folder = SweepFolder(tmp_path / str(index))
        folder.path.mkdir()
        found += [dict(s) for _, s, _ in run_study(folder, own, Trainer(folder), None)]
    assert found[0] == found[2] != found[1]


def test_ranges_of_floats_may_be_written_as_ints() -> None:
    whole = {"low": 0, "high": 1}
    names = ("infonce_coef", "hyperparameters.gamma", "hyperparameters.target_kl")
    search = {**dict.fromkeys(names, whole), "n_pairs": {"low": 2, "high": 4}}
    search["min_gap"] = {"low": 0, "high": 8}
    search["hyperparameters.n_epochs"] = {"low": 1, "high": 4}
    made = make_grid({**GRID, "study": {"n_trials": 1, "search": search}}).study
    assert made is not None
    assert {type(made["search"][name]["high"]) for name in names} == {float}
    whole_names = ("n_pairs", "min_gap", "hyperparameters.n_epochs")
    assert {type(made["search"][name]["high"]) for name in whole_names} == {int}
    of_dqn = {"hyperparameters.max_grad_norm": {"low": 0.5, "high": 10}}  # whose default is 10
    study = {"n_trials": 1, "search": of_dqn}
    assert make_grid({**GRID, "algos": ["dqn"], "study": study}).study is not None


def test_values_of_unlike_environments_are_said_to_be_unscaled() -> None:
    def measure(*tasks: str) -> str:
        own = SimpleNamespace(tasks=tasks, study={"measure": "area"})
        return StudyRun(cast(SweepRun, SimpleNamespace(grid=own)), lambda _ends, _grid: {}).measure

    assert "own units: those of the largest" in measure("Pendulum-v1", "CartPole-v1")
    assert "own units" not in measure("Pendulum-v1")
    assert "1 a human" in measure("pong", "breakout")


def test_scores_are_scaled_by_game(folder: SweepFolder) -> None:
    (_, settings, value), *_ = run_study(folder, grid(), Trainer(folder), {"breakout": (1.0, 3.0)})
    assert value == pytest.approx((score(settings) + 0.01 - 1) / 2)


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (3, r"a table \[study\]"),
        ({}, "`study.n_trials`, got none"),
        ({**STUDY, "measure": "best"}, "`study.measure` to be one of .*got 'best'"),
        ({**STUDY, "search": {"coef": {"low": 0, "high": 1}}}, r"\[study.search\]: 'coef'"),
        (
            {**STUDY, "search": {"learning_rate": {"low": 0.1, "high": 1}}},
            r"'learning_rate'. Did you mean `\"hyperparameters.learning_rate\"`\?",
        ),
        (
            {**STUDY, "search": {"hyperparameters": {"n_epochs": {"low": 1, "high": 4}}}},
            r"`study.search` with `\"hyperparameters.n_epochs\"` in quotes, got it without",
        ),
        ({**STUDY, "search": {"n_pairs": {"low": 3, "high": 3}}}, "`study.search.n_pairs` to be"),
        ({**STUDY, "search": {"n_pairs": {"low": 0, "high": 3, "log": True}}}, "log = true"),
        ({**STUDY, "search": {"n_pairs": {"choices": []}}}, r"choices = \[...\]"),
        ({**STUDY, "search": {"n_pairs": 3}}, "`study.search.n_pairs` to be"),
        ({**STUDY, "search": {"hyperparameters.n_epoch": {"low": 1, "high": 3}}}, "n_epochs"),
        ({**STUDY, "search": {"hyperparameters.tau": {"low": 0, "high": 1}}}, "ppo: .*'tau'"),
        ({**STUDY, "search": {"hyperparameters.n_epochs": {"low": 1.5, "high": 3}}}, "got 1.5"),
        (
            {**STUDY, "search": {"n_pairs": {"choices": [8, "x"]}}},
            "n_pairs` to be an int .*got 'x'",
        ),
        ({**STUDY, "search": {"terms": {"choices": ["globl"]}}}, "`study.search.terms`.*'globl'"),
        (
            {**STUDY, "search": {"horizons": {"low": 0, "high": 4}}},
            r"\[study.search\]: .*horizons.* got 0",
        ),
        ({**STUDY, "search": {"hyperparameters.n_epochs": {"choices": [2.0]}}}, "ints, got 2.0"),
        ({**STUDY, "search": {}}, "`study.search` to have at least one setting, got none"),
        ({**STUDY, "search": {"infonce_coef": {"low": -1, "high": 1}}}, "infonce_coef.* got -1"),
        ({**STUDY, "search": {"preset": {"choices": ["cpc", "cpd"]}}}, "preset.*got 'cpd'"),
        ({**STUDY, "search": {"precision": {"choices": ["fp16"]}}}, "precision.*got 'fp16'"),
        ({**STUDY, "search": {"device": {"choices": ["cpu", "gpu"]}}}, "device.*got 'gpu'"),
        ({**STUDY, "n_trial": 3}, "'n_trial'. Did you mean 'n_trials'"),
    ],
)
def test_bad_studies_are_named(study: Any, message: str) -> None:
    with pytest.raises(GridError, match=message):
        make_grid({**GRID, "study": study})


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("n_pairs", "x", "'x'"),
        ("infonce_coef", -1, "-1"),
        ("horizons", 0, "0"),
        ("preset", "cpd", "'cpd'"),
        ("on_nan", 5, "5"),
        ("hyperparameters.n_epochs", 1.5, "1.5"),
    ],
)
def test_a_bad_value_is_named_once_and_as_it_was_written(name: str, value: Any, got: str) -> None:
    study = {"n_trials": 2, "search": {name: {"choices": [value]}}}
    with pytest.raises(GridError) as refusal:
        make_grid({**GRID, "study": study})
    (line,) = str(refusal.value).splitlines()
    assert f"`{name.rpartition('.')[2]}`" in line.replace("`study.search.", "`")
    assert f", got {got}." in line


def test_the_trials_of_a_study_are_read_for_a_report(folder: SweepFolder) -> None:
    assert read_search(folder) is None
    (folder.path / "study.log").touch()
    assert read_search(folder) is None
    found = list(run_study(folder, grid(), Trainer(folder, stop_at=4, fail_at=2), None))
    search = read_search(folder)
    assert search is not None
    assert search.value == "mean return over the budget, mean over the grid"
    assert [trial.state for trial in search.trials] == ["done", "failed", "done", "begun"]
    for trial, (name, settings, value) in zip(search.trials, found, strict=False):
        own = {**settings}
        own |= own.pop("hyperparameters")
        assert (trial.name, trial.settings, trial.value) == (name, own, value)


def test_reading_trials_leaves_the_journal_as_it_is(folder: SweepFolder) -> None:
    """Another process may be writing its last line."""
    list(run_study(folder, grid(), Trainer(folder, stop_at=3), None))
    journal = folder.path / "study.log"
    torn = journal.read_bytes()[:-20]
    journal.write_bytes(torn)
    assert read_search(folder) is not None
    assert journal.read_bytes() == torn


def test_without_study_or_optuna_it_says_so(
    folder: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"a table \[study\] in the grid"):
        next(run_study(folder, make_grid(GRID), Trainer(folder), None))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ModuleNotFoundError, match=r"rl-infonce\[optuna\]"):
        next(run_study(folder, grid(), Trainer(folder), None))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.atari
def test_the_command_trains_trials_and_names_the_best(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    search = {
        "infonce_coef": {"low": 0.01, "high": 1.0, "log": True},
        "horizons": {"choices": [4, 8]},
    }
    study = {"n_trials": 1, "search": search}
    once = {"n_envs": 4, "n_pairs": 8, "hyperparameters": {"n_epochs": 1}}
    long_enough = {"n_timesteps": 1024, "train": once}
    path = write_grid(tmp_path / "grid.toml", study=study, **long_enough)
    assert read_grid(path).study is not None
    said = output_of("sweep", str(path), "-o", str(tmp_path / "sweep"), "--optimize")
    assert "breakout-ppo-trial_000-0: done in" in said
    assert "The best of all trials is trial_000" in said
    said = output_of("sweep", "--resume", str(tmp_path / "sweep"), "--optimize")
    assert "The best of all trials is trial_000" in said, "earlier ones count"
    said = output_of("sweep", "--resume", str(tmp_path / "sweep"), "--optimize", "--dry-run")
    assert "breakout-ppo-trial_000-0: done" in said, "as it was searched"
