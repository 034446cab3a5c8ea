"""Files that survive a crash when they are written, and may be from anyone when they are read."""
