"""Scores of many encoders on many games: cells that are filled once, a file, and a table."""
