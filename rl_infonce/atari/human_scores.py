"""Scores of a human and of a random agent, which put the returns of games on one scale."""

from __future__ import annotations

from functools import cache

from rl_infonce.files.json_text import packaged_json


@cache
def human_scores() -> dict[str, tuple[float, float]]:
    """Return the scores of a random agent and of a human by game, for 57 games.

    They are table 2 of Wang et al. 2016 ("Dueling Network Architectures"), with up to 30 no-ops at
    the start. Later tables, such as that of Agent57, give the random agent 0.0 in Video Pinball,
    where this table has 16256.9: compare normalised scores of that game within one table only.
    """
    games = packaged_json("rl_infonce.atari", "human_scores.json")["games"]
    return {game: (scores["random"], scores["human"]) for game, scores in games.items()}
