"""`scores.md`: the scores of a folder as tables, beside the published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from rl_infonce.atari.labels import CATEGORIES
from rl_infonce.atari.published import PUBLISHED_SOURCE, published_categories, published_scores
from rl_infonce.report.return_tables import markdown_table

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
_ALWAYS_DIFFERENT = (
    "Measured rows always differ in the split, which shuffles whole games; in the start of a game, "
    "0 to 29 idle frames with FIRE as the first, where the published code takes 1 to 30 and then "
    "actions 1 and 2 for four frames each; in lost lives, after which there is neither FIRE nor an "
    "idle step; in the maximum of two frames, which is taken over gray; in the labels of an "
    "episode's first frame, which are its own; and in test frames that repeat, which do not count "
    "in the entropy and may leave an episode of one frame."
)
_PUBLISHED_PROTOCOL = "anand2019"
_N_PAPER_GAMES = 22
_RANDOM, _PPO = "random_agent", "ppo_agent"
Entries = Sequence[dict[str, Any]]


def scores_table(content: dict[str, Any]) -> str:
    """Return the Markdown text of what `scores.json` holds."""
    scored = [entry for entry in content["cells"] if entry["status"] == "done"]
    failed = [entry for entry in content["cells"] if entry["status"] != "done"]
    names = encoder_names(content["encoders"])
    used = {entry["protocol"] for entry in scored}
    protocols = [protocol for protocol in ("converged", "anand2019", "knn") if protocol in used]
    parts = [_heading(content, scored)]
    beside = _published_frames(content["settings"])
    for protocol in protocols:
        entries = [entry for entry in scored if entry["protocol"] == protocol]
        # Beside their own protocol: under another, the same features score otherwise.
        compared = protocol == _PUBLISHED_PROTOCOL
        parts += [
            f"## Protocol `{protocol}`",
            _categories(entries, names, beside if compared else None),
        ]
    if "ridge" in used:
        in_pixels = [entry for entry in scored if entry["protocol"] == "ridge"]
        parts += ["## Positions, protocol `ridge`", _positions(in_pixels, names)]
    for protocol in protocols:
        entries = [entry for entry in scored if entry["protocol"] == protocol]
        parts += [f"## Variables, protocol `{protocol}`", *_variables(entries, names)]
    if failed:
        parts += ["## Failed", "\n".join(_failure(entry, names) for entry in failed)]
    return "\n\n".join(parts) + "\n"


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
    if shortest is not None:
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
            *(f"    {run['command']}" for run in content["runs"][-1:]),
        ]
    )


def _published_frames(settings: dict[str, Any]) -> str:
    """Return whose frames the published rows are of that stand beside the measured ones."""
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
    """Return the table of means and categories, and published rows `beside` whose frames."""
    games = sorted({entry["game"] for entry in entries})
    rows = []
    for game in games:
        of_game = [entry for entry in entries if entry["game"] == game]
        for key, name in names.items():
            own = [entry for entry in of_game if entry["encoder"] == key]
            if own:
                same = [entry["scores"] for entry in own]
                mean = _mean_and_spread(same) + _other_seeds(own, of_game)
                rows.append([game, name, mean, *_category_means(same)])
        rows += [
            [game, f"*published, {method}*", f"{f1:.2f}", *["-"] * len(CATEGORIES)]
            for method, f1 in (published_scores(game, beside) if beside else {}).items()
            if method in _PUBLISHED
        ]
    if len(games) > 1:
        rows += _over_games(entries, games, names, beside)
    return markdown_table(["game", "encoder", "mean", *(_SHORT[c] for c in CATEGORIES)], rows)


def _over_games(
    entries: Entries, games: list[str], names: dict[str, str], beside: str | None
) -> list[list[str]]:
    label = f"mean of {len(games)}"
    rows = []
    for key, name in names.items():
        own = [entry for entry in entries if entry["encoder"] == key]
        if {entry["game"] for entry in own} != set(games):
            continue
        per_game = [[e["scores"] for e in own if e["game"] == game] for game in games]
        means = [fmean(s["mean"]["f1_weighted"] for s in scores) for scores in per_game]
        categories = [
            [fmean(f1) for scores in per_game if (f1 := _category_f1(scores, category))]
            for category in CATEGORIES
        ]
        unlike = {_other_seeds([e for e in own if e["game"] == g], entries) for g in games} - {""}
        shown = f"{fmean(means):.3f}" + ("; not all seeds" if unlike else "")
        rows.append([label, name, shown, *(_mean_or_dash(c) for c in categories)])
    if beside is None:
        return rows
    published = [published_scores(game, beside) for game in games]
    by_category = published_categories(beside)
    whole_paper = len(games) == _N_PAPER_GAMES and all(published)
    for method in _PUBLISHED:
        if all(method in scores for scores in published):
            mean = fmean(scores[method] for scores in published)
            cells = [_two_digits(by_category[c].get(method), whole_paper) for c in CATEGORIES]
            rows.append([label, f"*published, {method}*", f"{mean:.2f}", *cells])
    return rows


def _two_digits(f1: float | None, shown: bool) -> str:
    return "-" if f1 is None or not shown else f"{f1:.2f}"


def _mean_and_spread(scores: Entries) -> str:
    means = [s["mean"]["f1_weighted"] for s in scores]
    if len(means) > 1:
        return f"{fmean(means):.3f} ({min(means):.3f} to {max(means):.3f})"
    low, high = scores[0]["intervals"]["mean"]
    return f"{means[0]:.3f}" + ("" if low is None else f" (95 %: {low:.3f} to {high:.3f})")


def _other_seeds(own: Entries, beside: Entries) -> str:
    """Return which seeds a row is of, unless they are those of the rows beside it."""
    seeds = sorted({entry["seed"] for entry in own})
    if seeds == sorted({entry["seed"] for entry in beside}):
        return ""
    return f"; seeds {', '.join(map(str, seeds))} alone"


def _category_f1(scores: Entries, category: str) -> list[float]:
    return [s["categories"][category]["f1_weighted"] for s in scores if category in s["categories"]]


def _category_means(scores: Entries) -> list[str]:
    return [_mean_or_dash(_category_f1(scores, category)) for category in CATEGORIES]


def _mean_or_dash(figures: Sequence[float]) -> str:
    return f"{fmean(figures):.3f}" if figures else "-"


def _variables(entries: Entries, names: dict[str, str]) -> Iterable[str]:
    """Yield, per game, a table of variables by encoders, and what was not probed."""
    for game in sorted({entry["game"] for entry in entries}):
        of_game = [entry for entry in entries if entry["game"] == game]
        scores = {
            name: [entry["scores"] for entry in of_game if entry["encoder"] == key]
            for key, name in names.items()
        }
        shown = {name: found for name, found in scores.items() if found}
        variables = sorted({v for found in shown.values() for s in found for v in s["variables"]})
        rows = [
            [variable, *(_mean_or_dash(_variable_f1(found, variable)) for found in shown.values())]
            for variable in variables
        ]
        yield f"### {game}\n\n{markdown_table(['variable', *shown], rows)}"
        reasons = of_game[0]["scores"]["not_probed"]
        if reasons:
            seed = of_game[0]["seed"]
            listed = "; ".join(f"{variable}: {why}" for variable, why in sorted(reasons.items()))
            yield f"Not probed (seed {seed}): {listed}."


def _positions(entries: Entries, names: dict[str, str]) -> str:
    """Return the table of median errors in pixels with R^2, of ridge regressions."""
    shown = {key: name for key, name in names.items() if any(e["encoder"] == key for e in entries)}
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


def _variable_f1(scores: Entries, variable: str) -> list[float]:
    return [s["variables"][variable]["f1_weighted"] for s in scores if variable in s["variables"]]


def _failure(entry: dict[str, Any], names: dict[str, str]) -> str:
    name = names.get(entry["encoder"], entry["encoder"])
    return f"- {entry['game']}, {name}, seed {entry['seed']}, {entry['protocol']}: {entry['error']}"
