"""Write files that survive a crash, and read files that anyone may have written."""
