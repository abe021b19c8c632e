"""Measuring how fast models run here: each contender in its own process, all in turns."""
