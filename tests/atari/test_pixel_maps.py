"""Pixel maps of positions, against objects found by their colour on the screen."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt
import pytest
from ale_py import roms

from rl_infonce.atari import decode, games, load_labels, load_pixel_maps
from rl_infonce.atari.labels import labelled_games


class Sight(NamedTuple):
    """Colour of an object, rows and columns where nothing else has it, and its size."""

    colour: tuple[int, int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    height: int
    width: int


SIGHTS = {
    ("pong", "ball"): Sight((236, 236, 236), (34, 194), (0, 160), 4, 2),
    ("pong", "player"): Sight((92, 186, 92), (34, 194), (80, 160), 16, 4),
    ("pong", "enemy"): Sight((213, 130, 74), (34, 194), (0, 80), 16, 4),
    ("breakout", "player"): Sight((200, 72, 72), (189, 193), (8, 152), 4, 16),
    ("breakout", "ball"): Sight((200, 72, 72), (93, 189), (8, 152), 4, 2),
    # the arms move: only whole boxers without an arm out, who are 14 wide and 47 high
    ("boxing", "player"): Sight((214, 214, 214), (34, 177), (32, 128), 47, 14),
    ("boxing", "enemy"): Sight((0, 0, 0), (34, 177), (32, 128), 47, 14),
}


@cache
def _play(game: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return screens [K, 210, 160, 3] and RAM [K, 128] of random play, with the same instants."""
    ale = ale_py.ALEInterface()
    ale.setLoggerMode(ale_py.LoggerMode.Error)
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    rom = roms.get_rom_path(game)
    assert rom is not None
    ale.loadROM(rom)
    actions = ale.getMinimalActionSet()
    rng = np.random.default_rng(0)
    screens, ram = [], []
    for step in range(1200):
        if step % 6 == 0:
            action = actions[rng.integers(1, len(actions))]
        ale.act(action)
        if ale.game_over():
            ale.reset_game()
        if step % 3 == 0:
            screens.append(ale.getScreenRGB().copy())
            ram.append(ale.getRAM().copy())
    return np.stack(screens), np.stack(ram)


def _centres(screens: npt.NDArray[np.uint8], sight: Sight) -> npt.NDArray[np.float64]:
    """Return centres [K, 2], x and y; NaN where the object is not seen in full."""
    rows, columns = slice(*sight.rows), slice(*sight.columns)
    seen = (screens[:, rows, columns] == np.array(sight.colour, np.uint8)).all(-1)
    centres = np.full((len(screens), 2), np.nan)
    for k, mask in enumerate(seen):
        ys, xs = np.nonzero(mask)
        if len(ys) and np.ptp(ys) == sight.height - 1 and np.ptp(xs) == sight.width - 1:
            middle_x, middle_y = (xs.min() + xs.max()) / 2, (ys.min() + ys.max()) / 2
            centres[k] = middle_x + sight.columns[0], middle_y + sight.rows[0]
    return centres


@pytest.mark.atari
@pytest.mark.parametrize(("game", "thing"), SIGHTS)
def test_mapped_bytes_fall_on_the_centre_of_the_object(game: str, thing: str) -> None:
    screens, ram = _play(game)
    centres = _centres(screens, SIGHTS[game, thing])
    in_full = np.isfinite(centres[:, 0])
    assert in_full.sum() > 50
    maps, values = load_pixel_maps(game), decode(ram, game)
    checked = [name for name in maps if name.startswith(thing)]
    assert checked
    for name in checked:
        axis = {"x": 0, "y": 1}[maps[name].axis]
        drawn = values[name][in_full].astype(np.float64) + maps[name].offset
        # positions in lines of two, and boxers that sway by two
        assert np.abs(drawn - centres[in_full, axis]).max() <= 2.0, name
        assert abs(np.median(drawn - centres[in_full, axis])) <= 0.5, name


def test_every_map_has_its_object_checked_and_names_a_label() -> None:
    mapped = [game for game in games() if load_pixel_maps(game)]
    assert mapped
    for game in mapped:
        assert game in labelled_games()
        for name, entry in load_pixel_maps(game).items():
            assert (game, name.split("_")[0]) in SIGHTS
            assert name.endswith(f"_{entry.axis}")
            assert {load_labels(game, v)[name].byte for v in ("atariari2021", "corrected")} == {
                load_labels(game)[name].byte
            }


def test_unmeasured_games_have_no_map() -> None:
    assert load_pixel_maps("ms pacman") == {}
