"""What the commands say of themselves: help in groups, brief errors, completion."""

import shlex
import subprocess
import sys

import pytest

from rl_infonce.cli import _COMMANDS, main, make_parser
from rl_infonce.cli.setting_flags import groups_of
from rl_infonce.presets import LOSS_SETTINGS

COMMANDS = [command.__name__.rpartition(".")[2] for command in _COMMANDS]


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str, object]:
    """Return what a command prints, what it complains of, and its exit code."""
    with pytest.raises(SystemExit) as leaving:
        main(words)
    printed = capsys.readouterr()
    return printed.out, printed.err, leaving.value.code


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_ends_with_an_example_that_it_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, _, code = said([command, "--help"], capsys)
    assert code == 0
    assert len(shown.partition("\n\n")[0].splitlines()) <= 4, "the usage is short"
    *_, title, example = shown.splitlines()
    assert title == "example:"
    words = shlex.split(example)
    assert words[:2] == ["rl-infonce", command]
    assert make_parser().parse_args(words[1:]).command == command


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["trian"], "Did you mean train?"),
        (["train", "--algo", "pp0"], "Did you mean ppo?"),
        (["train", "--algo", "PPO"], "Did you mean ppo?"),
        (["train", "--game", "pnog"], "Did you mean 'pong'?"),
        (["train", "--learning-rat", "3"], "Did you mean"),
        (["train", "--gamma", "0.9"], "Did you mean --hyperparams gamma:VALUE?"),
        (["train", "--env", "HalfCheeta-v5"], "HalfCheetah-v5"),
        (["evaluate"], "required: --model"),
        (["evaluate", "--modle", "x"], "unknown: --modle. Did you mean --model?"),
        (["probe", "--gmae=pong"], "unknown: --gmae=pong. Did you mean --game?"),
        (["collect", "--outpt", "x", "--gam", "pong"], "Did you mean --output?"),
        (["report", "--agianst", "placebo", "x"], "unknown: --agianst. Did you mean --against?"),
        (["push", "bad", "name"], "unknown: name. See rl-infonce push --help."),
        (["push", "me/pong", "--game", "pogn"], "Did you mean 'pong'"),
        (["--verison"], "unknown: --verison. Did you mean --version?"),
        (["--prnt-completion", "bash"], "Did you mean --print-completion?"),
        (["--print-completion", "bsh"], "Did you mean 'bash'?"),
        (["trian", "--alg", "ppo"], "Did you mean train?"),
        (["probe", "--game", "pong", "--features-of", "randm"], "Did you mean 'random'?"),
        (["train", "--game", "pong", "--device", "cud"], "there is no such device. Use auto"),
        (["probe"], "required: --game"),
        (["sweep", "none.toml"], "got no such file"),
        (["collect", "--game", "pong"], "required: -o/--output"),
        (["collect", "--game", "pong", "-o", "new", "--policy", "randm"], "mean 'random'?"),
        (["pretrain", "--game", "pong", "--policy", "randon"], "Did you mean random?"),
    ],
)
def test_wrong_usage_is_said_in_a_few_lines(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, complaint, code = said(words, capsys)
    assert code == 2
    assert meant in complaint
    assert len(complaint.splitlines()) <= 6


@pytest.mark.parametrize(
    ("words", "name", "found"),
    [
        ("train --hyperparams a:1 b:2 -params c:3", "hyperparams", ["a:1", "b:2", "c:3"]),
        ("train --horizons 4 --horizons 8 2", "horizons", [4, 8, 2]),
        ("sweep g.toml --slurm a:1 --slurm b:2", "slurm", ["a:1", "b:2"]),
        ("sweep g.toml", "slurm", ()),
        ("probe --game pong --seeds 3 --seeds 4", "seeds", [3, 4]),
        ("probe --game pong --game qbert", "seeds", [0]),
    ],
)
def test_a_repeated_flag_adds_to_its_values(words: str, name: str, found: object) -> None:
    for _ in range(2):
        assert getattr(make_parser().parse_args(words.split()), name) == found


@pytest.mark.parametrize("text", ["100000", "100_000", "1e5", "100000.0"])
def test_whole_numbers_may_be_written_in_any_way(text: str) -> None:
    assert make_parser().parse_args(["train", "--game", "pong", "-n", text]).n_timesteps == 100_000


@pytest.mark.parametrize("text", ["1.5", "inf", "nan", "x"])
def test_other_numbers_are_refused_where_whole_ones_are_due(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, error, code = said(["train", "--game", "pong", "-n", text], capsys)
    assert code == 2
    assert f"-n/--n-timesteps: invalid int value: '{text}'" in error


@pytest.mark.parametrize("command", ["train", "evaluate", "collect", "pretrain", "probe", "sweep"])
def test_a_long_help_has_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown, _, _ = said([command, "--help"], capsys)
    options = shown.partition("\noptions:\n")[2].partition("\n\n")[0]
    assert options.strip() == "-h, --help            show this help message and exit"
    titles = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert len(titles) >= 5, "options, example and three groups of its own"


def test_every_setting_of_the_loss_stands_in_one_group_of_the_help() -> None:
    groups = groups_of(LOSS_SETTINGS)
    names = [name for settings in groups.values() for name in settings]
    assert sorted(names) == sorted(LOSS_SETTINGS)
    assert all(groups.values())


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_is_told_commands_and_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script, _, code = said(["--print-completion", shell], capsys)
    assert code == 0
    for word in (*COMMANDS, "--infonce-coef", "--features-of"):
        assert word in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    _, complaint, code = said(["--print-completion", "pish"], capsys)
    assert code == 2
    assert "one of bash" in complaint


def test_without_shtab_the_way_to_it_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    _, complaint, code = said(["--print-completion", "bash"], capsys)
    assert code == 2
    assert 'pip install "rl-infonce[completion]"' in complaint
