"""Functions that an earlier room calls and a later one owns, by their addresses.

`Model.preprocess` has to read images. That is the work of `data`, which `models` does not import:
a model stays free of decoders and files. So the model looks the function up here when it is called,
and it is imported then. This table holds the exceptions to the table of rooms; a test checks that
every address is that of a function.
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
