"""RAM labels: the published tables, and what the emulator says about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import ale_py
import numpy as np
import numpy.typing as npt
import pytest
from ale_py import roms

from rl_infonce.atari import (
    decode,
    games,
    label_versions,
    labelled_games,
    labels_hash,
    load_labels,
)
from rl_infonce.atari.labels import CATEGORIES

Array = npt.NDArray[np.int64]


def test_the_papers_version_has_its_22_games_308_variables_and_categories() -> None:
    tables = {game: load_labels(game, "anand2019") for game in labelled_games("anand2019")}
    assert len(tables) == 22
    assert sum(map(len, tables.values())) == 308
    found = Counter(c for t in tables.values() for v in t.values() for c in v.categories)
    # one variable of Asteroids counts twice
    assert [found[category] for category in CATEGORIES] == [39, 27, 124, 49, 70]
    assert load_labels("pong", "anand2019")["ball_x"].byte == 49


@pytest.mark.parametrize("version", ["atariari2021", "corrected"])
def test_the_later_versions_have_24_games_and_362_variables(version: str) -> None:
    assert len(labelled_games(version)) == 24
    assert sum(len(load_labels(game, version)) for game in labelled_games(version)) == 362


@pytest.mark.parametrize("version", label_versions())
def test_every_label_is_a_byte_of_its_own_in_a_known_game(version: str) -> None:
    assert set(labelled_games(version)) <= set(games())
    assert list(labelled_games(version)) == sorted(labelled_games(version))
    for game in labelled_games(version):
        variables = load_labels(game, version)
        places = [variable.byte for variable in variables.values()]
        assert all(0 <= place < 128 for place in places), game
        assert len(set(places)) == len(places), game


def test_the_versions_differ_where_they_say() -> None:
    assert load_labels("space_invaders", "anand2019")["num_lives"].byte == 125
    assert load_labels("space_invaders", "atariari2021")["num_lives"].byte == 73
    changed = {
        (game, name)
        for game in labelled_games()
        for name, variable in load_labels(game).items()
        if load_labels(game, "atariari2021").get(name) != variable
    }
    assert {(game, name): load_labels(game)[name].byte for game, name in changed} == {
        ("breakout", "score"): 77,
        ("breakout", "score_last_digit"): 84,
        ("demon_attack", "player_x"): 16,
        ("space_invaders", "enemies_y"): 16,
    }


def test_the_hash_names_game_and_labels() -> None:
    hashes = {
        (game, version): labels_hash(game, version)
        for version in label_versions()
        for game in labelled_games(version)
    }
    assert hashes["pong", "anand2019"] == "5469e48eb303f3b7"
    assert hashes["breakout", "corrected"] != hashes["breakout", "atariari2021"]
    assert hashes["boxing", "corrected"] == hashes["boxing", "atariari2021"]
    assert len({hashes[game, "corrected"] for game in labelled_games()}) == 24
    assert labels_hash("PongNoFrameskip-v4", "anand2019") == hashes["pong", "anand2019"]


def test_decode_reads_every_variable_from_its_byte() -> None:
    ram = np.random.default_rng(0).integers(0, 256, (5, 128)).astype(np.uint8)
    decoded = decode(ram, "Pong")
    assert set(decoded) == set(load_labels("pong"))
    for name, variable in load_labels("pong").items():
        np.testing.assert_array_equal(decoded[name], ram[:, variable.byte])
    ram[:] = 0
    assert decoded["ball_x"].any()  # copies


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: load_labels("tetris"), ValueError, r"`game`.*tetris"),
        (lambda: load_labels("alien"), ValueError, r"RAM labels.*'alien'.*asteroids.*yars_revenge"),
        (lambda: load_labels("skiing", "anand2019"), ValueError, r"version 'anand2019'.*'skiing'"),
        (lambda: load_labels("pong", "2020"), ValueError, r"`version`.*anand2019.*'2020'"),
        (lambda: labelled_games("latest"), ValueError, r"`version`.*'latest'"),
        (lambda: decode(np.zeros((3, 64), np.uint8), "pong"), ValueError, r"\[K, 128\].*\(3, 64\)"),
        (lambda: decode(np.zeros((3, 128), np.int64), "pong"), TypeError, r"`ram`.*uint8.*int64"),
        (lambda: load_labels(3), TypeError, r"`game`.*3"),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_labels_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


class Played(NamedTuple):
    """RAM, lives and summed reward after each of T steps of 4 frames."""

    ram: npt.NDArray[np.uint8]
    lives: Array
    score: Array


def emulator(game: str) -> ale_py.ALEInterface:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    path = roms.get_rom_path(game)
    assert path is not None
    ale.loadROM(path)
    return ale


def play(ale: ale_py.ALEInterface, actions: list[ale_py.Action]) -> Played:
    """Play without resets between lives; stops at game over."""
    ram, lives, score, total = [], [], [], 0
    for action in actions:
        total += sum(ale.act(action) for _ in range(4))
        if ale.game_over():
            break
        ram.append(ale.getRAM().copy())
        lives.append(ale.lives())
        score.append(total)
    return Played(np.stack(ram), np.array(lives), np.array(score))


@cache
def random_play(game: str, n_steps: int = 3000) -> Played:
    ale = emulator(game)
    legal = ale.getMinimalActionSet()
    drawn = np.random.default_rng(0).integers(len(legal), size=n_steps)
    return play(ale, [legal[i] for i in drawn])


def bcd(byte: npt.NDArray[np.uint8]) -> Array:
    """Return 0 to 99 from two decimal digits in a byte."""
    return (byte >> 4).astype(np.int64) * 10 + (byte & 15)


WITH_LIVES = [game for game in labelled_games() if "num_lives" in load_labels(game)]


@pytest.mark.atari
@pytest.mark.parametrize("game", WITH_LIVES)
def test_lives_are_those_of_the_emulator_up_to_a_constant(game: str) -> None:
    played = random_play(game)
    lives = decode(played.ram, game)["num_lives"].astype(np.int64)
    assert len(set(played.lives)) >= 3
    assert set(played.lives - lives) in ({0}, {1})


@pytest.mark.atari
def test_the_papers_lives_of_space_invaders_are_not() -> None:
    played = random_play("space_invaders")
    lives = decode(played.ram, "space_invaders", "anand2019")["num_lives"].astype(np.int64)
    assert len(set(played.lives - lives)) > 1


@pytest.mark.atari
@pytest.mark.parametrize(
    ("game", "digits", "unit"),
    [
        ("asteroids", ("player_score_low", "player_score_high"), 10),
        ("berzerk", ("player_score_2",), 1),
        ("bowling", ("score",), 1),
        ("frostbite", ("score_2",), 1),
        ("qbert", ("score_2", "score_1"), 1),
        ("video_pinball", ("score_1", "score_2"), 1),
    ],
)
def test_scores_are_the_decimal_digits_of_the_summed_reward(
    game: str, digits: tuple[str, ...], unit: int
) -> None:
    played = random_play(game)
    values = decode(played.ram, game)
    assert played.score[-1] > 0
    shown = sum(bcd(values[name]) * 100**place for place, name in enumerate(digits))
    np.testing.assert_array_equal(shown * unit, played.score % (100 ** len(digits) * unit))


@pytest.mark.atari
def test_both_scores_of_pong_make_the_reward() -> None:
    played = random_play("pong")
    values = decode(played.ram, "pong")
    lead = values["player_score"].astype(np.int64) - values["enemy_score"]
    np.testing.assert_array_equal(lead, played.score)
    assert played.score[-1] < -10


@pytest.mark.atari
def test_a_paddle_that_follows_the_labelled_ball_scores_as_the_corrected_labels_say() -> None:
    ale = emulator("breakout")
    actions = [ale_py.Action.FIRE] * 2
    parts = [play(ale, actions)]
    for _ in range(600):
        now = decode(parts[-1].ram[-1:], "breakout")
        gap = int(now["ball_x"][0]) - int(now["player_x"][0])
        chase = ale_py.Action.RIGHT if gap > 0 else ale_py.Action.LEFT
        if ale.game_over():
            break
        fire = ale_py.Action.FIRE if now["ball_y"][0] == 0 else chase
        step = play(ale, [fire])
        parts.append(step._replace(score=step.score + parts[-1].score[-1]))
    score = np.concatenate([part.score for part in parts])
    values = decode(np.concatenate([part.ram for part in parts]), "breakout")
    assert score[-1] >= 10
    np.testing.assert_array_equal(bcd(values["score"]), score % 100)
    np.testing.assert_array_equal(values["score_last_digit"], 5 * (score % 10))


def held(game: str, name: str, action: ale_py.Action, n_steps: int, version: str) -> Array:
    """Return a variable while one action is held, once the game has begun."""
    ale = emulator(game)
    play(ale, [ale_py.Action.NOOP] * (60 if game == "space_invaders" else 15))
    played = play(ale, [action] * n_steps)
    return decode(played.ram, game, version)[name].astype(np.int64)


@pytest.mark.atari
@pytest.mark.parametrize(
    ("game", "name", "more", "less"),
    [
        ("pong", "player_y", ale_py.Action.LEFT, ale_py.Action.RIGHT),
        ("breakout", "player_x", ale_py.Action.RIGHT, ale_py.Action.LEFT),
        ("space_invaders", "player_x", ale_py.Action.RIGHT, ale_py.Action.LEFT),
        ("freeway", "player_y", ale_py.Action.UP, ale_py.Action.DOWN),
        ("boxing", "player_x", ale_py.Action.RIGHT, ale_py.Action.LEFT),
    ],
)
def test_the_players_place_follows_the_action(
    game: str, name: str, more: ale_py.Action, less: ale_py.Action
) -> None:
    up = held(game, name, more, 12, "corrected")
    still = held(game, name, ale_py.Action.NOOP, 12, "corrected")
    down = held(game, name, less, 12, "corrected")
    assert up[-1] > still[-1] >= down[-1]
    assert bool((np.diff(up) >= 0).all())
    assert bool((np.diff(down) <= 0).all())


@pytest.mark.atari
def test_the_ship_of_demon_attack_is_the_corrected_byte() -> None:
    """Fired from, the missile of the paper's label stays behind while the ship moves on."""
    for action in (ale_py.Action.LEFT, ale_py.Action.RIGHT):
        assert len(set(held("demon_attack", "player_x", action, 12, "corrected"))) > 6
    assert len(set(held("demon_attack", "player_x", ale_py.Action.NOOP, 12, "corrected"))) == 1


@pytest.mark.atari
def test_the_invaders_descend_by_the_corrected_byte_only() -> None:
    corrected, paper = (
        held("space_invaders", "enemies_y", ale_py.Action.NOOP, 690, version)
        for version in ("corrected", "anand2019")
    )
    assert bool((np.diff(corrected) >= 0).all())
    assert corrected[-1] > corrected[0]
    assert bool((np.diff(paper) < 0).any())
