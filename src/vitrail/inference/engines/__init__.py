"""Engines: ways to compute a model's outputs, each in its own file, and the choice between them."""
