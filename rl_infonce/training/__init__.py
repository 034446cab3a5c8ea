"""Trainings on Atari games: an agent in its run directory, or an encoder on frames alone."""
