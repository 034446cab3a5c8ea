"""The probe scores that Anand et al. 2019 published, for comparison."""

from __future__ import annotations

from functools import cache
from typing import Any

from rl_infonce.atari.games import resolve_game
from rl_infonce.checks import check_choice
from rl_infonce.files.json_text import packaged_json

PUBLISHED_SOURCE = 'Anand et al. 2019, "Unsupervised State Representation Learning in Atari"'


def published_scores(game: str, frames_of: str = "random_agent") -> dict[str, float]:
    """Return the weighted F1 on a game by method, in one run, the mean over the game's categories.

    The frames are those of a "random_agent" (tables 2 and 8) or a "ppo_agent" (tables 6 and 10). A
    game that the paper does not have has no scores.

    Example:
        >>> published_scores("pong")["random-cnn"]
        0.17
    """
    name = resolve_game(game)
    check_choice("frames_of", frames_of, _file()["games"])
    return dict(_file()["games"][frames_of].get(name, {}))


def published_categories(frames_of: str = "random_agent") -> dict[str, dict[str, float]]:
    """Return the weighted F1 by category and method, the mean over the paper's games that have it.

    The frames are those of a "random_agent" (tables 3 and 9) or a "ppo_agent" (table 7).
    """
    check_choice("frames_of", frames_of, _file()["categories"])
    return {category: dict(f1) for category, f1 in _file()["categories"][frames_of].items()}


@cache
def _file() -> dict[str, Any]:
    return dict(packaged_json("rl_infonce.atari", "published_scores.json"))
