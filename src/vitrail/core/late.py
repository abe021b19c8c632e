"""Functions that an earlier room calls and a later one owns, by their addresses.

`Model.preprocess` has to read images. That is the work of `data`, which `models` does not import:
a model stays free of decoders and files. So the model asks here, when it is called, and what is
asked for is imported then. The exceptions to the table of rooms are this table; a test holds every
address to a function that exists.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

LATE = {"preprocess": "vitrail.data.reader:preprocess"}


def call_late(name: str, *arguments: Any, **options: Any) -> Any:
    """Call the function of a later room."""
    return find_late(name)(*arguments, **options)


def find_late(name: str) -> Callable[..., Any]:
    """
    >>> find_late("preprocess").__name__
    'preprocess'
    """
    module, _, function = LATE[name].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
