"""What the features of each arm know, as rows of text: over all games, and game by game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rl_infonce.report.formatting import counted, notes_on_arms
from rl_infonce.report.runs import Run, arms_of
from rl_infonce.report.table import Table

_REFERENCES = ("majority", "untrained")
_F1ByGame = dict[str, list[Mapping[str, float]]]


def probe_table(runs: Sequence[Run], algo: str, protocol: str) -> Table:
    """Return categories by arms: mean F1 over games and seeds, beside the untrained encoder's.

    Over the games that every column has, and of each category over those of them that have it.
    """
    columns, games = _probed(runs, algo, protocol)
    order = list(columns)
    shared = [game for game in games if all(game in columns[name] for name in order)]
    rows = [
        [category.replace("_", " "), *_f1_row(category, list(columns.values()), shared)]
        for category in _categories(columns, games)
    ]
    notes = [_averaged(columns, shared)]
    for game in games:
        lacking = [name for name in order if game not in columns[name]]
        if lacking:
            notes.append(f"left out {game}: not probed for {', '.join(lacking)}")
    notes += [f"{arm}: not probed on any game" for arm in arms_of(runs) if arm not in columns]
    return Table(["mean F1 over games", "games", *order], rows, notes)


def probe_table_by_game(
    runs: Sequence[Run], algo: str, protocol: str, planned: Mapping[str, int]
) -> Table:
    """Return the categories of every game by arms: mean F1 over seeds.

    `planned` maps a column to the number of scores that were planned for each game, see
    `with_references`.
    """
    columns, games = _probed(runs, algo, protocol)
    rows = []
    for game in games:
        for category in _categories(columns, [game]):
            _, *cells = _f1_row(category, list(columns.values()), [game])
            rows.append([f"{game}: {category.replace('_', ' ')}", *cells])
    too_few = {
        name: [
            f"{len(column.get(game, []))} of {planned[name]} "
            f"{'runs' if name in _REFERENCES else 'seeds'} of {game}"
            for game in games
            if len(column.get(game, [])) < planned.get(name, 0)
        ]
        for name, column in columns.items()
    }
    return Table(["mean F1 over seeds", *columns], rows, notes_on_arms(too_few))


def with_references(planned: Mapping[str, int]) -> dict[str, int]:
    """Return planned seeds with those of the majority class and of the untrained encoder.

    Both are scored beside every run of every arm.
    """
    return {**dict.fromkeys(_REFERENCES, sum(planned.values())), **planned}


def _probed(
    runs: Sequence[Run], algo: str, protocol: str
) -> tuple[dict[str, _F1ByGame], list[str]]:
    """Return column to the F1 by category of its runs on each game, and the games."""
    probed = [run for run in runs if run.algo == algo and protocol in run.probes]
    untrained = _untrained_names(probed, protocol)
    found: dict[str, _F1ByGame] = {}
    for run in probed:
        names = {"trained": run.arm, "untrained": untrained.get(run.architecture, "")}
        for encoder, f1 in run.probes[protocol].items():
            column = found.setdefault(names.get(encoder, encoder), {})
            column.setdefault(run.game, []).append(f1)
    order = [name for name in ("majority", *untrained.values(), *arms_of(runs)) if name in found]
    games = sorted({game for column in found.values() for game in column})
    return {name: found[name] for name in order}, games


def _untrained_names(runs: Sequence[Run], protocol: str) -> dict[str, str]:
    """Return the column of the untrained encoder of each architecture, which are not averaged."""
    probed = [run.architecture for run in runs if "untrained" in run.probes[protocol]]
    if len(set(probed)) == 1:
        return {probed[0]: "untrained"}
    return {each: f"untrained {each}" for each in probed}


def _categories(columns: Mapping[str, _F1ByGame], games: Sequence[str]) -> list[str]:
    """Return the categories that any column has on the games, the mean of all first."""
    found = {
        category
        for column in columns.values()
        for game in games
        for f1 in column.get(game, [])
        for category in f1
    }
    return sorted(found, key=lambda category: (category != "mean", category))


def _f1_row(category: str, columns: Sequence[_F1ByGame], games: Sequence[str]) -> list[str]:
    """Return how many games a category has, and its mean F1 over them in each column."""
    values = [
        {
            game: [f1[category] for f1 in column[game] if category in f1]
            for game in games
            if any(category in f1 for f1 in column.get(game, []))
        }
        for column in columns
    ]
    having = [set(by_game) for by_game in values if by_game]
    shared = sorted(set.intersection(*having)) if having else []
    cells = [
        f"{np.mean([np.mean(by_game[game]) for game in shared]):.3f}"
        if shared and by_game
        else "missing"
        for by_game in values
    ]
    return [str(len(shared)), *cells]


def _averaged(columns: Mapping[str, _F1ByGame], games: Sequence[str]) -> str:
    if not games:
        return "No game was probed for every column, so there is no average."
    runs = [f"{name} {sum(len(found[game]) for game in games)}" for name, found in columns.items()]
    return f"Over {counted(len(games), 'game')} ({', '.join(games)}); scores: {', '.join(runs)}."
