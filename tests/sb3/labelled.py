"""Labelled images of the stamped environments: what a probe can be asked about them."""

import numpy as np

from rl_infonce.probing import LabelledObservations
from tests.sb3.fakes import IMAGE_SHAPE, encode


def stamped_observations(n_episodes: int = 20, length: int = 14) -> LabelledObservations:
    """Return images whose disc tells time and episode, with three variables in two categories."""
    stamps = [(episode, time) for episode in range(n_episodes) for time in range(length)]
    episodes, times = np.array(stamps).T
    images = np.stack([encode(9, episode, time) for episode, time in stamps])
    assert images.shape[1:] == IMAGE_SHAPE
    return LabelledObservations(
        observations=images,
        labels={"disc_y": times // 4, "disc_x": episodes // 5, "constant": np.zeros_like(times)},
        episode_ids=episodes.astype(np.int64),
        categories={"disc_y": ("place",), "disc_x": ("place", "slow"), "constant": ("slow",)},
        provenance={"game": "stamps"},
    )
