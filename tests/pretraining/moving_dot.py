"""A game whose state is known: a dot walks over flickering noise."""

from __future__ import annotations

import numpy as np

from rl_infonce.probing import LabelledObservations

SIDE, DOT, N_CELLS = 84, 6, 12
_CELL = SIDE // N_CELLS


def moving_dot(
    n_episodes: int, episode_length: int, rng: np.random.Generator
) -> LabelledObservations:
    """Return frames [K, 1, 84, 84] of walks, labelled with the cell of the dot, x and y in 0..11.

    Every frame has noise of its own, in squares of the dot's size: it says which frame it is, and
    nothing about its neighbours.
    """
    n_frames = n_episodes * episode_length
    noise = rng.integers(0, 140, (n_frames, 1, SIDE // DOT, SIDE // DOT), dtype=np.uint8)
    images = noise.repeat(DOT, axis=2).repeat(DOT, axis=3)
    labels = {name: np.empty(n_frames, np.int64) for name in ("x", "y")}
    for episode in range(n_episodes):
        position, velocity = rng.integers(0, N_CELLS, 2), rng.choice([-1, 1], 2)
        for row in range(episode * episode_length, (episode + 1) * episode_length):
            y, x = position * _CELL
            images[row, 0, y : y + DOT, x : x + DOT] = 255
            labels["y"][row], labels["x"][row] = position
            turns = (position + velocity < 0) | (position + velocity >= N_CELLS)
            velocity = np.where(turns, -velocity, velocity)
            position = position + velocity
            if rng.random() < 0.1:
                velocity = rng.choice([-1, 1], 2)
                turns = (position + velocity < 0) | (position + velocity >= N_CELLS)
                velocity = np.where(turns, -velocity, velocity)
    return LabelledObservations(
        images,
        labels,
        np.repeat(np.arange(n_episodes), episode_length),
        {"x": ("dot",), "y": ("dot",)},
    )
