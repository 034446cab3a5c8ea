"""Search for good settings: each trial of an Optuna study is an arm, trained on a whole grid."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_infonce.checks import import_extra
from rl_infonce.report.run_scores import Scales, normalized
from rl_infonce.report.runs import scores_by_arm
from rl_infonce.report.sections import MEASURES
from rl_infonce.report.trials import Search, Trial
from rl_infonce.sweeps.arms import Settings
from rl_infonce.sweeps.grid import Grid
from rl_infonce.sweeps.results import read_results
from rl_infonce.sweeps.search import NESTED
from rl_infonce.sweeps.settings_check import without_session
from rl_infonce.sweeps.sweep_folder import SweepFolder

_JOURNAL = "study.log"
_STUDY = "study"  # whatever the folder is called: it may be moved
_STATES = {"COMPLETE": "done", "FAIL": "failed"}


def run_study(
    folder: SweepFolder,
    grid: Grid,
    train: Callable[[Grid], bool],
    scales: Scales | None,
) -> Iterator[tuple[str, Settings, float | None]]:
    """Yield name, settings and value of each trial; None as its value if it has none.

    The study is a journal in the folder, which this process holds: trials that were killed or
    interrupted go on first, with the checkpoints of their cells. One that failed by itself, for
    instance because a learning rate diverged, is noted as failed and not repeated; it counts as one
    of `n_trials`. One with the settings of an earlier one has its value, or has failed as it did,
    and is not trained, as the same seeds would return the same. `train` trains the cells of a grid
    that are not done, and returns whether to go on. For the scales see `trial_value`.
    """
    optuna = _optuna()
    search = _search(grid)
    study = _study(optuna, folder)
    _check_trainings(study, grid, folder)
    for name, value in _trainings(grid).items():
        study.set_user_attr(name, value)
    study.set_user_attr("value", value_in_words(grid, scales))
    # The same seed again would suggest the first trials again.
    seed = np.random.SeedSequence([*grid.seeds, len(study.trials)]).generate_state(1)[0]
    study.sampler = optuna.samplers.TPESampler(seed=int(seed))
    state = optuna.trial.TrialState
    begun = _begun(study, grid, folder, state)
    ended = study.get_trials(deepcopy=False, states=[state.COMPLETE, state.FAIL])
    n_ended = sum(each.state == state.COMPLETE or _is_made(each, grid, folder) for each in ended)
    for _ in range(search["n_trials"] - n_ended):
        number, parameters = begun.pop(0) if begun else _asked(study, search["search"], folder)
        name, settings = _name(number), _settings_of(parameters)
        known = _known(study, parameters, grid, folder, state)
        if known is None:
            own = replace(grid, settings={name: settings})
            folder.note_cells(own)
            if not train(own):
                return
            value = trial_value(folder, own, scales)
            has_failed = value is None and _has_failed(folder, own)
        else:
            value, has_failed = known.value, known.value is None
        if value is not None:
            study.tell(number, value)
        elif has_failed:  # any other stays begun, and is tried again next time
            study.tell(number, state=state.FAIL)
        yield name, settings, value


def value_in_words(grid: Grid, scales: Scales | None) -> str:
    """Return what the values of a grid's trials are."""
    scaled = ", where 0 is a random agent and 1 a human" if scales else ""
    if not scales and len(grid.tasks) > 1:
        scaled = ", in each environment's own units: those of the largest returns decide"
    return f"{MEASURES[_search(grid)['measure']]}, mean over the grid{scaled}"


def check_study(folder: SweepFolder, grid: Grid) -> None:
    """Raise, before anything is written, unless `run_study` can search in a folder."""
    _optuna()
    if (folder.path / _JOURNAL).is_file():
        with _copied_study(folder) as study:
            _check_trainings(study, grid, folder)


def _known(
    study: Any, parameters: Mapping[str, Any], grid: Grid, folder: SweepFolder, state: Any
) -> Any:
    """Return a trial with the same parameters that has a value or cells that failed, or None."""
    for trial in study.get_trials(deepcopy=False, states=[state.COMPLETE, state.FAIL]):
        has_ended = trial.state == state.COMPLETE or _has_cells(trial.number, grid, folder)
        if has_ended and trial.params == parameters:
            return trial
    return None


def _has_cells(number: int, grid: Grid, folder: SweepFolder) -> bool:
    own = replace(grid, settings={_name(number): {}})
    return any(folder.run_dir(cell).is_dir() for cell in own.cells())


def _is_made(trial: Any, grid: Grid, folder: SweepFolder) -> bool:
    """Return whether Optuna chose all parameters of a trial, and was not killed before or refused.

    The grid may search for more by now than when the trial's cells were begun.
    """
    is_whole = _search(grid)["search"].keys() <= trial.params.keys()
    return is_whole or _has_cells(trial.number, grid, folder)


def _begun(
    study: Any, grid: Grid, folder: SweepFolder, state: Any
) -> list[tuple[int, dict[str, Any]]]:
    """Return number and parameters of the trials that go on."""
    found = []
    for trial in study.get_trials(deepcopy=False, states=[state.RUNNING]):
        if _is_made(trial, grid, folder):
            found.append((trial.number, dict(trial.params)))
        else:
            study.tell(trial.number, state=state.FAIL)
    return found


def _asked(
    study: Any, search: Mapping[str, Mapping[str, Any]], folder: SweepFolder
) -> tuple[int, dict[str, Any]]:
    """Return number and parameters of a new trial."""
    trial = study.ask()
    try:
        return trial.number, {name: _value(trial, name, spec) for name, spec in search.items()}
    except ValueError as error:  # Optuna's: ranges may move, choices and kinds of ranges may not
        study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        raise ValueError(
            f"Expected the choices and kinds of ranges in `study.search` that the trials in "
            f"{folder.path} had, got others: {error} Change them back, or choose another --output."
        ) from error


def _has_failed(folder: SweepFolder, grid: Grid) -> bool:
    """Return whether a trial without a value would have none the next time either.

    Every cell has ended by itself: it is trained, though without a score, says that it failed, or
    was refused before it began.
    """
    states = folder.states(grid)
    if any(state.reason for state in states.values()):  # what cannot be read says nothing
        return False
    found = set()
    for cell in grid.cells():
        status = states[cell.name].status
        was_refused = status == "missing" and folder.run_dir(cell).is_dir()  # it left no record
        found.add("failed" if was_refused else status)
    return found <= {"done", "trained", "failed"}


def best_trial(folder: SweepFolder) -> tuple[str, Settings, float] | None:
    """Return name, settings and value of the best trial of all sessions; None if none is done."""
    optuna = _optuna()
    study = _study(optuna, folder)
    if not study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
        return None
    best = study.best_trial
    return _name(best.number), _settings_of(best.params), float(best.value)


def read_search(folder: SweepFolder) -> Search | None:
    """Return the trials of all sessions, begun ones also; None where no search has begun."""
    if not (folder.path / _JOURNAL).is_file():
        return None
    with _copied_study(folder) as study:
        trials = _trials_of(study)
        return Search(trials, study.user_attrs.get("value", "score")) if trials else None


def _trials_of(study: Any) -> list[Trial]:
    return [
        Trial(
            _name(trial.number),
            _STATES.get(trial.state.name, "begun"),
            _flat(_settings_of(trial.params)),
            trial.value,
        )
        for trial in study.get_trials(deepcopy=False)
    ]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with hyperparameters beside the others."""
    nested: dict[str, Any] = settings.get("hyperparameters", {})
    return {name: v for name, v in settings.items() if name != "hyperparameters"} | nested


def _optuna() -> Any:
    optuna = import_extra("optuna", "optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextlib.contextmanager
def _copied_study(folder: SweepFolder) -> Iterator[Any]:
    """Yield a folder's study from a copy of its journal: another process may be writing it."""
    with tempfile.TemporaryDirectory() as copied:
        copy = Path(copied) / _JOURNAL
        copy.write_bytes((folder.path / _JOURNAL).read_bytes())
        yield _study(_optuna(), folder, copy)


def _study(optuna: Any, folder: SweepFolder, copy: Path | None = None) -> Any:
    """Return the study of a folder's journal, or of a copy of it; messages name the journal."""
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    journal = folder.path / _JOURNAL
    path = copy or journal
    _drop_torn_line(path)
    try:
        # Optuna's usual lock, a link, stays where its process is killed, and needs a right of
        # Windows; this process holds the folder, so that nobody else has the lock.
        Path(f"{path}.lock").unlink(missing_ok=True)
        lock = JournalFileOpenLock(str(path))
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        return optuna.create_study(
            study_name=_STUDY, storage=storage, direction="maximize", load_if_exists=True
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected the journal of a study in {journal}, got: {error}. Bring back a copy, or "
            "choose another --output."
        ) from error


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a full disk left incomplete: Optuna would write on behind it."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def _search(grid: Grid) -> Settings:
    if grid.study is None:
        raise ValueError("Expected a table [study] in the grid for `--optimize`, got none.")
    return grid.study


def _trainings(grid: Grid) -> dict[str, Any]:
    """Return what trials must have in common for their values to compare."""
    return {
        "games": list(grid.tasks),
        "algos": list(grid.algos),
        "seeds": list(grid.seeds),
        "n_timesteps": grid.n_timesteps,
        "measure": _search(grid)["measure"],
        "train": without_session(grid.train),
    }


def _check_trainings(study: Any, grid: Grid, folder: SweepFolder) -> None:
    """Raise unless the values of the trials so far compare with those to come."""
    former = dict(study.user_attrs)
    if "train" in former:
        former["train"] = without_session(former["train"])
    differing = [
        f"{name} {value} (was {former[name]})"
        for name, value in _trainings(grid).items()
        if name in former and former[name] != value
    ]
    if differing:
        raise ValueError(
            f"Expected the trainings that the trials in {folder.path} had, got "
            f"{'; '.join(differing)}. Change them back, or choose another --output."
        )


def trials_grid(grid: Grid, begun: Mapping[str, Settings]) -> Grid:
    """Return a grid with as many arms as its study has trials.

    `begun` holds the settings of cells that were begun, by name; a trial without any has the first
    settings that it may have.
    """
    search = _search(grid)
    first = {
        name: spec["choices"][0] if "choices" in spec else spec["low"]
        for name, spec in search["search"].items()
    }
    names = [_name(number) for number in range(search["n_trials"])]
    # Numbers of trials that were refused, or killed before they were made, are not used again.
    names += [arm for name in begun for arm in re.findall(r"-(trial_\d+)-\d+$", name)]
    planned = replace(grid, settings=dict.fromkeys(names, _settings_of(first)))
    own: dict[str, dict[str, Any]] = {}
    for cell in planned.cells():
        if cell.name in begun:
            settings = dict(begun[cell.name])
            of_algo = {cell.algo: settings.pop("hyperparameters", {})}
            arm = own.setdefault(cell.arm, {"hyperparameters": {}})
            arm |= {**settings, "hyperparameters": {**arm["hyperparameters"], **of_algo}}
    return replace(planned, settings={**planned.settings, **own})


def _name(number: int) -> str:
    return f"trial_{number:03d}"


def trial_value(folder: SweepFolder, grid: Grid, scales: Scales | None) -> float | None:
    """Return the mean over games of the mean return of a trial's runs; None if one is missing.

    None also if a return is no finite number. The trial is the only arm of the grid, and a run
    counts whether or not its features could be probed. The scales map games to the scores that
    become 0 and 1; None takes returns as they are.
    """
    results = read_results(folder, grid, mixed_versions=True)  # unless asked, `train` refuses them
    if not all(np.isfinite(run.returns).all() for run in results.runs):
        return None
    values = []
    for algo in grid.algos:
        found = scores_by_arm(results.runs, algo, _search(grid)["measure"])
        by_game = found.get(grid.arms[0], {})
        if any(len(by_game.get(game, {})) < len(grid.seeds) for game in grid.tasks):
            return None
        scores = {game: list(by_game[game].values()) for game in grid.tasks}
        scaled = scores if scales is None else normalized(scores, scales)
        values += [np.mean(scaled[game]) for game in grid.tasks]
    return float(np.mean(values))


def _value(trial: Any, name: str, spec: Mapping[str, Any]) -> Any:
    """Let the sampler choose within one range of a grid."""
    if "choices" in spec:
        return trial.suggest_categorical(name, spec["choices"])
    low, high, log = spec["low"], spec["high"], spec.get("log", False)
    is_whole = isinstance(low, int) and isinstance(high, int)
    suggest = trial.suggest_int if is_whole else trial.suggest_float
    return suggest(name, low, high, log=log)


def _settings_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `rl-infonce train`, with "hyperparameters.x" in their own table."""
    plain = {name: v for name, v in parameters.items() if not name.startswith(NESTED)}
    nested = {
        name.removeprefix(NESTED): v for name, v in parameters.items() if name.startswith(NESTED)
    }
    return {**plain, **({"hyperparameters": nested} if nested else {})}
