"""Everything that a command prints, in one place, with control characters escaped.

Names of files and directories, labels and notes come from anywhere. No other module of this room
prints (tests/architecture/test_output.py), so what they hold is escaped here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from vitrail.cli.language import translate
from vitrail.core.errors import printable
from vitrail.core.json_text import to_json

if TYPE_CHECKING:
    from rich.console import Console

    from vitrail.core.broken import BrokenImage
    from vitrail.tasks.dry_run import DryRun

MAX_BROKEN = 10  # lines: --json has all

Verbosity: TypeAlias = Literal["quiet", "normal", "verbose"]
_verbosity: ContextVar[Verbosity] = ContextVar("verbosity", default="normal")


@contextmanager
def verbosity(level: Verbosity) -> Iterator[None]:
    """How much the command inside prints."""
    token = _verbosity.set(level)
    try:
        yield
    finally:
        _verbosity.reset(token)


def is_quiet() -> bool:
    return _verbosity.get() == "quiet"


def is_verbose() -> bool:
    return _verbosity.get() == "verbose"


def say(*lines: str) -> None:
    """Print each line on standard output, at once."""
    for line in lines:
        print(printable(line), flush=True)


def warn(line: str) -> None:
    """Print a line on standard error."""
    print(printable(line), file=sys.stderr, flush=True)


def warn_lines(text: str) -> None:
    """Print each line of a text on standard error."""
    for line in text.splitlines():
        warn(line)


def note(line: str) -> None:
    """Print a remark on standard error, unless -q was given."""
    if not is_quiet():
        warn(translate(line))


def say_json(facts: Any) -> None:
    """Print a JSON value on a line of standard output."""
    print(to_json(facts), flush=True)


def say_above(console: Console, line: str) -> None:
    """Print a line above the bars of a console."""
    console.print(printable(line), markup=False, highlight=False, emoji=False, soft_wrap=True)


def say_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: int) -> None:
    """Print rows in columns, the last `right` of them flush right."""
    cells = [[printable(cell) for cell in row] for row in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = len(titles) - right
    for row in cells:
        placed = zip(row, widths, range(len(row)), strict=True)
        line = "  ".join(c.ljust(w) if n < left else c.rjust(w) for c, w, n in placed)
        say(line.rstrip())


def say_broken(broken: Sequence[BrokenImage]) -> None:
    """Print the first images that could not be read, and why."""
    say(*(f"left out {one.image}: {one.reason}" for one in broken[:MAX_BROKEN]))
    if len(broken) > MAX_BROKEN:
        say(f"left out {len(broken) - MAX_BROKEN} more: --json names all {len(broken)}")


def say_report(out: str | None) -> None:
    """Print where the page of a verb is, if it was written."""
    if out is not None:
        say(f"report: {Path(out) / 'report.html'}")


def say_dry_run(plan: DryRun) -> None:
    """Print what a verb would do."""
    say(f"dry run of vitrail {plan.verb}: nothing was computed or written")
    written = {} if plan.out is None else {"out": plan.out}
    for name, value in {**plan.details, **written}.items():
        text = value
        if isinstance(value, dict):
            text = ", ".join(f"{count:,} {kind}" for kind, count in value.items())
        elif isinstance(value, list | tuple):
            text = ", ".join(map(str, value)) or "none"
        say(f"{name.replace('_', ' '):12}{text}")


def plural(number: int, one: str, many: str | None = None) -> str:
    """A number and its noun.

    >>> plural(1, "class", "classes"), plural(1200, "image")
    ('1 class', '1,200 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
