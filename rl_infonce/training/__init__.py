"""One training of `rl-infonce train` in its run directory."""
