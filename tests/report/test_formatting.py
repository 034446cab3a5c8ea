"""Notes are said once, of all the arms they are on."""

import pytest

from rl_infonce.report.formatting import counted, notes_on_arms


@pytest.mark.parametrize(("number", "expected"), [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs")])
def test_nouns_are_counted(number: int, expected: str) -> None:
    assert counted(number, "pair") == expected


def test_a_note_is_said_once_of_all_its_arms_in_order() -> None:
    notes = {"infonce": ["slow", "left out pong"], "atc": [], "placebo": ["left out pong", "fast"]}
    assert notes_on_arms(notes) == [
        "infonce: slow",
        "infonce, placebo: left out pong",
        "placebo: fast",
    ]
