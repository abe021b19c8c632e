"""Functions that return a Recipe; their docstrings say for what and from where."""
