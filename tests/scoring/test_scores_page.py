"""Tables of scores: figures worked out by hand, published rows, games and failures."""

from functools import partial
from typing import Any

import pytest

from rl_infonce.atari import labelled_games
from rl_infonce.scoring.scores_page import scores_table

SETTINGS = {
    "view": "screen",
    "labels": "anand2019",
    "policy": "random_without_noop",
    "n_frames": 50_000,
    "data_seed": 0,
    "precision": "fp32",
}
ENCODERS = {
    "m": {"name": "majority", "kind": "majority", "description": ""},
    "r": {"name": "random", "kind": "random", "description": "stdim"},
    "a": {"name": "a.zip", "kind": "file", "description": "stdim"},
}


def figures(f1: float) -> dict[str, float]:
    return {"f1_weighted": f1, "f1_macro": 0.0, "accuracy": 0.0}


def entry(game: str, encoder: str, seed: int, mean: float, **changes: Any) -> dict[str, Any]:
    return {
        "game": game,
        "encoder": encoder,
        "seed": seed,
        "protocol": "converged",
        "status": "done",
        "run": 0,
        "scores": {
            "mean": figures(mean),
            "categories": {"agent_localization": figures(mean + 0.1)},
            "variables": {"player_x": figures(mean + 0.2), f"only_{seed}": figures(1.0)},
            "intervals": {"mean": [mean - 0.01, mean + 0.02]},
            "not_probed": {"clock": "it stands still"},
            "settings": {"n_validation_groups": 5 if game != "boxing" else 2},
        },
    } | changes


published = partial(entry, protocol="anand2019")


def table(*entries: dict[str, Any], **settings: Any) -> list[str]:
    runs = [{"command": "rl-infonce probe --game pong"}]
    content = {"settings": SETTINGS | settings, "encoders": ENCODERS, "runs": runs}
    return scores_table({**content, "cells": list(entries)}).splitlines()


def test_the_commands_are_those_that_gave_the_scores() -> None:
    runs = [{"command": f"rl-infonce probe --seeds {seed}"} for seed in (0, 1, 2)]
    cells = [entry("pong", "a", 0, 0.1, run=0), entry("pong", "a", 1, 0.2, run=2)]
    content = {"settings": SETTINGS, "encoders": ENCODERS, "runs": runs, "cells": cells}
    text = scores_table(content)
    assert "\n    rl-infonce probe --seeds 0\n    rl-infonce probe --seeds 2\n" in text
    assert "--seeds 1\n" not in text


def test_a_row_of_other_seeds_says_so() -> None:
    lines = table(
        *(entry("pong", "r", seed, 0.1 * seed) for seed in (1, 2, 3)),
        *(entry("pong", "a", seed, 0.1 * seed) for seed in (1, 2)),
        *(entry("boxing", key, 1, 0.1) for key in ("r", "a")),
    )
    assert any(line.startswith("| pong | random | 0.200 (0.100 to 0.300) |") for line in lines)
    expected = "| pong | a.zip | 0.150 (0.100 to 0.200); seeds 1, 2 alone |"
    assert any(line.startswith(expected) for line in lines)
    for name in ("random", "a.zip"):
        (row,) = (line for line in lines if line.startswith(f"| mean of 2 | {name} |"))
        assert "; not all seeds |" in row


def test_one_seed_shows_its_interval_and_several_their_range() -> None:
    assert "| pong | a.zip | 0.300 (95 %: 0.290 to 0.320) | 0.400 | - | - | - | - |" in table(
        entry("pong", "a", 0, 0.3)
    )
    lines = table(entry("pong", "a", 0, 0.3), entry("pong", "a", 1, 0.6))
    assert "| pong | a.zip | 0.450 (0.300 to 0.600) | 0.550 | - | - | - | - |" in lines
    assert "| player_x | 0.650 |" in lines
    assert "| only_1 | 1.000, 1 of 2 seeds |" in lines
    assert [line for line in lines if line.startswith("Not probed")] == [
        "Not probed (seed 0): clock: it stands still."
    ]
    no_interval = entry("pong", "a", 0, 0.3)
    no_interval["scores"]["intervals"]["mean"] = [None, None]
    assert "| pong | a.zip | 0.300 | 0.400 | - | - | - | - |" in table(no_interval)


def test_a_seed_that_leaves_out_other_variables_says_so() -> None:
    entries = [entry("pong", "a", seed, 0.3) for seed in (0, 1, 2)]
    entries[2]["scores"]["not_probed"] = {"score": "it stands still"}
    assert [line for line in table(*entries) if line.startswith("Not probed")] == [
        "Not probed (seed 0): clock: it stands still.",
        "Not probed (seed 2): score: it stands still.",
    ]


def test_penalties_that_few_games_chose_are_named() -> None:
    told = "Fewer than 3 games chose the penalties of boxing seed 0, boxing seed 1: these scores"
    entries = [entry(game, "a", seed, 0.3) for game in ("boxing", "pong") for seed in (0, 1)]
    assert any(line.startswith(told) for line in table(*entries))
    assert not any("chose the penalties" in line for line in table(*entries[2:]))
    assert not any(
        "chose the penalties" in line for line in table(published("boxing", "a", 0, 0.3))
    )


def test_rows_of_one_seed_are_marked_beside_rows_of_several() -> None:
    games = [("pong", 0, 0.3), ("pong", 1, 0.6), ("breakout", 0, 0.3)]
    lines = table(*(entry(game, "a", seed, mean) for game, seed, mean in games))
    assert "| pong | a.zip | 0.450 (0.300 to 0.600) | 0.550 | - | - | - | - |" in lines
    assert "| breakout | a.zip | 0.300 (95 %: 0.290 to 0.320) | 0.400 | - | - | - | - |" in lines
    assert "lowest to highest of the seeds, or, after `95 %:`, the interval" in "\n".join(lines)


def test_asked_encoders_come_first_then_untrained_majority_and_published() -> None:
    lines = table(*(published("pong", key, 0, 0.3) for key in "mra"))
    rows = [line.split(" | ")[1] for line in lines if line.startswith("| pong")]
    methods = ["maj-clf", "random-cnn", "cpc", "st-dim", "supervised"]
    names = [f"*published, {method}*" for method in methods]
    assert rows == ["a.zip", "random", "majority", *names]
    assert "| pong | *published, random-cnn* | 0.17 | - | - | - | - | - |" in lines


def test_published_rows_stand_under_their_own_protocol_alone() -> None:
    own = entry("pong", "a", 0, 0.3)
    parts = "\n".join(table(own, published("pong", "a", 0, 0.3))).split("## Protocol")[1:]
    assert ["*published" in part for part in parts] == [False, True]
    others = "\n".join(table(own, entry("pong", "a", 0, 0.3, protocol="knn")))
    assert "ublished" not in others


def test_encoders_of_one_name_are_told_apart() -> None:
    twin = {**ENCODERS, "b": {**ENCODERS["a"]}}
    cells = [entry("pong", "a", 0, 0.3), entry("pong", "b", 0, 0.6)]
    runs = [{"command": "rl-infonce probe"}]
    content = {"settings": SETTINGS, "encoders": twin, "runs": runs, "cells": cells}
    text = scores_table(content)
    assert "| pong | a.zip (a) | 0.300" in text
    assert "| pong | a.zip (b) | 0.600" in text
    assert "| variable | a.zip (a) | a.zip (b) |" in text
    assert "| player_x | 0.500 | 0.800 |" in text


def test_the_heading_says_how_measured_rows_differ_from_published_ones() -> None:
    text = "\n".join(table(published("pong", "a", 0, 0.3)))
    assert "frames of a random agent, one run. Measured rows always differ in the split" in text
    assert "as asked" not in text
    text = "\n".join(table(published("pong", "a", 0, 0.3), view="agent", labels="corrected"))
    assert "Here they differ, as asked, in view=agent, labels=corrected." in text
    text = "\n".join(table(published("pong", "a", 0, 0.3), min_episode_length=65))  # published
    assert "as asked" not in text
    text = "\n".join(table(published("pong", "a", 0, 0.3), min_episode_length=64))
    assert "as asked, in min_episode_length=64." in text


def test_frames_of_an_agent_stand_beside_the_papers_own_agents() -> None:
    entries = [published(game, "a", 0, 0.3) for game in labelled_games("anand2019")]
    lines = table(*entries, policy="model sha256=0 sampled epsilon=0.2")
    assert "| pong | *published, random-cnn* | 0.10 | - | - | - | - | - |" in lines
    assert "| pong | *published, pretrained-rl-agent* | 0.09 | - | - | - | - | - |" in lines
    (over_games,) = (line for line in lines if line.startswith("| mean of 22 | *published, st-dim"))
    assert over_games.endswith("| 0.54 | 0.41 | 0.61 | 0.80 | 0.67 |")
    text = "\n".join(lines)
    assert "frames of their PPO agent, one run." in text
    assert "as asked" not in text


def test_several_games_are_averaged_beside_the_papers_same_games() -> None:
    given = [("pong", "a", 0, 0.2), ("pong", "a", 1, 0.4), ("breakout", "a", 0, 0.5)]
    lines = table(*(published(*each) for each in (*given, ("pong", "r", 0, 0.1))))
    assert "| mean of 2 | a.zip | 0.400; not all seeds | 0.500 | - | - | - | - |" in lines
    assert not any(line.startswith("| mean of 2 | random") for line in lines)  # one game lacks it
    assert f"| mean of 2 | *published, st-dim* | {(0.81 + 0.88) / 2:.2f} | - | - | - | - | - |" in (
        lines
    )


@pytest.mark.parametrize(("version", "shown"), [("anand2019", True), ("corrected", False)])
def test_the_papers_categories_stand_beside_all_of_its_games(version: str, shown: bool) -> None:
    games = labelled_games(version)
    lines = table(*(published(game, "a", 0, 0.3) for game in games))
    row = (
        f"| mean of {len(games)} | *published, st-dim* | 0.68 | 0.58 | 0.51 | 0.69 | 0.87 | 0.75 |"
    )
    assert (row in lines) == shown


def test_failures_are_listed_and_scored_nowhere() -> None:
    failed = entry("pong", "r", 2, 0.9, status="failed", error="ValueError: no")
    lines = table(entry("pong", "a", 0, 0.3), failed)
    assert "- pong, random, seed 2, converged: ValueError: no" in lines
    assert not any("| random |" in line for line in lines)
