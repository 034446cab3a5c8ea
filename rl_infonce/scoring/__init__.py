"""Scores of many encoders on many games: probes that are filled once, a file, and a table."""
