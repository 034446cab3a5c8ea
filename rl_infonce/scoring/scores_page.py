"""`scores.md`: the scores of a folder as tables, beside the published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from rl_infonce.atari.labels import CATEGORIES
from rl_infonce.atari.published import PUBLISHED_SOURCE, published_categories, published_scores
from rl_infonce.report.table import markdown_table

_PUBLISHED = ("maj-clf", "random-cnn", "pretrained-rl-agent", "cpc", "st-dim", "supervised")
_SHORT = {
    "agent_localization": "agent",
    "small_object_localization": "small objects",
    "other_localization": "other objects",
    "score_clock_lives_display": "score, clock, lives",
    "misc": "misc",
}
_PUBLISHED_SETTINGS = {
    "view": "screen",
    "labels": "anand2019",
    "policy": "random_without_noop",
    "n_frames": 50_000,
}
PUBLISHED_MIN_EPISODE_LENGTH = 65
_ALWAYS_DIFFERENT = (
    "Measured rows always differ in the split, which shuffles whole games; in the start of a game, "
    "0 to 29 idle frames with FIRE as the first, where the published code takes 1 to 30 and then "
    "actions 1 and 2 for four frames each; in lost lives, after which there is neither FIRE nor an "
    "idle step; in the maximum of two frames, which is taken over gray; in the labels of an "
    "episode's first frame, which are its own; and in test frames that repeat, which do not count "
    "in the entropy and may leave an episode of one frame."
)
_FEW_GAMES = (
    "Fewer than {} games chose the penalties of {}: these scores may be too low. More frames "
    "(`--n-frames`) hold more games."
)
_PUBLISHED_PROTOCOL = "anand2019"
_OF_F1 = ("converged", "anand2019", "knn")
_N_PAPER_GAMES = 22
_RANDOM, _PPO = "random_agent", "ppo_agent"
Entries = Sequence[dict[str, Any]]


def scores_table(content: dict[str, Any]) -> str:
    """Return the Markdown text of what `scores.json` holds."""
    scored = _where(content["cells"], status="done")
    names = encoder_names(content["encoders"])
    by_protocol = {name: found for name in _OF_F1 if (found := _where(scored, protocol=name))}
    parts = [_heading(content, scored)]
    for protocol, entries in by_protocol.items():
        # Beside their own protocol: under another, the same features score otherwise.
        is_compared = protocol == _PUBLISHED_PROTOCOL
        beside = _published_frames(content["settings"]) if is_compared else None
        parts += [f"## Protocol `{protocol}`", _categories(entries, names, beside)]
        parts += _few_games(entries) if protocol == "converged" else []
    if in_pixels := _where(scored, protocol="ridge"):
        parts += ["## Positions, protocol `ridge`", _positions(in_pixels, names)]
    for protocol, entries in by_protocol.items():
        parts += [f"## Variables, protocol `{protocol}`", *_variables(entries, names)]
    failures = [_failure(entry, names) for entry in content["cells"] if entry["status"] != "done"]
    if failures:
        parts += ["## Failed", "\n".join(failures)]
    return "\n\n".join(parts) + "\n"


def _where(entries: Entries, **wanted: str) -> list[dict[str, Any]]:
    """Return the entries that have these values."""
    return [each for each in entries if all(each[name] == wanted[name] for name in wanted)]


def encoder_names(encoders: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return key -> name in the table, asked encoders first, then untrained ones, majority."""
    order = {"file": 0, "random": 1, "majority": 2}
    several = sum(entry["kind"] == "random" for entry in encoders.values()) > 1
    names = {
        key: f"untrained {entry['description']}"
        if several and entry["kind"] == "random"
        else str(entry["name"])
        for key, entry in sorted(encoders.items(), key=lambda item: order[item[1]["kind"]])
    }
    counts = Counter(names.values())
    return {key: f"{name} ({key})" if counts[name] > 1 else name for key, name in names.items()}


def _heading(content: dict[str, Any], scored: Entries) -> str:
    settings = content["settings"]
    is_compared = any(entry["protocol"] == _PUBLISHED_PROTOCOL for entry in scored)
    seeds = sorted({entry["seed"] for entry in scored})
    frames_of = _published_frames(settings)
    same = {k: v for k, v in _PUBLISHED_SETTINGS.items() if (frames_of, k) != (_PPO, "policy")}
    differs = [f"{k}={settings[k]}" for k, v in same.items() if settings[k] != v]
    shortest = settings.get("min_episode_length")
    if shortest not in (None, PUBLISHED_MIN_EPISODE_LENGTH):
        differs.append(f"min_episode_length={shortest}")
    return "\n\n".join(
        [
            "# Probe scores",
            "Weighted F1 of linear probes on frozen features: mean over the seeds, in brackets "
            "lowest to highest of the seeds, or, after `95 %:`, the interval of a single seed for "
            f"other test games. Frames: {settings['n_frames']:,} per game, view "
            f"`{settings['view']}`, policy `{settings['policy']}`, data seed "
            f"{settings['data_seed']}. Labels: `{settings['labels']}`. Encoders in "
            f"{settings['precision']} unless they say otherwise. Seeds: "
            f"{', '.join(map(str, seeds))}. A game's mean is the mean over its categories.",
            *([_about_published(differs, frames_of)] if is_compared else []),
            "\n".join(f"    {each}" for each in _commands(content, scored)),
        ]
    )


def _commands(content: dict[str, Any], scored: Entries) -> list[str]:
    """Return the commands that gave these scores, the oldest first."""
    gave_some = {entry.get("run") for entry in scored}
    commands = [run["command"] for n, run in enumerate(content["runs"]) if n in gave_some]
    return list(dict.fromkeys(commands))


def _published_frames(settings: dict[str, Any]) -> str:
    """Return whose frames gave the published rows that stand beside the measured ones."""
    return _PPO if settings["policy"].startswith("model ") else _RANDOM


def _about_published(differs: Sequence[str], frames_of: str) -> str:
    """Return what published rows are, and in which settings measured ones differ."""
    asked = f" Here they differ, as asked, in {', '.join(differs)}." if differs else ""
    return (
        f"Published rows: {PUBLISHED_SOURCE}, protocol `{_PUBLISHED_PROTOCOL}`, frames of "
        f"{'their PPO' if frames_of == _PPO else 'a random'} agent, one run. "
        f"{_ALWAYS_DIFFERENT}{asked}"
    )


def _categories(entries: Entries, names: dict[str, str], beside: str | None) -> str:
    """Return the table of means and categories; `beside` names the frames of published rows."""
    games = sorted({entry["game"] for entry in entries})
    rows: list[list[str]] = []
    for game in games:
        rows += _game_rows(game, _where(entries, game=game), names)
        rows += _published_rows(game, beside) if beside else []
    if len(games) > 1:
        rows += _mean_rows(games, entries, names)
        rows += _published_mean_rows(games, beside) if beside else []
    return markdown_table(["game", "encoder", "mean", *(_SHORT[c] for c in CATEGORIES)], rows)


def _few_games(entries: Entries) -> list[str]:
    """Return the sentence that names cells whose penalties hardly any game has chosen."""
    from rl_infonce.probing.scores import MIN_VALIDATION_GROUPS  # needs torch

    few = dict.fromkeys(
        f"{entry['game']} seed {entry['seed']}"
        for entry in entries
        # absent in files of earlier versions
        if entry["scores"].get("settings", {}).get("n_validation_groups", MIN_VALIDATION_GROUPS)
        < MIN_VALIDATION_GROUPS
    )
    return [_FEW_GAMES.format(MIN_VALIDATION_GROUPS, ", ".join(few))] if few else []


def _game_rows(game: str, entries: Entries, names: dict[str, str]) -> Iterator[list[str]]:
    for key, name in names.items():
        if own := _where(entries, encoder=key):
            mean = _mean_and_spread(own) + _other_seeds(own, entries)
            categories = (_mean_or_dash(_f1(own, "categories", each)) for each in CATEGORIES)
            yield [game, name, mean, *categories]


def _published_rows(game: str, beside: str) -> Iterator[list[str]]:
    for method, f1 in published_scores(game, beside).items():
        if method in _PUBLISHED:
            yield [game, f"*published, {method}*", f"{f1:.2f}", *["-"] * len(CATEGORIES)]


def _mean_rows(games: list[str], entries: Entries, names: dict[str, str]) -> Iterator[list[str]]:
    """Yield the means over all games of the encoders that have scores on each of them."""
    for key, name in names.items():
        per_game = [_where(entries, encoder=key, game=game) for game in games]
        if all(per_game):
            mean = fmean(fmean(_means(own)) for own in per_game)
            is_partial = any(_other_seeds(own, entries) for own in per_game)
            shown = f"{mean:.3f}" + ("; not all seeds" if is_partial else "")
            categories = (_mean_category(per_game, each) for each in CATEGORIES)
            yield [f"mean of {len(games)}", name, shown, *categories]


def _mean_category(per_game: Sequence[Entries], category: str) -> str:
    f1 = (_f1(own, "categories", category) for own in per_game)
    return _mean_or_dash([fmean(of_game) for of_game in f1 if of_game])


def _published_mean_rows(games: list[str], beside: str) -> Iterator[list[str]]:
    """Yield published means; those of categories exist over the games of the whole paper alone."""
    published = [published_scores(game, beside) for game in games]
    is_whole = len(games) == _N_PAPER_GAMES and all(published)
    by_category = published_categories(beside)
    for method in _PUBLISHED:
        if all(method in scores for scores in published):
            mean = fmean(scores[method] for scores in published)
            figures = [by_category[each].get(method) if is_whole else None for each in CATEGORIES]
            cells = ("-" if f1 is None else f"{f1:.2f}" for f1 in figures)
            yield [f"mean of {len(games)}", f"*published, {method}*", f"{mean:.2f}", *cells]


def _means(entries: Entries) -> list[float]:
    return [entry["scores"]["mean"]["f1_weighted"] for entry in entries]


def _f1(entries: Entries, group: str, name: str) -> list[float]:
    """Return the F1 of one of the "categories" or "variables", where entries have this one."""
    figures = [entry["scores"][group] for entry in entries]
    return [each[name]["f1_weighted"] for each in figures if name in each]


def _mean_and_spread(entries: Entries) -> str:
    means = _means(entries)
    if len(means) > 1:
        return f"{fmean(means):.3f} ({min(means):.3f} to {max(means):.3f})"
    low, high = entries[0]["scores"]["intervals"]["mean"]
    return f"{means[0]:.3f}" + ("" if low is None else f" (95 %: {low:.3f} to {high:.3f})")


def _other_seeds(own: Entries, beside: Entries) -> str:
    """Return which seeds a row has, unless the rows beside it have the same."""
    seeds = sorted({entry["seed"] for entry in own})
    if seeds == sorted({entry["seed"] for entry in beside}):
        return ""
    return f"; seeds {', '.join(map(str, seeds))} alone"


def _mean_or_dash(figures: Sequence[float]) -> str:
    return f"{fmean(figures):.3f}" if figures else "-"


def _variables(entries: Entries, names: dict[str, str]) -> Iterator[str]:
    """Yield, per game, a table of variables by encoders, and what was not probed."""
    for game in sorted({entry["game"] for entry in entries}):
        of_game = _where(entries, game=game)
        own = {name: _where(of_game, encoder=key) for key, name in names.items()}
        shown = {name: found for name, found in own.items() if found}
        variables = sorted(set().union(*(entry["scores"]["variables"] for entry in of_game)))
        rows = [[name, *_variable_cells(name, shown.values())] for name in variables]
        yield f"### {game}\n\n{markdown_table(['variable', *shown], rows)}"
        yield from _not_probed(of_game)


def _not_probed(of_game: Entries) -> Iterator[str]:
    """Yield what the first seed did not probe, and so for each seed that leaves out others."""
    by_names = {frozenset(entry["scores"]["not_probed"]): entry for entry in of_game[::-1]}
    for names, entry in sorted(by_names.items(), key=lambda item: item[1]["seed"]):
        reasons = entry["scores"]["not_probed"]
        listed = "; ".join(f"{variable}: {reasons[variable]}" for variable in sorted(names))
        if listed:
            yield f"Not probed (seed {entry['seed']}): {listed}."


def _variable_cells(name: str, by_encoder: Iterable[Entries]) -> Iterator[str]:
    """Yield means over seeds, which leave out variables by their own training parts."""
    for own in by_encoder:
        figures = _f1(own, "variables", name)
        is_partial = 0 < len(figures) < len(own)
        shown = f", {len(figures)} of {len(own)} seeds" if is_partial else ""
        yield _mean_or_dash(figures) + shown


def _positions(entries: Entries, names: dict[str, str]) -> str:
    """Return the table of median errors in pixels with R^2 that ridge regressions have."""
    shown = {key: name for key, name in names.items() if _where(entries, encoder=key)}
    cells: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for entry in entries:
        for variable, found in entry["scores"]["variables"].items():
            row = cells.setdefault((entry["game"], variable), {key: [] for key in shown})
            row[entry["encoder"]].append(found)
    rows = [
        [*row, *(_error_and_r2(found) for found in by_encoder.values())]
        for row, by_encoder in sorted(cells.items())
    ]
    columns = ["mean position" if n == "majority" else n for n in shown.values()]
    return "Median absolute error in pixels of the 210x160 screen, and R^2.\n\n" + markdown_table(
        ["game", "variable", *columns], rows
    )


def _error_and_r2(found: Sequence[dict[str, Any]]) -> str:
    if not found:
        return "-"
    error = fmean(score["median_absolute_error"] for score in found)
    r2 = [score["r2"] for score in found if score["r2"] is not None]
    return f"{error:.1f} ({fmean(r2):.2f})" if r2 else f"{error:.1f}"


def _failure(entry: dict[str, Any], names: dict[str, str]) -> str:
    name = names.get(entry["encoder"], entry["encoder"])
    return f"- {entry['game']}, {name}, seed {entry['seed']}, {entry['protocol']}: {entry['error']}"
