"""Checkpoints: our own format, every foreign one, and resizing between them."""
