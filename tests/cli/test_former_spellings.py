"""What users wrote for earlier versions still works, and one line names the present spelling."""

from __future__ import annotations

import pytest

from rl_infonce.cli import make_parser


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [(["probe", "--encoder", "a", "b"], "features_of", ["a", "b"])],
)
def test_a_former_flag_is_taken_for_the_present_one(
    capsys: pytest.CaptureFixture[str], words: list[str], name: str, value: object
) -> None:
    twice = [*words[:1], "--game", "pong", *words[1:], *words[1:]]
    arguments = make_parser().parse_args(twice)
    assert getattr(arguments, name) == value
    assert name in arguments.given
    assert not hasattr(arguments, "encoder")
    flag = f"--{name.replace('_', '-')}"
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        f"rl-infonce {words[0]}: {words[1]} is now called {flag}. The former name still works; "
        "please use the new one."
    )
    make_parser().parse_args([words[0], "--game", "pong", flag, *words[2:]])
    assert not capsys.readouterr().err


@pytest.mark.parametrize("command", ["probe"])
def test_help_tells_the_present_spelling_alone(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args([command, "--help"])
    assert "--encoder" not in capsys.readouterr().out
