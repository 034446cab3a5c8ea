"""What the pages say of PPO's arms on four games is what the committed cells say."""

import csv
import itertools
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rl_infonce.atari.human_scores import human_scores
from rl_infonce.cli import main
from rl_infonce.report.return_tables import comparison_table
from rl_infonce.report.statistics import t_difference
from tests.experiments.loading import (
    EXPERIMENTS,
    FRONT_PAGE,
    RESULTS,
    committed_runs,
    load,
    study_page,
    study_words,
)


def assert_tables_are_printed(page: str, printed: list[str]) -> None:
    """Raise unless every row of a page's tables is a line that its command prints."""
    rows = [line for line in study_page(page).splitlines() if line.startswith("|")]
    assert len(rows) > 40
    assert [row for row in rows if row not in printed] == []


class Table(NamedTuple):
    """What the script prints of a study, and the arms of each comparison in it, by its heading."""

    printed: str
    comparisons: list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ppo_arms() -> Table:
    """The study of PPO's arms on four games, whose table takes seconds."""
    return table_of(RESULTS / "ppo_arms")


def table_of(folder: Path) -> Table:
    script = load("ppo_arms.py")
    comparisons: list[tuple[str, dict[str, Any]]] = []

    def noted(pairs: dict[str, Any], heading: str, **named: Any) -> Any:
        comparisons.append((heading, pairs))
        return comparison_table(pairs, heading, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "comparison_table", noted)
        return Table(script.table(folder), comparisons)


def test_the_arms_of_ppo_come_from_the_committed_cells(ppo_arms: Table) -> None:
    printed = ppo_arms.printed
    assert "Missing" not in printed
    lines = printed.splitlines()
    shown = study_page("ppo_arms/README.md")
    assert_tables_are_printed("ppo_arms/README.md", lines)
    report = (RESULTS / "ppo_arms" / "report.md").read_text().splitlines()
    found = _compared(lines)
    primary = "mean return over the budget"
    returns = found[f"against baseline: {primary}", "infonce"]
    assert any(f"| infonce | {returns.words} | {returns.difference} |" in line for line in report)
    page, front = (" ".join(text.split()) for text in (shown, FRONT_PAGE))
    assert returns.words in page.lower()
    assert f"would find a true difference of {returns.found}." in page
    told = {
        (primary, "baseline", "infonce"): (
            "with the loss less without, {}",
            "less stock PPO's was {}",
        ),
        (f"{primary}, at equal wall-clock", "baseline", "infonce"): (
            "wall-clock the difference is {}.",
            "",
        ),
        ("converged", "baseline", "infonce"): (
            "PPO without ({} in mean F1)",
            "those of stock PPO ({})",
        ),
        ("converged", "untrained", "infonce"): ("CNN's ({})", "untrained CNN's ({})"),
        ("converged", "untrained", "baseline"): ("features hold ({})", "probes ({})"),
        ("converged", "placebo", "infonce"): (
            "undecided, under `converged` ({}) as under",
            "",
        ),
        ("anand2019", "baseline", "infonce"): ("is undecided ({})", ""),
        ("anand2019", "untrained", "infonce"): ("CNN is not ({})", ""),
        ("anand2019", "placebo", "infonce"): ("under `anand2019` ({}).", ""),
        ("anand2019", "untrained", "stdim_offline"): ("({} over the untrained CNN,", "({})"),
        ("anand2019", "baseline", "stdim_offline"): ("{} over PPO)", ""),
        ("converged", "untrained", "stdim_offline"): ("`converged` ({} and", "({})"),
        ("converged", "baseline", "stdim_offline"): ("and {}):", ""),
    }
    for (measure, against, arm), (on_page, on_front) in told.items():
        name = f"mean F1, {measure}" if measure in ("converged", "anand2019") else measure
        difference = found[f"against {against}: {name}", arm].difference
        assert on_page.format(difference) in page
        plain = difference.replace("+", "")
        bracketed = plain.replace("(", "[").replace(")", "]")  # inside other brackets
        assert on_front.format(plain) in front or on_front.format(bracketed) in front


def table_beside(study: str, folder: Path, *others: str) -> Table:
    """Return the table of a study beside the baseline and drawn pairs of ppo_arms."""
    shutil.copytree(RESULTS / study, folder)
    cells = [(RESULTS / other / "cells").iterdir() for other in others]
    for arm in ("baseline", "infonce"):
        cells.append((RESULTS / "ppo_arms" / "cells").glob(f"*-{arm}-*"))
    for cell in itertools.chain(*cells):
        shutil.copytree(cell, folder / "cells" / cell.name)
    found = table_of(folder)
    assert "Missing" not in found.printed
    return found


@pytest.fixture(scope="module")
def minibatch_arms(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the script prints of pairs from the minibatch beside the runs of ppo_arms."""
    folder = tmp_path_factory.mktemp("study") / "runs"
    return table_beside("minibatch_arms", folder).printed.splitlines()


@pytest.fixture(scope="module")
def weak_table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """These pairs at the default's weight, beside all of them."""
    folder = tmp_path_factory.mktemp("study") / "runs"
    return table_beside("minibatch_weak_arms", folder, "minibatch_arms")


@pytest.fixture(scope="module")
def weak_arms(weak_table: Table) -> list[str]:
    """What the script prints of them."""
    return weak_table.printed.splitlines()


def test_pairs_of_the_minibatch_come_from_the_committed_cells(minibatch_arms: list[str]) -> None:
    assert_tables_are_printed("minibatch_arms/README.md", minibatch_arms)
    found = _compared(minibatch_arms)
    index = (EXPERIMENTS / "README.md").read_text()
    words, front = study_words("minibatch_arms/README.md"), " ".join(FRONT_PAGE.split())
    told = {
        ("mean return over the budget", "infonce"): "not ruled out ({})",
        ("mean F1, converged", "infonce"): "",
        ("mean F1, converged", "baseline"): "than stock PPO's ({})",
        ("mean F1, converged", "untrained"): "",
        ("mean F1, anand2019", "infonce"): "",
    }
    for (measure, against), on_front in told.items():
        row = found[f"against {against}: {measure}", "minibatch"]
        assert row.difference in words
        plain = row.difference.replace("+", "").replace(" (", ", ").rstrip(")")
        assert on_front.format(plain) in front
        assert not on_front or row.difference in index
        is_decided = (measure, against) == ("mean F1, converged", "baseline")
        assert (row.words == "no detectable difference") is not is_decided


def test_the_default_comes_from_the_committed_cells(weak_arms: list[str]) -> None:
    assert_tables_are_printed("minibatch_weak_arms/README.md", weak_arms)
    found = _compared(weak_arms)
    index = (EXPERIMENTS / "README.md").read_text()
    words, front = study_words("minibatch_weak_arms/README.md"), " ".join(FRONT_PAGE.split())
    primary = "mean return over the budget"
    told = {
        (primary, "baseline"): ("without it is {} in units", "({},"),
        (primary, "infonce"): ("neither of returns ({})", ""),
        (primary, "weak_placebo"): ("", ""),
        ("mean F1, converged", "baseline"): ("stock PPO's ({} in mean F1)", ""),
        ("mean F1, converged", "infonce"): ("by `converged` probes ({})", ""),
        ("mean F1, converged", "untrained"): ("an untrained CNN's ({})", ""),
        ("mean F1, converged", "weak_placebo"): ("undecided ({})", ""),
        ("mean F1, anand2019", "baseline"): ("undecided ({})", ""),
        ("mean F1, anand2019", "infonce"): ("", ""),
        ("mean F1, anand2019", "untrained"): ("than an untrained CNN's ({})", ""),
        ("mean F1, anand2019", "weak_placebo"): ("by `anand2019` ({})", ""),
    }
    for (measure, against), (on_front, on_top) in told.items():
        row = found[f"against {against}: {measure}", "weak"]
        assert row.difference in words, (measure, against)
        assert any(on_front.format(form) in front for form in _forms(row))
        assert on_top.format(_forms(row)[2]) in front
        is_decided = measure == "mean F1, anand2019" and against in ("untrained", "weak_placebo")
        assert (row.words == "no detectable difference") is not is_decided
    for measure, against in ((primary, "baseline"), ("mean F1, converged", "baseline")):
        assert found[f"against {against}: {measure}", "weak"].difference in index
    returns = found[f"against baseline: {primary}", "weak"]
    assert f"**Return:** there is {returns.words} at equal steps" in front
    assert f"where a true {returns.found} would be found in four of five such studies" in front


def test_the_rule_for_the_default_is_met(weak_arms: list[str]) -> None:
    found = _compared(weak_arms)
    returns = found["against infonce: mean return over the budget", "weak"].difference
    assert float(returns.split("(")[1].split(" to ")[0]) > -0.01
    assert found["against infonce: mean F1, converged", "weak"].words != "lower"


def test_what_a_later_probe_changes_is_as_small_as_the_page_says(weak_arms: list[str]) -> None:
    found = _compared(weak_arms)
    of_same = "against baseline: F1 of the same untrained encoder, {}".format
    for arm in ("infonce", "minibatch", "weak", "weak_placebo"):
        low, high = re.findall(r"[-+][0-9.]+", found[of_same("converged"), arm].difference)[1:]
        assert 1e-4 < max(-float(low), float(high)) < 1e-3, "some ten thousandths"
    gain = found["against baseline: mean F1, converged", "weak"].difference
    assert "(-0.000 to" in gain
    games = {
        line.split(" | ")[0].strip("| ")
        for line in weak_arms
        if line.startswith("| weak: ") and "+0.000 (+0.000 to +0.000)" in line
    }
    assert games == {f"weak: {game}" for game in ("breakout", "seaquest", "space_invaders")}


def test_gradients_of_the_minibatchs_pairs_are_as_large_as_their_pages_say() -> None:
    games = ("breakout", "qbert", "seaquest", "space_invaders")
    of_study = {"minibatch_arms": ("minibatch", 1), "minibatch_weak_arms": ("weak", 2)}
    for study, (arm, digits) in of_study.items():
        ratios = [_pull(study, arm, game) / _pull("ppo_arms", "infonce", game) for game in games]
        of_all = f"{min(ratios):.{digits}f} to {max(ratios):.{digits}f} times that of drawn pairs"
        assert of_all in study_words(f"{study}/README.md")


def _pull(study: str, arm: str, game: str) -> float:
    """Return the mean norm of the loss's gradient on the encoder over an arm's trainings."""
    norms = []
    for path in (RESULTS / study / "cells").glob(f"{game}-ppo-{arm}-*/progress.csv"):
        with path.open() as file:
            rows = csv.DictReader(file)
            norms += [float(row[_NORM]) for row in rows if row[_NORM]]
    return sum(norms) / len(norms)


_NORM = "infonce/grad_norm_infonce"


@pytest.mark.slow
def test_the_committed_report_is_that_of_the_committed_cells(tmp_path: Path) -> None:
    folder = RESULTS / "ppo_arms"
    assert main(["report", str(folder), "-o", str(tmp_path), "--mixed-versions"]) == 0
    for name in ("report.md", "runs.csv"):
        assert (tmp_path / name).read_text() == (folder / name).read_text(), name


def by_two_seeds(table: Table) -> tuple[dict[tuple[str, str], str], set[tuple[str, str]]]:
    """Return all differences by seeds 1 and 2 alone, by heading and arm, and those undecided."""
    found: dict[tuple[str, str], str] = {}
    undecided: set[tuple[str, str]] = set()

    def of_two_seeds(scores: Any, heading: str) -> Any:
        later = {game: {s: by_seed[s] for s in (1, 2)} for game, by_seed in scores.items()}
        if "F1 of" in heading or "mean F1" in heading:
            return {game: list(by_seed.values()) for game, by_seed in later.items()}
        return {
            game: [(v - scale[0]) / (scale[1] - scale[0]) for v in by_seed.values()]
            for game, by_seed in later.items()
            for scale in [human_scores()[game]]
        }

    for heading, pairs in table.comparisons:
        for arm, both in ((arm, both) for arm, both in pairs.items() if all(both)):
            interval = t_difference(*(of_two_seeds(of, heading) for of in both))
            digits = 4 if "mean F1" in heading else 3
            found[heading, arm] = "{:+.{d}f} ({:+.{d}f} to {:+.{d}f})".format(*interval, d=digits)
            if interval.low < 0 < interval.high:
                undecided.add((heading, arm))
    return found, undecided


def test_seeds_that_chose_nothing_are_shown_alone(ppo_arms: Table) -> None:
    found, undecided = by_two_seeds(ppo_arms)
    page = study_words("ppo_arms/README.md")
    told = page.split("By seeds 1 and 2 alone")[1].split("not by two seeds.")[0]
    for heading in (
        "baseline: mean return over the budget",
        *(f"{other}: mean F1, converged" for other in ("baseline", "placebo", "untrained")),
    ):
        assert found[heading, "infonce"] in told, heading
    for other, protocol in (
        ("baseline", "converged"),
        ("untrained", "converged"),
        ("untrained", "anand2019"),
    ):
        assert (f"{other}: mean F1, {protocol}", "infonce") in undecided


def test_seeds_that_chose_nothing_are_shown_alone_of_the_default(weak_table: Table) -> None:
    found, undecided = by_two_seeds(weak_table)
    page = study_words("minibatch_weak_arms/README.md")
    told = page.split("By seeds 1 and 2 alone")[1].split("nothing of this is decided")[0]
    for heading in (
        *(f"{other}: mean return over the budget" for other in ("baseline", "infonce")),
        *(f"{other}: mean F1, converged" for other in ("baseline", "untrained")),
        "untrained: mean F1, anand2019",
    ):
        assert found[heading, "weak"] in told, heading
        assert (heading, "weak") in undecided


def test_what_qualifies_the_arms_of_ppo_comes_from_the_committed_cells(ppo_arms: Table) -> None:
    page, front = study_words("ppo_arms/README.md"), " ".join(FRONT_PAGE.split())
    runs = {(run["game"], run["arm"], run["seed"]): run for run in committed_runs("ppo_arms")}
    games, seeds = {game for game, _, _ in runs}, {seed for _, _, seed in runs}
    learned = [
        (float(runs[game, "baseline", seed]["area"]) - scale[0]) / (scale[1] - scale[0])
        for game, seed in itertools.product(games, seeds)
        for scale in [human_scores()[game]]
    ]
    mean = f"{sum(learned) / len(learned):.3f}"
    assert f"PPO without the loss has learned {mean} in this budget" in page
    assert f"PPO itself has learned {mean} by then" in front
    for game, sign in (("seaquest", -1), ("qbert", 1)):
        for seed in seeds:
            with_loss, without = (
                float(runs[game, a, seed]["area"]) for a in ("infonce", "baseline")
            )
            assert sign * (with_loss - without) > 0
    ratios = [
        float(runs[game, "infonce", seed]["seconds"])
        / float(runs[game, "baseline", seed]["seconds"])
        for game, seed in itertools.product(games, seeds)
    ]
    assert f"the loss is {min(ratios):.2f} to {max(ratios):.1f} times its baseline's" in page
    is_intel = {
        path.parent.name: "Intel" in path.read_text()
        for path in (RESULTS / "ppo_arms" / "cells").glob("*/run.json")
    }
    assert {name for name, intel in is_intel.items() if intel} == {
        f"{game}-ppo-baseline-0" for game in games
    }
    later = [f"{float(runs['breakout', 'baseline', seed]['area']):.2f}" for seed in ("1", "2")]
    told = f"seeds 1 and 2, trained later, earned {' and '.join(later)}: seed 0's was"
    assert told in study_words("infonce_coef.md")
    of_features = [
        (arm, *both)
        for heading, pairs in ppo_arms.comparisons
        if "mean F1" in heading
        for arm, both in pairs.items()
    ]
    assert len(of_features) == 16
    # Holm's procedure: 4 are rejected at the strictest level of all, then none of 12 is.
    for arm, ours, theirs in of_features:
        level = 1 - 0.05 / (16 if arm == "stdim_offline" else 12)
        both = [
            {game: [of[game][s] for s in sorted(of[game])] for game in of} for of in (ours, theirs)
        ]
        interval = t_difference(*both, confidence=level)
        assert (interval.low > 0 or interval.high < 0) == (arm == "stdim_offline"), arm


def _forms(row: "_Row") -> tuple[str, str, str]:
    """Return a difference as pages write it: inside brackets or not, and with commas."""
    plain = row.difference.replace("+", "")
    commas = plain.replace(" (", ", ").rstrip(")")
    return plain.replace("(", "[").replace(")", "]"), plain, commas


class _Row(NamedTuple):
    words: str
    difference: str
    found: str


def _compared(lines: list[str]) -> dict[tuple[str, str], _Row]:
    """Return the rows of all comparisons over games, by heading and arm."""
    found, heading = {}, ""
    for line in lines:
        cells = line.strip("| ").split(" | ")
        if cells[0].startswith("against "):
            heading = cells[0]
        elif heading and len(cells) == 7 and ":" not in cells[0]:
            found[heading, cells[0]] = _Row(*cells[1:4])
    return found
