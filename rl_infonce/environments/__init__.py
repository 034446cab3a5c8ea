"""Environments by their Gymnasium id, with errors that say what is missing."""
