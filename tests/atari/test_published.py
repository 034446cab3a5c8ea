"""The published scores are the paper's: its means over games come out of its rows."""

import pytest

from rl_infonce.atari import labelled_games, load_labels
from rl_infonce.atari.labels import CATEGORIES
from rl_infonce.atari.published import published_categories, published_scores

# The mean rows of tables 2 and 6, which the file leaves out.
MEANS = {
    ("random_agent", "maj-clf"): 0.14,
    ("random_agent", "random-cnn"): 0.44,
    ("random_agent", "cpc"): 0.61,
    ("random_agent", "st-dim"): 0.68,
    ("random_agent", "supervised"): 0.82,
    ("ppo_agent", "random-cnn"): 0.38,
    ("ppo_agent", "st-dim"): 0.62,
}


@pytest.mark.parametrize(("frames_of", "method"), MEANS)
def test_the_rows_average_to_the_papers_means(frames_of: str, method: str) -> None:
    games = labelled_games("anand2019")
    scores = [published_scores(game, frames_of)[method] for game in games]
    assert len(scores) == 22
    assert sum(scores) / 22 == pytest.approx(MEANS[frames_of, method], abs=0.0075)


def test_categories_average_over_games_as_the_table_says() -> None:
    assert list(published_categories()) == sorted(published_categories())
    assert set(published_categories()) == set(CATEGORIES)
    assert published_categories()["small_object_localization"]["st-dim"] == 0.51
    assert published_categories("ppo_agent")["misc"]["random-cnn"] == 0.53


def test_a_game_the_paper_lacks_has_no_scores() -> None:
    assert "skiing" in labelled_games()
    assert load_labels("skiing")
    assert published_scores("skiing") == {}
    assert published_scores("MsPacmanNoFrameskip-v4")["st-dim"] == 0.72
    with pytest.raises(ValueError, match=r"`frames_of`.*Did you mean 'random_agent'"):
        published_scores("pong", "random_agnt")
