"""Where images come from: every kind of data set behind one protocol, opened by one function.

The function is found when it is first used: reading single files needs no data set, and no torch.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["open_data"]

if TYPE_CHECKING:
    from vitrail.data.sources.opening import open_data
else:

    def __getattr__(name: str) -> Any:
        if name == "open_data":
            from vitrail.data.sources.opening import open_data

            return open_data
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
