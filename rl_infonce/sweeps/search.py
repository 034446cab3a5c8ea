"""The table [study] of a grid: what `--optimize` searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_infonce.kinds import TABLE, Choice, Count, Flag, Kind, Number
from rl_infonce.settings import Horizons
from rl_infonce.sweeps.settings_check import (
    SETTINGS,
    check_loss,
    complaints,
    table_problems,
    train_problems,
    unknown,
)
from rl_infonce.training.algorithms import checked_hyperparameters, defaults_of
from rl_infonce.training.hyperparameter_kinds import takes_ints
from rl_infonce.training.rl_zoo import USUAL_HYPERPARAMETERS

NESTED = "hyperparameters."
STUDY_SETTINGS: dict[str, Kind] = {
    "n_trials": Count(),
    "measure": Choice(("area", "final")),
    "search": TABLE,
}


def study_problems(study: Any, algos: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a study as it was given."""
    yield from table_problems("study", study, STUDY_SETTINGS)
    if not isinstance(study, Mapping):
        return
    for name in ("n_trials", "search"):
        if name not in study:
            yield f"Expected `study.{name}`, got none."
    search = study.get("search")
    if search == {}:
        yield "Expected `study.search` to have at least one setting, got none."
    for name, spec in search.items() if isinstance(search, Mapping) else ():
        yield from _search_problems(name, spec, algos)


def _search_problems(name: str, spec: Any, algos: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with one searched setting and its range."""
    if _is_range(spec):
        yield from _name_problems(name, _values(spec), algos)
        for given in _given(name, spec):
            yield from train_problems("study.search", given)
    elif name == "hyperparameters" and isinstance(spec, Mapping):
        for own in spec:  # a dot outside quotes makes a table in TOML
            yield f"Expected `study.search` with {_quoted(own)} in quotes, got it without."
    else:
        yield (
            f"Expected `study.search.{name}` to be {{low = x, high = y}}, also with "
            f"log = true, or {{choices = [...]}}, got {spec!r}."
        )


def search_conflicts(study: Mapping[str, Any], train: Mapping[str, Any]) -> Iterator[str]:
    """Yield why trainings would refuse a sound study's settings beside those of all trials."""
    if complaints("", check_loss, train):  # these are named already
        return
    for name, spec in study["search"].items():
        for given in _given(name, spec):
            yield from complaints("[study.search]", check_loss, {**train, **given})


def study_of(study: Mapping[str, Any], algos: Sequence[str]) -> Mapping[str, Any]:
    """Return a sound study with its defaults, and with floats where settings take floats."""
    search = {name: _with_floats(name, spec, algos) for name, spec in study["search"].items()}
    return {"measure": "area", **study, "search": search}


def _is_range(spec: Any) -> bool:
    if not isinstance(spec, Mapping):
        return False
    if spec.keys() == {"choices"}:
        choices = spec["choices"] if isinstance(spec["choices"], list) else []
        return bool(choices) and all(isinstance(each, str | int | float) for each in choices)
    if not {"low", "high"} <= spec.keys() <= {"low", "high", "log"}:
        return False
    low, high, log = spec["low"], spec["high"], spec.get("log", False)
    if not (Number().fits(low) and Number().fits(high) and Flag().fits(log)):
        return False
    return bool(low < high and (low > 0 or not log))


def _values(spec: Mapping[str, Any]) -> list[Any]:
    """Return the choices, or the ends of a range."""
    return list(spec["choices"]) if "choices" in spec else [spec["low"], spec["high"]]


def _name_problems(name: str, values: Sequence[Any], algos: Sequence[str]) -> Iterator[str]:
    """Yield why no training has such a setting, or a hyperparameter no such values."""
    if name.startswith(NESTED):
        yield from _hyperparameter_problems(name, values, algos)
    elif name in set(USUAL_HYPERPARAMETERS) - SETTINGS.keys():
        yield f"Unknown setting in [study.search]: {name!r}. Did you mean {_quoted(name)}?"
    else:
        yield from unknown("setting in [study.search]", {name: values}, SETTINGS)


def _quoted(hyperparameter: str) -> str:
    """Return the key of a hyperparameter as it stands in a grid."""
    return f'`"{NESTED}{hyperparameter}"`'


def _hyperparameter_problems(
    name: str, values: Sequence[Any], algos: Sequence[str]
) -> Iterator[str]:
    """Yield what the algorithms refuse, and whole floats: a range from one holds others also."""
    own, is_whole = name.removeprefix(NESTED), _is_whole(name, algos)
    for value in values:
        problems = [
            each
            for algo in algos
            for each in complaints(
                f"study.search with {algo}", checked_hyperparameters, algo, {own: value}
            )
        ]
        if is_whole and isinstance(value, float) and not problems:
            problems = [
                f"Expected `study.search.{name}` with ints, got {value!r}. Write {int(value)}."
            ]
        yield from problems


def _given(name: str, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each value of a search as the table that gives it to a training, if it is a setting.

    One horizon stands for a list of one.
    """
    kind = SETTINGS.get(name)
    if kind is None:
        return []
    return [
        {name: [value] if kind.fits([value]) and not kind.fits(value) else value}
        for value in _values(spec)
    ]


def _is_whole(name: str, algos: Sequence[str]) -> bool:
    """Return whether a setting, or a hyperparameter of these algorithms, takes ints alone."""
    if not name.startswith(NESTED):
        return isinstance(SETTINGS[name], Count | Horizons)
    own = name.removeprefix(NESTED)
    return any(takes_ints(own, defaults_of(algo).get(own)) for algo in algos)


def _with_floats(name: str, spec: Mapping[str, Any], algos: Sequence[str]) -> Mapping[str, Any]:
    """Return a range whose ends have the setting's type: `low = 0` may mean an int or a float."""
    if "choices" in spec or _is_whole(name, algos):
        return spec
    return {**spec, "low": float(spec["low"]), "high": float(spec["high"])}
