"""The line of this package's code that computes a step, found in the running program."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vitrail

PACKAGE = Path(vitrail.__file__).resolve().parent


@dataclass(frozen=True)
class SourceLine:
    """`file` is below the package, or the name alone of a file that is not in it."""

    file: str
    line: int
    text: str


def source_line(function: Callable[..., Any] | None, pattern: str = "") -> SourceLine | None:
    """The first line of a function's body that matches a pattern, or the first line of all; none
    where its source is not to be had.

    >>> source_line(source_line, "pattern").text
    'def source_line(function: Callable[..., Any] | None, pattern: str = "") -> SourceLine | None:'
    >>> source_line(len)
    """
    try:
        function = inspect.unwrap(function) if function is not None else None
        lines, start = inspect.getsourcelines(function)  # type: ignore[arg-type]
        path = Path(inspect.getsourcefile(function) or "")  # type: ignore[arg-type]
    except (TypeError, OSError):
        return None
    found = next((i for i, line in enumerate(lines) if re.search(pattern, line)), 0)
    inside = path.resolve().is_relative_to(PACKAGE)
    file = path.resolve().relative_to(PACKAGE).as_posix() if inside else path.name
    return SourceLine(file, start + found, lines[found].strip())


def method_line(owner: object, name: str, pattern: str = "") -> SourceLine | None:
    """The same for a method of an object's class, where it has one."""
    return source_line(getattr(type(owner), name, None), pattern)
