"""The grid of a sweep: a TOML file, read with all its problems named at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rl_infonce.atari.games import resolve_game
from rl_infonce.presets import InfoNCESettings, settings_of
from rl_infonce.sb3.atari_model import ALGORITHMS, check_hyperparameters
from rl_infonce.sweeps.arms import ARMS, Settings, merged

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Cell", "Grid", "GridError", "make_grid", "read_grid"]

_MOST_BYTES = 2**20
_OF_A_PRESET = {"preset", *(each.name for each in fields(InfoNCESettings))}


class GridError(ValueError):
    """A grid that cannot be run; every problem is a line of the message."""


@dataclass(frozen=True)
class Cell:
    """One training of a sweep.

    Attributes:
        game: Its canonical name.
        algo: "ppo" or "dqn".
        arm: Name of its settings.
        seed: At least 0.
        settings: Of `rl-infonce train`, beside these and the number of steps.
    """

    game: str
    algo: str
    arm: str
    seed: int
    settings: Settings = field(hash=False)

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.game}-{self.algo}-{self.arm}-{self.seed}"


@dataclass(frozen=True)
class Grid:
    """Games x algorithms x arms x seeds.

    Attributes:
        games: Canonical names.
        algos: Of "ppo" and "dqn".
        arms: Names, of `ARMS` or of the grid's own.
        seeds: Distinct.
        n_timesteps: Agent steps of every training.
        settings: Of each arm.
        train: Settings of all arms.
        probe: Settings of `rl-infonce probe` for the features of every cell; None for no probes.
        study: What `--optimize` searches: "n_trials", "measure" and "search", name to range or
            choices; None if nothing.
    """

    games: tuple[str, ...]
    algos: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    n_timesteps: int
    settings: Mapping[str, Settings]
    train: Settings
    probe: Settings | None
    study: Settings | None = None

    def cells(self) -> list[Cell]:
        """Return all cells, seed by seed: a sweep that ends early has whole comparisons."""
        return [
            Cell(game, algo, arm, seed, merged(self.train, self.settings[arm], algo))
            for seed in self.seeds
            for game in self.games
            for algo in self.algos
            for arm in self.arms
        ]


def read_grid(path: Path) -> Grid:
    """Return the grid in a TOML file.

    Raises:
        GridError: If it is no TOML, or any entry is not known or not legal; all are named.
        OSError: If it cannot be read.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise GridError(f"Expected a grid of less than 1 MB, got {path}.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GridError(f"Expected a grid as TOML in {path}, got: {error}.") from error
    try:
        return make_grid(content)
    except GridError as error:
        raise GridError(f"{path}:\n{error}") from None


def make_grid(content: Mapping[str, Any]) -> Grid:
    """Return the grid that a mapping describes.

    Args:
        content: "games", "n_timesteps"; and, if not the defaults, "algos" (ppo), "arms" (baseline
            and infonce), "seeds" (0, 1, 2), tables "train", "arm.NAME", "probe" and "study".

    Raises:
        GridError: If any entry is not known or not legal; all are named.
    """
    problems = list(_unknown("entry", content, _ENTRIES))
    own = content.get("arm", {})
    own = own if isinstance(own, Mapping) else {}
    arms = {**ARMS, **own}
    problems += [
        f"Expected `arm.{name}` not to be a built-in arm; choose another name."
        for name in own
        if name in ARMS
    ]
    values: dict[str, Any] = {}
    for name, (read, default) in _LISTS.items():
        values[name], found = _list_of(name, content.get(name, default), read, arms)
        problems += found
    n_timesteps = content.get("n_timesteps")
    if type(n_timesteps) is not int or n_timesteps < 1:
        problems.append(f"Expected `n_timesteps` to be an int >= 1, got {n_timesteps!r}.")
    train = content.get("train", {})
    probe = content.get("probe")
    for where, table, known in (
        ("train", train, _SETTINGS),
        ("probe", {} if probe is None else probe, _PROBE),
        *((f"arm.{name}", table, _SETTINGS) for name, table in own.items()),
    ):
        problems += _table_problems(where, table, known)
    study = content.get("study")
    problems += [] if study is None else _study_problems(study)
    if not problems:
        problems = list(_settings_problems(values, arms, train))
    if problems:
        raise GridError("\n".join(f"  {problem}" for problem in dict.fromkeys(problems)))
    return Grid(
        **values,
        n_timesteps=n_timesteps,  # type: ignore[arg-type]
        settings={name: arms[name] for name in values["arms"]},
        train=train,
        probe=probe,
        study=None if study is None else {"measure": "area", **study},
    )


# -- lists -----------------------------------------------------------------------------------------


def _game(game: Any, _arms: Mapping[str, Any]) -> str:
    if not isinstance(game, str):
        raise ValueError(f"Expected a name in `games`, got {game!r}.")
    return resolve_game(game)


def _algo(algo: Any, _arms: Mapping[str, Any]) -> str:
    if not isinstance(algo, str) or algo not in ALGORITHMS:
        raise ValueError(f"Expected `algos` of {sorted(ALGORITHMS)}, got {algo!r}.")
    return algo


def _arm(arm: Any, arms: Mapping[str, Any]) -> str:
    if not isinstance(arm, str) or arm not in arms:
        near = get_close_matches(str(arm), arms, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else " A table [arm.NAME] makes another one."
        raise ValueError(f"Expected `arms` of {sorted(arms)}, got {arm!r}.{hint}")
    return arm


def _seed(seed: Any, _arms: Mapping[str, Any]) -> int:
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise ValueError(f"Expected `seeds` to be ints from 0 to 2**31 - 1, got {seed!r}.")
    return seed


_LISTS: dict[str, tuple[Callable[[Any, Mapping[str, Any]], Any], list[Any]]] = {
    "games": (_game, []),
    "algos": (_algo, ["ppo"]),
    "arms": (_arm, ["baseline", "infonce"]),
    "seeds": (_seed, [0, 1, 2]),
}
_ENTRIES = {*_LISTS, "n_timesteps", "train", "arm", "probe", "study"}


def _list_of(
    name: str, given: Any, read: Callable[..., Any], arms: Mapping[str, Any]
) -> tuple[tuple[Any, ...], list[str]]:
    """Return the elements that are legal, and what is wrong with the others."""
    if not isinstance(given, list) or not given:
        return (), [f"Expected `{name}` to be a list of at least one, got {given!r}."]
    values, problems = [], []
    for each in given:
        try:
            values.append(read(each, arms))
        except ValueError as error:
            problems.append(str(error))
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        problems.append(f"Expected each of `{name}` once, got {', '.join(twice)} more than once.")
    return tuple(values), problems


# -- tables ----------------------------------------------------------------------------------------

_Check = Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_ints(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


_SETTINGS: dict[str, tuple[_Check, str]] = {
    "infonce_coef": (_is_number, "a number"),
    "horizons": (_is_ints, "a list of ints"),
    "preset": (_is_text, "text"),
    "precision": (_is_text, "text"),
    "n_pairs": (_is_int, "an int >= 1"),
    "positives": (_is_text, "text"),
    "augment_observations": (_is_flag, "true or false"),
    "freeze_encoder": (_is_flag, "true or false"),
    "encoder": (_is_text, "a path"),
    "hyperparameters": (_is_table, "a table"),
    "n_envs": (_is_int, "an int >= 1"),
    "save_freq": (_is_int, "an int >= 1"),
    "on_nan": (_is_text, "text"),
    "device": (_is_text, "text"),
}
_STUDY: dict[str, tuple[_Check, str]] = {
    "n_trials": (_is_int, "an int >= 1"),
    "measure": (_is_text, "text"),
    "search": (_is_table, "a table"),
}
_PROBE: dict[str, tuple[_Check, str]] = {
    "n_frames": (_is_int, "an int >= 1"),
    "labels": (_is_text, "text"),
    "protocol": (_is_texts, "a list of names"),
    "policy": (_is_text, "text"),
    "data_seed": (_is_number, "an int"),
    "seeds": (_is_ints, "a list of ints"),
}


def _table_problems(
    where: str, table: Any, known: Mapping[str, tuple[_Check, str]]
) -> Iterator[str]:
    if not isinstance(table, Mapping):
        yield f"Expected a table [{where}], got {table!r}."
        return
    yield from _unknown(f"setting in [{where}]", table, known)
    for name, value in table.items():
        if name in known and not known[name][0](value):
            yield f"Expected `{where}.{name}` to be {known[name][1]}, got {value!r}."


def _unknown(what: str, given: Mapping[str, Any], known: Mapping[str, Any] | set[str]) -> Any:
    for name in given:
        if name not in known:
            near = get_close_matches(name, list(known), n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are {sorted(known)}."
            yield f"Unknown {what}: {name!r}. {hint}"


def _study_problems(study: Any) -> Iterator[str]:
    yield from _table_problems("study", study, _STUDY)
    if not isinstance(study, Mapping):
        return
    for name in ("n_trials", "search"):
        if name not in study:
            yield f"Expected `study.{name}`, got none."
    if study.get("measure", "area") not in ("area", "final"):
        yield f"Expected `study.measure` to be area or final, got {study['measure']!r}."
    search = study.get("search")
    for name, spec in search.items() if isinstance(search, Mapping) else ():
        if name.removeprefix("hyperparameters.") == name and name not in _SETTINGS:
            yield from _unknown("setting in [study.search]", {name: spec}, _SETTINGS)
        if not _is_range(spec):
            yield (
                f"Expected `study.search.{name}` to be {{low = x, high = y}}, also with "
                f"log = true, or {{choices = [...]}}, got {spec!r}."
            )


def _is_range(spec: Any) -> bool:
    if not isinstance(spec, Mapping):
        return False
    if spec.keys() == {"choices"}:
        choices = spec["choices"]
        simple = (str, int, float, bool)
        return (
            isinstance(choices, list)
            and bool(choices)
            and all(isinstance(each, simple) for each in choices)
        )
    if not {"low", "high"} <= spec.keys() <= {"low", "high", "log"}:
        return False
    low, high, log = spec["low"], spec["high"], spec.get("log", False)
    if not (_is_number(low) and _is_number(high) and _is_flag(log)):
        return False
    return math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)


def _settings_problems(
    values: Mapping[str, Any], arms: Mapping[str, Settings], train: Settings
) -> Iterator[str]:
    """Yield what the extractor and the algorithms would refuse."""
    for algo in values["algos"]:
        for arm in values["arms"]:
            settings = merged(train, arms[arm], algo)
            given = {name: settings[name] for name in settings if name in _OF_A_PRESET}
            try:
                settings_of(given.pop("preset", "cpc"), given)
                check_hyperparameters(algo, settings.get("hyperparameters", {}))
            except (ValueError, TypeError) as error:
                yield f"Arm {arm!r} with {algo}: {error}"
