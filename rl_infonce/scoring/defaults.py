"""What `rl-infonce probe` offers, and its defaults."""

from __future__ import annotations

PROTOCOLS = ("converged", "anand2019")
OTHER_PROTOCOLS = ("knn", "ridge")
POLICIES = ("random", "random-without-noop")
LABELS = "corrected"
SEEDS = (0,)
