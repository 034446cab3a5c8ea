"""Temporal InfoNCE for stock Stable-Baselines3 agents."""

__version__ = "0.1.0"
