import re

import pytest
from ale_py import roms

from rl_infonce.atari import games, resolve_game


@pytest.mark.parametrize(
    ("spelling", "rom_id"),
    [
        (" Pong ", "pong"),
        ("PONG", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("PongDeterministic-v0", "pong"),
        ("Pong-v5", "pong"),
        ("MsPacman", "ms_pacman"),
        ("ms-pacman", "ms_pacman"),
        ("space invaders", "space_invaders"),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d"),
        ("Atlantis2", "atlantis2"),
        ("MontezumaRevengeNoFrameskip-v4", "montezuma_revenge"),
    ],
)
def test_resolve_game_understands_the_usual_spellings(spelling: str, rom_id: str) -> None:
    assert resolve_game(spelling) == rom_id


def test_resolve_game_finds_every_game_by_its_gymnasium_id() -> None:
    for game in games():
        camel_case = "".join(word.capitalize() for word in game.split("_"))
        assert resolve_game(f"ALE/{camel_case}-v5") == game
        assert resolve_game(game) == game


def test_games_are_sorted_and_leave_out_only_what_ale_py_cannot_load() -> None:
    assert list(games()) == sorted(games())
    without = {"combat", "joust", "maze_craze", "warlords"}
    assert set(roms.get_all_rom_ids()) - set(games()) == without


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pnog", "got 'pnog'. Did you mean 'pong'"),
        ("breakuot", "Did you mean 'breakout'"),
        ("xyzzyxyzzy", "got 'xyzzyxyzzy'."),
        ("", "got ''."),
        ("Pong-ramNoFrameskip-v4", "RAM is not an image"),
        ("ALE/Pong-ram-v5", "RAM is not an image"),
        ("Joust-v4", "single-player mode, got 'Joust-v4'"),
    ],
)
def test_resolve_game_refuses_with_a_reason(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve_game(name)


def test_resolve_game_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="Expected `game` to be a string, got 5"):
        resolve_game(5)  # type: ignore[arg-type]
