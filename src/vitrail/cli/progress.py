"""Progress bars on standard error for long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from vitrail.cli.output import is_quiet
from vitrail.core.errors import printable

# Called with what is done, how much of it, and of how much if that is known.
OnProgress: TypeAlias = Callable[[str, int, "int | None"], None]


@contextmanager
def progress() -> Iterator[OnProgress]:
    """A bar for each piece of work, if standard error is a terminal and -q was not given."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = is_quiet() or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        tasks: dict[str, Any] = {}

        def on_progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(escape_markup(what), total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield on_progress


def escape_markup(text: str) -> str:
    """Text that a bar shows as it is: rich would read brackets as markup."""
    from rich.markup import escape

    return escape(printable(text))
