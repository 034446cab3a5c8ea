"""A run is a directory that says at every moment what it is."""
