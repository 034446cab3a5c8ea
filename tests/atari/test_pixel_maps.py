"""Pixel maps of positions: each byte is written, and what then moves on the screen is measured."""

from collections.abc import Callable

import numpy as np
import pytest

from rl_infonce.atari import (
    label_versions,
    labelled_games,
    load_labels,
    load_pixel_maps,
    screen_positions,
    to_pixels,
)
from rl_infonce.atari.pixel_maps import SCREEN_SHAPE
from tests.atari.emulators import Sighting, sightings, stops

COPIES = {
    # bytes that the game computes anew in every frame, and what it computes them from
    ("pong", "player_y"): 60,
    ("pong", "enemy_y"): 21,
    ("tennis", "ball_y"): 17,
}

MAPPED = [
    (game, version, name)
    for version in reversed(label_versions())
    for game in labelled_games(version)
    for name in load_pixel_maps(game, version)
]


def seen(game: str, write: int, read: int, enough: int = 80) -> list[Sighting]:
    """Write values near the byte's own, and some that it had in other states, if it varied."""
    stopped, found = stops(game), []
    for state in np.random.default_rng(0).permutation(len(stopped.states)):
        near = int(stopped.ram[state, write]) + np.array([-6, 0, 6])
        others = stopped.ram[state % 12 :: 12, write]
        if len(set(others)) < 3:
            others = np.array([40, 80, 120])
        for values in (near[(near >= 0) & (near < 256)], others):
            found += sightings(stopped, state, write, read, values)
        if len(found) >= enough:
            break
    return found


@pytest.mark.atari
@pytest.mark.parametrize("game", [game for game in labelled_games() if load_pixel_maps(game)])
def test_a_written_byte_moves_its_object_to_the_mapped_pixel(game: str) -> None:
    bytes_checked = set()
    for mapped_game, version, name in MAPPED:
        byte = load_labels(game, version)[name].byte if mapped_game == game else None
        if byte is None or byte in bytes_checked:
            continue
        bytes_checked.add(byte)
        found = seen(game, COPIES.get((game, name), byte), byte)
        axis = load_pixel_maps(game, version)[name].axis
        pixels = to_pixels([sighting.values for sighting in found], game, name, version)
        assert pixels is not None
        side = SCREEN_SHAPE["yx".index(axis)]
        boxes = np.array([sighting.x if axis == "x" else sighting.y for sighting in found])
        across = np.ptp([sighting.y if axis == "x" else sighting.x for sighting in found], 1)
        apart = np.ptp(pixels, 1)
        # seen in both places, nothing else moved, and not clipped at the edges
        inside = (apart > 0) & (np.ptp(boxes, 1) >= apart)
        inside &= across <= 1.5 * np.quantile(across, 0.2) + 8
        inside &= ((pixels >= 4) & (pixels < side - 4)).all(1)
        error = (boxes.mean(1) - pixels.mean(1))[inside]
        right = np.abs(error) <= 2.0
        # others may move or flicker too, so that not all are right, but no map beside is better
        assert right.sum() >= 12, name
        assert right.mean() >= 0.3, name
        assert all((np.abs(error - off) <= 2.0).sum() < right.sum() for off in (-5, 5)), name
        assert np.ptp(boxes.mean(1)[inside][right]) >= 6, name


def test_every_map_is_of_a_label_and_along_the_axis_it_names() -> None:
    assert {"pong", "breakout", "ms_pacman", "tennis"} <= {game for game, _, _ in MAPPED}
    for game, version, name in MAPPED:
        assert f"_{load_pixel_maps(game, version)[name].axis}" in name, (game, name)


def test_the_same_byte_has_the_same_map_under_every_name() -> None:
    assert load_pixel_maps("demon_attack")["player_x"].offset == 15.0
    # the paper's label is the missile's byte
    assert load_pixel_maps("demon_attack", "anand2019")["player_x"].offset == 14.0


def test_to_pixels_by_hand() -> None:
    np.testing.assert_array_equal(to_pixels([49, 100], "pong", "ball_x"), [0.5, 51.5])
    np.testing.assert_array_equal(to_pixels([6, 90], "freeway", "player_y"), [190.5, 106.5])
    # 0x35: 5 coarse steps less 3; 0xF2: 2 coarse steps and 1 more
    np.testing.assert_array_equal(
        to_pixels([0x35, 0xF2], "demon_attack", "player_x"), [15 + 75 - 3, 15 + 30 + 1]
    )
    # low nibble 3: one coarse step; low nibble 2: one and the half screen
    np.testing.assert_array_equal(
        to_pixels([0x03, 0x12], "asteroids", "player_x"), [-3 + 15, -3 + 15 + 87 - 1]
    )
    assert to_pixels([1, 2], "pong", "enemy_score") is None


def test_positions_beyond_the_edge_are_not_seen() -> None:
    labels = {
        "ball_x": np.array([48, 49, 208, 209], np.uint8),  # offset -48.5, 160 columns
        "enemy_score": np.zeros(4, np.uint8),
    }
    found = screen_positions(labels, "pong")
    assert set(found) == {"ball_x"}
    np.testing.assert_array_equal(found["ball_x"], [np.nan, 0.5, 159.5, np.nan])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_pixel_maps("tetris"), r"`game`.*tetris"),
        (lambda: load_pixel_maps("alien"), r"RAM labels.*'alien'"),
        (lambda: load_pixel_maps("pong", "2020"), r"`version`.*'2020'"),
        (lambda: to_pixels([1], "pong", "ghost_x"), r"`variable`.*ball_x.*'ghost_x'"),
    ],
)
def test_what_is_unknown_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
