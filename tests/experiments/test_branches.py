"""What the tests never take of the core, as a report of coverage says it."""

from typing import Any

import branches

from tests.experiments.loading import committed, study_page

SUMMARY = {"num_statements": 5, "covered_lines": 4, "num_branches": 4, "covered_branches": 3}


def report(**functions: tuple[list[int], list[list[int]]]) -> dict[str, Any]:
    found = {
        name: {"missing_lines": lines, "missing_branches": missed}
        for name, (lines, missed) in functions.items()
    }
    return {
        "files": {
            "rl_infonce/nce/losses.py": {"summary": SUMMARY, "functions": found},
            "rl_infonce/cli/train.py": {"summary": SUMMARY, "functions": found},
        }
    }


def test_a_line_and_the_branch_that_leads_to_it_count_once() -> None:
    given = report(
        whole=([], []), line=([7], [[6, 7]]), branch=([], [[3, -1]]), inside=([7, 8], [[7, 9]])
    )
    assert list(branches.places(given)) == [
        ("nce/losses.py", "line", 1),
        ("nce/losses.py", "branch", 1),
        ("nce/losses.py", "inside", 2),
    ]
    losses, *others = branches.summary(given)
    assert losses == {"part": "losses", **SUMMARY}
    assert {each["num_statements"] for each in others} == {0}


def test_the_page_gives_a_reason_for_each_place_that_is_left() -> None:
    found = committed("branches.json")
    places = [branches.Place(**each) for each in found["places"]]
    assert {branches.key(each) for each in places} == branches.REASONS.keys()
    first, second = branches.tables(found["parts"], places).strip().split("| file |")
    assert first.strip() in study_page("branches.md")
    assert f"| file |{second}" in study_page("branches.md")
    for row in found["parts"]:
        assert row["covered_lines"] > 0.98 * row["num_statements"]
