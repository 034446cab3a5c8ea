"""What each label claims to measure, varied in the emulator: lives, scores, clocks, the player."""

from typing import Any, NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt
import pytest

from rl_infonce.atari import labelled_games, load_labels, to_pixels
from tests.atari.emulators import NOOP, Array, byte, decimal, stops
from tests.further import with_further

A = ale_py.Action
pytestmark = pytest.mark.atari

SCORES: dict[str, dict[str, int]] = {
    # points for one more in the last digit
    "asteroids": {"player_score_low": 10, "player_score_high": 1000},
    "berzerk": {"player_score_2": 1, "player_score_1": 100, "player_score_0": 10000},
    "bowling": {"score": 1},
    "boxing": {"player_score": 1, "enemy_score": -1},
    "breakout": {"score": 1, "score_last_digit": 0},
    "freeway": {"score": 1},
    "frostbite": {"score_2": 1, "score_1": 100, "score_0": 10000},
    "hero": {"score_1": 1, "score_0": 100},
    "montezuma_revenge": {"score_2": 1, "score_1": 100, "score_0": 10000},
    "ms_pacman": {"player_score": 1},
    "pong": {"player_score": 1, "enemy_score": -1},
    "private_eye": {"score_1": 1, "score_0": 100},
    "qbert": {"score_2": 1, "score_1": 100, "score_0": 10000},
    "seaquest": {"score_1": 1, "score_0": 100},
    "skiing": {"clock_ms": -1, "clock_s": -100, "clock_m": -6000, "gates_left_count": 0},
    "space_invaders": {"player_score": 1},
    "tennis": {"player_score": 1, "enemy_score": -1},
    "venture": {"score_3_4": 100, "score_1_2": 10000},
    "video_pinball": {"score_1": 1, "score_2": 100},
}
NOT_DECIMAL = {"freeway", "pong", "skiing", "tennis"}
"""Freeway pays one point at most, the others count in binary or, skiing, minutes."""

CLOCKS = {
    "boxing": ("clock",),
    "pitfall": ("clock_sec", "clock_min"),
    "private_eye": ("clock_1", "clock_0"),
}


def test_every_score_and_clock_is_in_a_table() -> None:
    shown = {
        (game, name)
        for game in labelled_games()
        for name in load_labels(game)
        if any(word in name for word in ("score", "clock", "gates_left"))
    }
    tables: list[dict[str, Any]] = [SCORES, CLOCKS, {"battle_zone": ["score"]}]  # a test of its own
    tested = {(game, name) for each in tables for game in each for name in each[game]}
    way_out = (
        "Write its points into SCORES, or its name into CLOCKS, or give it a name of another kind:"
    )
    assert shown == tested, f"{way_out} {shown ^ tested}"


@pytest.mark.slow
@pytest.mark.parametrize("game", with_further(SCORES, set(list(SCORES)[::2])))
def test_one_more_in_a_score_is_paid(game: str) -> None:
    stopped = stops(game)
    for name, points in SCORES[game].items():
        place, n_paid = byte(game, name), 0
        for state in np.flatnonzero(stopped.lives == max(stopped.lives))[::4]:
            value = int(stopped.ram[state, place])
            paid = [stopped.written(state, place, value + more) for more in (0, 1, 16)]
            if value % 16 < 9 and value < 0x90:
                assert paid[1] - paid[0] == points, name
                tens = 1 if game == "freeway" else points * (16 if game in NOT_DECIMAL else 10)
                assert game == "skiing" or paid[2] - paid[0] == tens, name
                n_paid += 1
        assert n_paid >= 2, name


@pytest.mark.parametrize("game", sorted(set(SCORES) - NOT_DECIMAL))
def test_scores_are_the_summed_rewards(game: str) -> None:
    stopped = stops(game)
    paid = {byte(game, name): points for name, points in SCORES[game].items() if points}
    shown = sum(decimal(stopped.ram[:, at]) * points for at, points in paid.items())
    at_start = sum(int(decimal(stopped.start[at])) * points for at, points in paid.items())
    unit, top = min(map(abs, paid.values())), max(paid.values())
    assert set((shown - at_start - stopped.score) % (100 * top)) == {0}, unit


def test_the_score_of_battle_zone_is_its_thousands() -> None:
    stopped, place = stops("battle_zone"), byte("battle_zone", "score")
    states = np.flatnonzero(stopped.ram[:, place] < 0x90)[:3]  # from 0xA on a digit is blank
    assert len(states)
    for state in states:
        value = int(stopped.ram[state, place])
        paid = [stopped.written(state, place, value + more) for more in (0, 16, 32)]
        assert (paid[1] - paid[0], paid[2] - paid[0]) == (1000, 2000)


@pytest.mark.parametrize("game", CLOCKS)
def test_clocks_count_seconds_and_minutes_down(game: str) -> None:
    stopped, clock = stops(game), [byte(game, name) for name in CLOCKS[game]]
    state = next(k for k, ram in enumerate(stopped.ram) if 0x25 < ram[clock[0]] < 0x60)
    before, after = stopped.after(state, NOOP, 0), stopped.after(state, NOOP, 600)
    assert decimal(before[clock[0]]) - decimal(after[clock[0]]) in (9, 10, 11)
    for minutes in clock[1:]:
        stopped.ale.restoreSystemState(stopped.states[state])
        stopped.ale.setRAM(clock[0], 0x00)
        for _ in range(120):
            stopped.ale.act(NOOP)
        assert decimal(before[minutes]) - decimal(stopped.ale.getRAM()[minutes]) == 1


WITH_LIVES = [game for game in labelled_games() if "num_lives" in load_labels(game)]


@pytest.mark.parametrize("game", [*WITH_LIVES, "asteroids"])
def test_lives_are_those_of_the_emulator_up_to_a_constant(game: str) -> None:
    packed = game == "asteroids"  # with the direction of the ship in the low half
    place, stopped = byte(game, "num_lives_direction" if packed else "num_lives"), stops(game)
    lives = stopped.ram[:, place].astype(np.int64) // (16 if packed else 1)
    assert len(set(stopped.lives)) >= 3
    off = set(stopped.lives - lives)
    assert off in ({0}, {1})
    for value in (1, 2, 3):
        stopped.ale.restoreSystemState(stopped.states[0])
        stopped.ale.setRAM(place, value * (16 if packed else 1))
        stopped.ale.act(NOOP)
        assert {stopped.ale.lives() - value} == off


class Steered(NamedTuple):
    """A place of the player, and the actions that raise and lower it, held for some frames."""

    game: str
    name: str
    more: ale_py.Action
    less: ale_py.Action
    n_frames: int = 12


def along(game: str, axes: str, n_frames: int = 12) -> list[Steered]:
    """Return what the joystick steers to the right and downwards."""
    ends = {"x": (A.RIGHT, A.LEFT), "y": (A.DOWN, A.UP)}
    return [Steered(game, f"player_{axis}", *ends[axis], n_frames) for axis in axes]


STEERED = [
    *along("berzerk", "xy"),
    *along("bowling", "y"),
    *along("boxing", "xy"),
    *along("breakout", "x"),
    *along("demon_attack", "x"),
    *along("freeway", "y"),
    *along("frostbite", "x"),
    *along("frostbite", "y", n_frames=24),  # jumps, first upwards
    *along("hero", "x"),
    Steered("hero", "player_y", NOOP, A.UP),  # down lights dynamite
    *along("montezuma_revenge", "xy"),
    *along("ms_pacman", "xy"),
    *along("pitfall", "xy"),
    Steered("pong", "player_y", A.LEFT, A.RIGHT),
    *along("private_eye", "x"),
    Steered("private_eye", "player_y", A.FIRE, NOOP),  # the car jumps
    # left is up to the left, right is down to the right
    *(Steered("qbert", f"player_{axis}", A.RIGHT, A.LEFT, 30) for axis in ("x", "y", "column")),
    *along("riverraid", "x"),
    *along("seaquest", "xy"),
    *along("skiing", "x", n_frames=24),
    *along("space_invaders", "x"),
    *along("venture", "xy"),
    Steered("video_pinball", "player_left_paddle_y", A.LEFT, NOOP),
    Steered("video_pinball", "player_right_paddle_y", A.RIGHT, NOOP),
    *along("yars_revenge", "xy"),
]
NOT_STEERED = {
    ("asteroids", "player_x"): "the ship turns and drifts; the pixel test writes it",
    ("asteroids", "player_y"): "likewise",
    ("bowling", "player_x"): "the player walks by himself; the pixel test writes it",
}


def places(game: str, name: str, action: ale_py.Action, n_frames: int) -> npt.NDArray[np.float64]:
    """Return a place after an action in every other state: in pixels, or as it is if unmapped."""
    stopped, at = stops(game), byte(game, name)
    values = np.array([stopped.after(k, action, n_frames)[at] for k in range(0, 60, 2)])
    pixels = to_pixels(values, game, name)
    return values.astype(np.float64) if pixels is None else pixels


@pytest.mark.slow
@pytest.mark.parametrize("each", STEERED, ids=lambda each: f"{each.game}-{each.name}")
def test_the_players_place_follows_the_joystick(each: Steered) -> None:
    still = places(each.game, each.name, NOOP, each.n_frames)
    steps = [
        sign * (places(each.game, each.name, action, each.n_frames) - still)
        for action, sign in ((each.more, 1), (each.less, -1))
        if action != NOOP
    ]
    assert all((moved > 0).any() for moved in steps)
    # no way out of some states; in others a life is lost, an edge crossed, or a jump begun
    moved = np.concatenate(steps)
    assert (moved > 0).sum() >= 4
    assert (moved > 0).sum() >= 0.7 * (moved != 0).sum()


def test_every_place_of_a_player_is_steered_or_says_why_not() -> None:
    found = {
        (game, name)
        for game in labelled_games()
        for name, variable in load_labels(game).items()
        if "agent_localization" in variable.categories
    }
    unsteered = found - {(each.game, each.name) for each in STEERED}
    way_out = "Say in STEERED what moves it, or in NOT_STEERED why nothing does:"
    assert unsteered == set(NOT_STEERED), f"{way_out} {unsteered ^ set(NOT_STEERED)}"


def turned(game: str, name: str, action: ale_py.Action, first: int) -> Array:
    """Return a byte one frame after the joystick, held for ten, was let go."""
    stopped, found = stops(game), []
    for state in range(first, 60, 3):
        stopped.after(state, action, 10)
        stopped.ale.act(NOOP)
        found.append(int(stopped.ale.getRAM()[byte(game, name)]))
    return np.array(found)


@pytest.mark.parametrize(
    ("game", "name"),
    [
        ("asteroids", "num_lives_direction"),
        ("battle_zone", "angle_of_tank"),
        ("berzerk", "player_direction"),
        ("frostbite", "player_direction"),
        ("montezuma_revenge", "player_direction"),
        ("ms_pacman", "player_direction"),
        ("private_eye", "player_direction"),
        ("seaquest", "player_direction"),
    ],
)
def test_directions_are_kept_after_the_joystick_turned_them(game: str, name: str) -> None:
    assert (turned(game, name, A.LEFT, 0) != turned(game, name, A.RIGHT, 0)).mean() >= 0.3
