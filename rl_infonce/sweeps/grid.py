"""The grid of a sweep: a TOML file, checked as a whole before anything is trained."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_infonce.atari.games import resolve_game
from rl_infonce.checks import did_you_mean
from rl_infonce.environments.ids import find_spec, is_atari
from rl_infonce.report.runs import PROBED_ENCODERS
from rl_infonce.scoring.defaults import PROTOCOLS
from rl_infonce.sweeps.arms import ARMS, Settings, control_problems, merged
from rl_infonce.sweeps.search import search_conflicts, study_of, study_problems
from rl_infonce.sweeps.settings_check import (
    PROBE_SETTINGS,
    check_loss,
    complaints,
    probe_problems,
    table_problems,
    train_problems,
    unknown,
    unprobed_problems,
    unused_problems,
)
from rl_infonce.training.algorithms import checked_hyperparameters
from rl_infonce.training.plan import folder_name
from rl_infonce.training.rl_zoo import ALGORITHMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 2**20
_ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # the names of folders contain it


class GridError(ValueError):
    """A grid that cannot be run; every problem is a line of the message."""


@dataclass(frozen=True)
class Cell:
    """One training of a sweep; the settings are those of its arm, for `rl-infonce train`.

    `game` is an Atari game or the Gymnasium id of another environment.
    """

    game: str
    algo: str
    arm: str
    seed: int
    settings: Settings = field(hash=False)

    @property
    def name(self) -> str:
        """Name of the cell's folder."""
        return f"{folder_name(self.game)}-{self.algo}-{self.arm}-{self.seed}"

    @property
    def is_atari(self) -> bool:
        """Whether it plays an Atari game."""
        return is_atari(self.game)


@dataclass(frozen=True)
class Grid:
    """Games x algorithms x arms x seeds, each trained for the same number of agent steps.

    `envs` are Gymnasium ids of environments, which stand beside the games. `settings` holds those
    of each arm, `train` those of all arms, and `probe` those of `rl-infonce probe`; without these,
    features are not probed. `study` holds what `--optimize` searches: "n_trials", "measure" and
    "search", which maps names to ranges or choices.
    """

    games: tuple[str, ...]
    algos: tuple[str, ...]
    seeds: tuple[int, ...]
    n_timesteps: int
    settings: Mapping[str, Settings]
    train: Settings
    probe: Settings | None
    study: Settings | None = None
    envs: tuple[str, ...] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return tuple(self.settings)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Games and environments."""
        return (*self.games, *self.envs)

    def cells(self) -> list[Cell]:
        """Return all cells, seed by seed: a sweep that ends early has whole comparisons."""
        return [
            Cell(game, algo, arm, seed, merged(self.train, settings, algo))
            for seed in self.seeds
            for game in self.tasks
            for algo in self.algos
            for arm, settings in self.settings.items()
        ]

    def probe_settings(self, cell: Cell) -> Settings:
        """Return the settings of `rl-infonce probe` for a cell's features.

        The seed is the cell's unless the grid says otherwise: untrained weights and splits then
        differ between cells as their training does, and are the same for the arms of a seed.
        """
        return {"protocol": list(PROTOCOLS), "seeds": [cell.seed], **(self.probe or {})}

    def probes(self, cell: Cell) -> set[tuple[str, int]]:
        """Return protocol and seed of every probe of a cell's features."""
        if self.probe is None:
            return set()
        settings = self.probe_settings(cell)
        return set(itertools.product(settings["protocol"], settings["seeds"]))


def read_grid(path: Path) -> Grid:
    """Return the grid in a TOML file."""
    return parse_grid(content_of(path), path)


def content_of(path: Path) -> bytes:
    """Return the content of a grid's file, or as much of it as shows that it is too long."""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)


def parse_grid(content: bytes, path: Path, *, check_files: bool = False) -> Grid:
    """Return the grid in the content of a file, whose path is for messages.

    The file is read once: what is trained is then what is kept. With `check_files`, the files and
    environments that the grid names must be there, as for a training.
    """
    if len(content) > _MOST_BYTES:
        raise GridError(f"Expected a grid of less than 1 MB, got {path}.")
    try:
        found = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GridError(f"Expected a grid as TOML in {path}, got: {error}.") from error
    try:
        return make_grid(found, check_files=check_files)
    except GridError as error:
        raise GridError(f"{path}:\n{error}") from None


def make_grid(content: Mapping[str, Any], *, check_files: bool = False) -> Grid:
    """Return the grid that a mapping describes; a `GridError` names every entry that is wrong.

    What does not go together, or not with an algorithm, is named once each table is right alone.

    "games" or "envs", and "n_timesteps", must be given. "algos" (ppo), "arms" (baseline and
    infonce), "seeds" (0, 1, 2) and the tables "train", "arm.NAME", "probe" and "study" may be.
    """
    problems = list(unknown("entry", content, _ENTRIES))
    own = content.get("arm", {})
    problems += [] if isinstance(own, Mapping) else [f"Expected tables [arm.NAME], got {own!r}."]
    own = own if isinstance(own, Mapping) else {}
    arms = {**ARMS, **own}
    problems += [
        f"Expected `arm.{name}` not to be a built-in arm; choose another name."
        for name in own
        if name in ARMS
    ]
    problems += [
        "Expected arms to be named with letters, digits, '.', '_' and '-', beginning with a letter "
        f"or digit, at most 64 of them, and not {PROBED_ENCODERS} nor trial_..., got {name!r}."
        for name in own
        if not _ARM_NAME.fullmatch(name) or name in PROBED_ENCODERS or name.startswith("trial_")
    ]
    values: dict[str, Any] = {}
    for name, (read, default) in _LISTS.items():
        is_there = name in content or default is not None
        given = content.get(name, default)
        values[name], found = _list_of(name, given, read, arms) if is_there else ((), [])
        problems += found
    problems += _task_problems(values, check_files)
    n_timesteps = content.get("n_timesteps")
    if type(n_timesteps) is not int or n_timesteps < 1:
        problems.append(f"Expected `n_timesteps` to be an int >= 1, got {n_timesteps!r}.")
    train, probe, study = content.get("train", {}), content.get("probe"), content.get("study")
    problems += _table_problems(train, own, values, check_files)
    problems += [] if probe is None else table_problems("probe", probe, PROBE_SETTINGS)
    problems += [] if study is None else study_problems(study, values["algos"])
    _refuse(problems)
    settings = {name: arms[name] for name in values.pop("arms")}
    grid = Grid(
        **values,
        n_timesteps=n_timesteps,  # type: ignore[arg-type]
        settings=settings,
        train=train,
        probe=probe,
        study=None if study is None else study_of(study, values["algos"]),
    )
    _refuse(_conflicts(grid))
    return grid


def _refuse(problems: Iterable[str]) -> None:
    """Raise if there is a problem; each is named once."""
    if lines := [f"  {problem}" for problem in dict.fromkeys(problems)]:
        raise GridError("\n".join(lines))


# -- lists -----------------------------------------------------------------------------------------


def _game(game: Any, _arms: Mapping[str, Any]) -> str:
    if not isinstance(game, str):
        raise ValueError(f"Expected a name in `games`, got {game!r}.")
    return resolve_game(game)


def _env(env: Any, _arms: Mapping[str, Any]) -> str:
    if not isinstance(env, str):
        raise ValueError(f"Expected a Gymnasium id in `envs`, got {env!r}.")
    if is_atari(env):
        raise ValueError(f"Expected Atari games in `games`, got {env!r} in `envs`.")
    return env


def _algo(algo: Any, _arms: Mapping[str, Any]) -> str:
    if not isinstance(algo, str) or algo not in ALGORITHMS:
        raise ValueError(f"Expected `algos` of {sorted(ALGORITHMS)}, got {algo!r}.")
    return algo


def _arm(arm: Any, arms: Mapping[str, Any]) -> str:
    if not isinstance(arm, str) or arm not in arms:
        present = sorted(arms)
        hint = did_you_mean(arm, present) or " A table [arm.NAME] makes another one."
        raise ValueError(f"Expected `arms` of {present}, got {arm!r}.{hint}")
    return arm


def _seed(seed: Any, _arms: Mapping[str, Any]) -> int:
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise ValueError(f"Expected `seeds` to be ints from 0 to 2**31 - 1, got {seed!r}.")
    return seed


_LISTS: dict[str, tuple[Callable[[Any, Mapping[str, Any]], Any], list[Any] | None]] = {
    "games": (_game, None),
    "envs": (_env, None),
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


def _task_problems(values: Mapping[str, Sequence[str]], check_registry: bool) -> Iterator[str]:
    """Yield what is wrong with games and environments together.

    A report needs no packages of environments, but a training does.
    """
    for env in values["envs"] if check_registry else ():
        yield from complaints("envs", find_spec, env)
    if not (values["games"] or values["envs"]):
        yield "Expected `games` or `envs` to be a list of at least one, got neither."
    # games that stand there twice are named already
    names = [folder_name(each) for each in (*dict.fromkeys(values["games"]), *values["envs"])]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield (
            "Expected `games` and `envs` whose folders have different names, got "
            f"{', '.join(twice)} twice. Give one of them a grid of its own."
        )


# -- settings --------------------------------------------------------------------------------------


def _table_problems(
    train: Any, own: Mapping[str, Any], values: Mapping[str, Sequence[str]], check_files: bool
) -> Iterator[str]:
    """Yield what is wrong with each table of settings alone, or has no effect."""
    tables = {"train": train, **{f"arm.{name}": table for name, table in own.items()}}
    for where, table in tables.items():
        yield from train_problems(where, table, check_files=check_files)
        yield from unused_problems(where, table, values["algos"])
    unused = sorted(own.keys() - {*values["arms"]})
    if unused:
        yield f"Expected each [arm.*] also in `arms`, got {', '.join(unused)} there alone."


def _conflicts(grid: Grid) -> Iterator[str]:
    """Yield what a training or a probe would refuse in tables that are right on their own."""
    yield from _settings_problems(grid)
    if grid.probe is not None:
        yield from probe_problems(grid.probe, grid.games, grid.envs)
        yield from unprobed_problems(grid.train, grid.settings)
    if grid.study is not None:
        yield from search_conflicts(grid.study, grid.train)


def _settings_problems(grid: Grid) -> Iterator[str]:
    """Yield what the extractor and the algorithms would refuse."""
    for algo, arm in itertools.product(grid.algos, grid.arms):
        where = f"Arm {arm!r} with {algo}"
        problems = control_problems(grid.train, arm, algo, has_envs=bool(grid.envs))
        yield from (f"{where}: {each}" for each in problems)
        settings = merged(grid.train, grid.settings[arm], algo)
        if settings.get("normalize") and grid.games:
            yield f"{where}: Expected `normalize` with `envs` alone, got it with `games`."
        yield from complaints(where, check_loss, settings)
        for name, value in settings.get("hyperparameters", {}).items():
            yield from complaints(where, checked_hyperparameters, algo, {name: value})
