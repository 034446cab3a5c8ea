"""Trainings of agents in their run directories, and of encoders on frames alone."""
