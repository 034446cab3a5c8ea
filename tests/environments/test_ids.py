"""A name is an Atari game or a Gymnasium id, or the error says what is wrong with it."""

import re
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_infonce.environments.ids import find_spec, is_atari, make_env
from tests.environments.worlds import IMAGES


@pytest.mark.parametrize("name", ["pong", "ALE/Pong-v5", "PongNoFrameskip-v4", "Ms Pacman"])
def test_any_spelling_of_a_game_is_atari(name: str) -> None:
    assert is_atari(name)


def test_other_ids_are_not_atari() -> None:
    assert not any(map(is_atari, ["CartPole-v1", "HalfCheetah-v5", "mine:Pong-v0", "tetriss"]))
    clashing = [spec.id for spec in gym.registry.values() if is_atari(spec.id)]
    ours = [each for each in clashing if not str(gym.spec(each).entry_point).startswith("ale_py")]
    assert not ours, "Blackjack-v1 is the name of a game and of another environment"


def test_an_id_may_name_the_module_that_registers_it() -> None:
    assert find_spec(IMAGES).id == "Stamped-v0"
    env = make_env(IMAGES)
    assert env.spec is not None
    assert env.spec.id == "Stamped-v0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole", "got 'CartPole'. Did you mean 'CartPole-v"),
        ("HalfCheeta-v5", "Did you mean 'HalfCheetah-v5'"),
        ("Breakot-v5", r"Did you mean 'breakout'|registry, got 'Breakot-v5'"),
        ("no_such_module:X-v0", "to import no_such_module, which .* No module named"),
        ("tests.environments.worlds:Stampd-v0", "Did you mean 'Stamped-v0'"),
        ("HalfCheetah-v3", "the packages that HalfCheetah-v3 needs"),
    ],
)
def test_what_is_wrong_with_an_id_is_said(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(name)


def test_a_module_that_fails_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_worlds.py").write_text("def maze(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"to import broken_worlds, which .* got SyntaxError: "):
        find_spec("broken_worlds:Maze-v0")


def test_a_missing_mujoco_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in sys.modules if each.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    told = r"MuJoCo is not installed\. Install it with `pip install .rl-infonce\[mujoco\].`"
    with pytest.raises(ValueError, match=told):
        make_env("HalfCheetah-v5")


@pytest.mark.parametrize(
    "error",
    [TypeError("no such argument"), RuntimeError("no display"), OSError(2, "none", "a.txt")],
)
def test_what_an_environment_refuses_is_an_error_of_values(error: Exception) -> None:
    def refuse(**_given: Any) -> None:
        raise error

    gym.register("Refusing-v0", refuse)  # type: ignore[arg-type]
    said = f"an environment of Refusing-v0, got {type(error).__name__}: {error}"
    with pytest.raises(ValueError, match=re.escape(said)):
        make_env("Refusing-v0")
    gym.registry.pop("Refusing-v0")
