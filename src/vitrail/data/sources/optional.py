"""Modules that only some sources need: imported when they are, or one sentence how to get them."""

from importlib import import_module
from typing import Any

from vitrail.core.errors import UserError


def require(module: str, *, extra: str, reading: str) -> Any:
    """The module, or a `UserError` that says which extra brings it.

    >>> require("json", extra="hub", reading="a manifest").loads("3")
    3
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise UserError(
            f"{reading} is read with {package}, which is not installed: "
            f"pip install 'vitrail[{extra}]'"
        ) from None
