"""Where images come from: every kind of data set behind one protocol, opened by one function."""

from vitrail.data.sources.opening import open_data

__all__ = ["open_data"]
