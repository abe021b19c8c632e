"""Bricks that more than one family is built from."""
