"""The report of many runs: what the loss does to the return, and to what the features know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_infonce.report.charts import charts_of
from rl_infonce.report.formatting import counted
from rl_infonce.report.page import details, figures, page, paragraph, section, table_html
from rl_infonce.report.profiles import HOW_READ, NOT_DRAWN, profile_chart
from rl_infonce.report.return_tables import runs_csv
from rl_infonce.report.run_scores import Scales
from rl_infonce.report.runs import Run, arms_of
from rl_infonce.report.sections import HOW_COMPARED, Part, parts_of, scaled_by
from rl_infonce.report.table import to_markdown
from rl_infonce.report.trials import HOW_CHOSEN, Search, trials_table

_HOW_DRAWN = (
    "Thick lines are means over runs, thin ones single runs. Bands are 95 % bootstrap intervals of "
    "the means, widened for few runs; they may reach beyond the axes."
)
_NO_ARMS = "No arm of the grid is trained; there are trials of a search alone."
_ONE_OUTCOME = (
    "The primary outcome of an algorithm is its first table, the mean return over the budget at "
    "equal steps{}are secondary: no interval is corrected for the number of comparisons."
)
_SEVERAL_ARMS = (
    "Several arms are compared with {other}: where none of {n} differs, at least one is said "
    "to differ in up to {chance:.0%} of such reports."
)
_SURVIVORS = (
    "Runs that failed are in no table. Where its own settings made an arm fail, what is left of it "
    "looks better than it is."
)
_UNPROBED = (
    "Features that could not be probed are in no table. Where an arm's own settings made them "
    "collapse, what is left of it looks better than it is."
)
_OF_GAMES = ", in the rows over all games. The rows of single games and the other tables "
_OF_ONE_GAME = ". The other tables "


class Report(NamedTuple):
    """A report in three forms: one HTML page that needs nothing else, its tables, every run."""

    html: str
    markdown: str
    csv: str


def make_report(
    title: str,
    runs: Sequence[Run],
    *,
    missing: Sequence[str],
    scales: Scales | None,
    rng: np.random.Generator,
    n_seeds: Mapping[str, int],
    other_versions: Sequence[str] = (),
    not_planned: Sequence[str] = (),
    search: Search | None = None,
    against: str | None = None,
) -> Report:
    """Return what finished runs say; charts need the extra `report`.

    `missing`, `other_versions` and `not_planned` name in words which planned runs are not there,
    which were trained with other packages, and which are there and were not planned. `scales` maps
    a game to the scores of a random agent and of a human, and a game without these is scaled by its
    baseline; None compares raw scores. `n_seeds` maps each arm to its planned seeds. The baseline
    is the arm of that name, or else the first one. Arms are compared with it, or with the one that
    `against` names. With a `search` there need be no runs beside its trials.
    """
    planned = _first("baseline" if against is None else against, n_seeds)
    other = "the baseline" if against in (None, "baseline") else against
    summary = _summary(runs, len(planned), other, missing, other_versions, not_planned)
    parts = [paragraph(text) for text in summary]
    texts = [f"# {title}", *summary]
    for algo in dict.fromkeys(run.algo for run in runs):
        baseline = next(iter(_first("baseline", n_seeds)))
        own_scales, about = scaled_by(runs, algo, baseline, scales)
        for part in parts_of(runs, algo, planned, own_scales, about, rng):
            name = f"{algo.upper()}: {part.heading}"
            _add(part._replace(heading=name), parts, texts)
        parts += _drawn(runs, algo, own_scales, rng)
    if search is not None:
        about = [HOW_CHOSEN.format(search.value)]
        _add(Part("Trials", trials_table(search.trials), about), parts, texts)
    if runs:
        _add_origins(runs, parts, texts)
    return Report(page(title, parts), "\n\n".join(texts) + "\n", runs_csv(runs))


def _add_origins(runs: Sequence[Run], parts: list[str], texts: list[str]) -> None:
    made = _origins(runs)
    commands = list(dict.fromkeys(run.command for run in runs if run.command))
    shown = details(f"The commands of the {len(runs)} runs", "\n".join(commands))
    parts.append(section("How it was made", *map(paragraph, made), shown))
    texts += ["## How it was made", *made, f"The commands of the {len(runs)} runs:"]
    texts.append("\n".join(f"    {command}" for command in commands))


def _add(part: Part, parts: list[str], texts: list[str]) -> None:
    """Add a table with its remarks to the sections of the page and to those of its text."""
    remarks = [paragraph(text) for text in part.remarks]
    table = table_html(part.table, heat=part.is_heat_map, name=part.heading)
    parts.append(section(part.heading, *remarks, table))
    texts += [f"## {part.heading}", to_markdown(part.table), *part.remarks]


def _drawn(
    runs: Sequence[Run], algo: str, scales: Scales | None, rng: np.random.Generator
) -> list[str]:
    """Return the sections of an algorithm's profile and of its curves."""
    name = algo.upper()
    curves = figures(charts_of(runs, algo, rng), prefix=algo)
    profile = profile_chart(runs, algo, scales, rng)
    drawn = [paragraph(NOT_DRAWN)]
    if profile is not None:
        drawn = [paragraph(HOW_READ), figures([profile], prefix=f"{algo}-profile")]
    return [
        section(f"{name}: performance profile", *drawn),
        section(f"{name}: curves", paragraph(_HOW_DRAWN), curves),
    ]


def _first(arm: str, planned: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(planned.items(), key=lambda each: each[0] != arm))


def _summary(
    runs: Sequence[Run],
    n_arms: int,
    other: str,
    missing: Sequence[str],
    other_versions: Sequence[str],
    not_planned: Sequence[str],
) -> list[str]:
    """Return what stands above all tables, a paragraph each."""
    games = sorted({run.game for run in runs})
    absent = [f"Missing: {'; '.join(missing)}."] if missing else []
    absent += [_SURVIVORS] if any(" (failed" in each for each in missing) else []
    absent += [_UNPROBED] if any(" could not be probed" in each for each in missing) else []
    absent += [f"Begun, but not in this grid: {'; '.join(not_planned)}."] if not_planned else []
    if not runs:
        return [_NO_ARMS, *absent]
    return [
        f"{counted(len(runs), 'run')}: {counted(len(games), 'game')} ({', '.join(games)}), "
        f"arms {', '.join(arms_of(runs))}.",
        *absent,
        *([f"Other versions: {'; '.join(other_versions)}."] if other_versions else []),
        *_several_commits(runs),
        _ONE_OUTCOME.format(_OF_GAMES if len(games) > 1 else _OF_ONE_GAME),
        *_several_arms(len({run.algo for run in runs}) * (n_arms - 1), other),
        HOW_COMPARED,
    ]


def _several_arms(n_arms: int, other: str) -> list[str]:
    """Return how often one of several equal arms is said to differ, at intervals of 95 %."""
    chance = 1 - 0.95**n_arms
    return [_SEVERAL_ARMS.format(other=other, n=n_arms, chance=chance)] if n_arms > 1 else []


def _several_commits(runs: Sequence[Run]) -> list[str]:
    """Return which commits trained how many runs, if they are several."""
    n_runs = Counter(commit for run in runs for commit in run.commits)
    if len(n_runs) < 2:
        return []
    named = ", ".join(f"{_short(name)} ({counted(n, 'run')})" for name, n in n_runs.items())
    return [
        f"Trained by {len(n_runs)} commits of rl_infonce: {named}. What changed between them may "
        "be in the differences."
    ]


def _short(commit: str) -> str:
    digits, dash, rest = commit.partition("-")  # "-dirty"
    return f"{digits[:12]}{dash}{rest}"


def _origins(runs: Sequence[Run]) -> list[str]:
    versions = {f"{name} {version}" for run in runs for name, version in run.versions.items()}
    machines = sorted({run.machine for run in runs if run.machine})
    minutes = sum(run.seconds for run in runs) / 60
    time = f"{minutes / 60:.1f} hours" if minutes >= 60 else f"{minutes:.1f} minutes"
    commits = dict.fromkeys(commit for run in runs for commit in run.commits)
    return [
        f"{time} of training on {'; '.join(machines) or 'unknown machines'}.",
        f"Versions: {', '.join(sorted(versions))}.",
        f"Commits of rl_infonce: {', '.join(commits) or 'not known'}.",
    ]
