"""RAM labels: the published tables, and how the corrected one differs."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rl_infonce.atari import decode, games, label_versions, labelled_games, labels_hash, load_labels
from rl_infonce.atari import labels as labels_module
from rl_infonce.atari.labels import CATEGORIES

FOLDER = Path(labels_module.__file__).parent
TABLE = json.loads((FOLDER / "ram_labels.json").read_text(encoding="utf-8"))["versions"]


def test_the_papers_version_has_its_22_games_308_variables_and_categories() -> None:
    tables = {game: load_labels(game, "anand2019") for game in labelled_games("anand2019")}
    assert len(tables) == 22
    assert sum(map(len, tables.values())) == 308
    found = Counter(c for t in tables.values() for v in t.values() for c in v.categories)
    # one variable of Asteroids counts twice
    assert [found[category] for category in CATEGORIES] == [39, 27, 124, 49, 70]
    assert load_labels("pong", "anand2019")["ball_x"].byte == 49


@pytest.mark.parametrize(("version", "n_variables"), [("atariari2021", 362), ("corrected", 360)])
def test_the_later_versions_have_24_games(version: str, n_variables: int) -> None:
    assert len(labelled_games(version)) == 24
    found = sum(len(load_labels(game, version)) for game in labelled_games(version))
    way_out = (
        "Set the number above." if version == "corrected" else "Published versions never change."
    )
    assert found == n_variables, way_out


@pytest.mark.parametrize("version", label_versions())
def test_every_label_is_a_byte_of_its_own_in_a_known_game(version: str) -> None:
    assert set(labelled_games(version)) <= set(games())
    assert list(labelled_games(version)) == sorted(labelled_games(version))
    for game in labelled_games(version):
        variables = load_labels(game, version)
        places = [variable.byte for variable in variables.values()]
        assert all(0 <= place < 128 for place in places), game
        named = {category for each in variables.values() for category in each.categories}
        unknown = named - set(CATEGORIES)
        assert not unknown, f"{game}: expected categories of {CATEGORIES}, got {unknown}"
        twice = {name for name, each in variables.items() if places.count(each.byte) > 1}
        assert not twice, f"{game}: give a byte one name only, got {twice}"


def places(game: str, version: str) -> dict[str, int]:
    return {name: variable.byte for name, variable in load_labels(game, version).items()}


def test_the_corrections_lead_from_the_published_labels_to_the_corrected_ones() -> None:
    tables = {game: places(game, "atariari2021") for game in labelled_games()}
    for correction in TABLE["corrected"]["corrections"]:
        table = tables[correction["game"]]
        published = {name: table.pop(name, None) for name in correction["was"]}
        assert correction["was"] == published, f"{correction['game']}: `was` is not as published"
        table.update(correction["is"])
    for game, table in tables.items():
        differing = table.items() ^ places(game, "corrected").items()
        assert not differing, (
            f"{game}: tell of these in `corrections` and in `corrected`: {differing}"
        )
    untouched = set(tables) - {each["game"] for each in TABLE["corrected"]["corrections"]}
    for game in untouched:
        assert load_labels(game) == load_labels(game, "atariari2021")


def named(variables: dict[str, int]) -> str:
    return ", ".join(f"`{name}` {byte}" for name, byte in variables.items()) or "none"


def published_changes() -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Return what only the paper's and only the later version says of each game of the paper."""
    changes = {}
    for game in labelled_games("anand2019"):
        paper, later = (places(game, version).items() for version in label_versions()[:2])
        if paper != later:
            changes[game] = (dict(sorted(paper - later)), dict(sorted(later - paper)))
    return changes


def test_the_page_lists_every_difference() -> None:
    page = (FOLDER / "LABELS.md").read_text(encoding="utf-8")
    corrected = [
        f"| {each['game']} | {named(each['was'])} | {named(each['is'])} | {each['why']} |"
        for each in TABLE["corrected"]["corrections"]
    ]
    later = [
        f"| {game} | {named(was)} | {named(now)} |"
        for game, (was, now) in published_changes().items()
    ]
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
    missing = "\n".join(each for each in corrected + later if each not in rows)
    assert not missing, (
        f"Expected these rows also in LABELS.md, in the order of the file:\n{missing}"
    )
    assert rows == corrected + later, "Expected no other rows in LABELS.md, nor another order."
    paper, published = map(labelled_games, label_versions()[:2])
    for game in set(published) - set(paper):
        n_variables = len(load_labels(game, "atariari2021"))
        assert f"{game} ({n_variables} variables)" in page


def test_the_hash_names_game_and_labels() -> None:
    hashes = {
        (game, version): labels_hash(game, version)
        for version in label_versions()
        for game in labelled_games(version)
    }
    assert hashes["pong", "anand2019"] == "5469e48eb303f3b7"
    assert hashes["breakout", "corrected"] != hashes["breakout", "atariari2021"]
    assert hashes["pong", "corrected"] != hashes["pong", "atariari2021"]
    corrected = {each["game"] for each in TABLE["corrected"]["corrections"]}
    for game in set(labelled_games("atariari2021")) - corrected:
        assert hashes[game, "corrected"] == hashes[game, "atariari2021"]
    assert len({hashes[game, "corrected"] for game in labelled_games()}) == 24
    assert labels_hash("PongNoFrameskip-v4", "anand2019") == hashes["pong", "anand2019"]


def test_decode_says_what_it_wants_instead_of_a_list_or_one_state() -> None:
    with pytest.raises(TypeError, match="Expected `ram` to be an array of uint8, got list"):
        decode([[0] * 128], "pong")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got one state. Pass ram\[None\]"):
        decode(np.zeros(128, np.uint8), "pong")


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
