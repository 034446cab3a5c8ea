"""What a human and a random agent score, to put the returns of games on one scale."""

from __future__ import annotations

from functools import cache

from rl_infonce.files.json_text import packaged_json


@cache
def human_scores() -> dict[str, tuple[float, float]]:
    """Return game -> (score of a random agent, score of a human), of 57 games.

    Table 2 of Wang et al. 2016 ("Dueling Network Architectures"), with up to 30 no-ops at the
    start. Later tables, such as that of Agent57, give the random agent 0.0 in Video Pinball, where
    this one has 16256.9: normalised scores of that game are only comparable within one table.
    """
    games = packaged_json("rl_infonce.atari", "human_scores.json")["games"]
    return {game: (scores["random"], scores["human"]) for game, scores in games.items()}
