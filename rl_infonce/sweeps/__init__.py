"""Many trainings from one grid: which there are, where they stand, and what runs them."""
