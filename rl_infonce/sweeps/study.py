"""Search for good settings: each trial of an Optuna study is an arm, trained on a whole grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl_infonce.report.runs import score_runs, scores_by_arm
from rl_infonce.sweeps.arms import Settings
from rl_infonce.sweeps.grid import Cell, Grid
from rl_infonce.sweeps.results import read_results
from rl_infonce.sweeps.sweep_folder import SweepFolder

__all__ = ["run_study", "trial_value"]

_JOURNAL = "study.log"
_NESTED = "hyperparameters."


def run_study(
    folder: SweepFolder,
    grid: Grid,
    train: Callable[[Sequence[Cell], Grid], bool],
    scales: Mapping[str, tuple[float, float]] | None,
    *,
    seed: int = 0,
) -> Iterator[tuple[str, Settings, float | None]]:
    """Yield name, settings and value of each trial; None as its value if a cell failed.

    The study is a journal in the folder: trials that were begun by a process that is gone go on
    first, with the checkpoints of their cells.

    Args:
        folder: Of the sweep, held.
        grid: With a study; its arms are not trained.
        train: Trains the cells of a grid that are not done, and says whether to go on.
        scales: As of `trial_value`.
        seed: Of the sampler, Optuna's tree of Parzen estimators.

    Raises:
        ModuleNotFoundError: If Optuna is not installed.
        ValueError: If the grid has no study.
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'Expected Optuna for `--optimize`; pip install "rl-infonce[optuna]".'
        ) from None
    if grid.study is None:
        raise ValueError("Expected a table [study] in the grid for `--optimize`, got none.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = JournalFileBackend(str(folder.path / _JOURNAL))
    study = optuna.create_study(
        study_name=folder.path.name,
        storage=optuna.storages.JournalStorage(backend),
        sampler=optuna.samplers.TPESampler(seed=seed),
        direction="maximize",
        load_if_exists=True,
    )
    begun = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
    numbers = [(trial.number, dict(trial.params)) for trial in begun]
    n_ended = len(study.trials) - len(begun)
    while n_ended < grid.study["n_trials"]:
        if numbers:
            number, parameters = numbers.pop(0)
        else:
            trial = study.ask()
            number, parameters = trial.number, _suggested(trial, grid.study["search"])
        name, settings = f"trial_{number:03d}", _settings_of(parameters)
        own = replace(grid, arms=(name,), settings={name: settings})
        if not train(own.cells(), own):
            return
        value = trial_value(folder, own, scales)
        study.tell(number, value, state=None if value is not None else _failed(optuna))
        n_ended += 1
        yield name, settings, value


def _failed(optuna: Any) -> Any:
    return optuna.trial.TrialState.FAIL


def trial_value(
    folder: SweepFolder, grid: Grid, scales: Mapping[str, tuple[float, float]] | None
) -> float | None:
    """Return the mean over games of the mean return of a trial's runs; None if one is missing.

    Args:
        folder: Of the sweep.
        grid: Whose only arm is the trial.
        scales: Game -> scores that become 0 and 1; None takes returns as they are.
    """
    results = read_results(folder, grid)
    if results.missing or grid.study is None:
        return None
    values = []
    for algo in grid.algos:
        found = scores_by_arm(score_runs(results.runs), algo, grid.study["measure"])
        by_game = found.get(grid.arms[0], {})
        if any(len(by_game.get(game, {})) < len(grid.seeds) for game in grid.games):
            return None
        for game in grid.games:
            low, high = (0.0, 1.0) if scales is None else scales[game]
            values.append((np.mean(list(by_game[game].values())) - low) / (high - low))
    return float(np.mean(values))


def _suggested(trial: Any, search: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Let the sampler choose within the ranges of a grid."""
    return {name: _value(trial, name, spec) for name, spec in search.items()}


def _value(trial: Any, name: str, spec: Mapping[str, Any]) -> Any:
    if "choices" in spec:
        return trial.suggest_categorical(name, spec["choices"])
    low, high, log = spec["low"], spec["high"], spec.get("log", False)
    is_whole = isinstance(low, int) and isinstance(high, int)
    suggest = trial.suggest_int if is_whole else trial.suggest_float
    return suggest(name, low, high, log=log)


def _settings_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `rl-infonce train`, with "hyperparameters.x" in their own table."""
    plain = {name: v for name, v in parameters.items() if not name.startswith(_NESTED)}
    nested = {
        name.removeprefix(_NESTED): v for name, v in parameters.items() if name.startswith(_NESTED)
    }
    return {**plain, **({"hyperparameters": nested} if nested else {})}
