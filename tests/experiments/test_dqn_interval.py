"""What the page of DQN's interval says is what the committed cells say."""

from pathlib import Path

import pytest

from rl_infonce.cli import main
from rl_infonce.sb3.arguments import ExtractorArguments
from tests.experiments.loading import EXPERIMENTS, RESULTS, study_page, study_words

FOLDER = RESULTS / "dqn_interval"
PAGE = study_words("dqn_interval/README.md")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the lines of the reports that the page's commands make."""
    pytest.importorskip("matplotlib")
    made = {}
    with pytest.MonkeyPatch.context() as patch:  # charts take most of the time
        patch.setattr("rl_infonce.report.report.charts_of", lambda *_: [])
        patch.setattr("rl_infonce.report.report.profile_chart", lambda *_: None)
        for arm in ("baseline", "each_update"):
            output: Path = tmp_path_factory.mktemp(arm)
            assert main(["report", str(FOLDER), "--against", arm, "-o", str(output)]) == 0
            made[arm] = (output / "report.md").read_text().splitlines()
    return made


def difference(lines: list[str], heading: str, arm: str) -> str:
    """Return the difference of an arm in a table of a report."""
    table = "\n".join(lines).split(f"## DQN: {heading}, compared\n")[1]
    (row,) = (each for each in table.split("\n\n")[0].splitlines() if each.startswith(f"| {arm} |"))
    return row.split(" | ")[2]


def test_the_tables_are_those_of_the_reports(reports: dict[str, list[str]]) -> None:
    rows = [line for line in study_page("dqn_interval/README.md").splitlines() if line[:1] == "|"]
    assert len(rows) > 30
    printed = {line for lines in reports.values() for line in lines}
    assert [row for row in rows if row not in printed] == []


def test_the_rule_does_not_make_an_interval_the_default(reports: dict[str, list[str]]) -> None:
    over = reports["each_update"]
    area, known = "mean return over the budget", "what the features know (converged)"
    returned, f1 = difference(over, area, "every_eighth"), difference(over, known, "every_eighth")
    assert f"the return less that of `each_update` is {returned}" in PAGE
    assert f"the F1 is lower, by {f1}" in PAGE
    lows = [float(each.partition("(")[2].split()[0]) for each in (returned, f1)]
    assert max(lows) < -0.02
    assert ExtractorArguments().infonce_interval == 1
    short = f1.replace(" (", ", ").rstrip(")")
    words = " ".join((EXPERIMENTS.parent / "rl_infonce/sb3/README.md").read_text().split())
    assert f"in every update ({short} in mean F1)" in words
    gained = difference(reports["baseline"], known, "each_update")
    assert f"features that know more, {gained} in mean F1" in PAGE
    index = (EXPERIMENTS / "README.md").read_text()
    alone = difference(reports["baseline"], area, "each_update")
    assert f"return {returned}, mean F1 {f1}; every update less DQN alone" in index
    assert f"less DQN alone: return {alone}, mean F1 {gained} |" in index
