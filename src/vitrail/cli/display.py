"""Long work as a person sees it: its progress while it lasts, and how a run ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.output import say, say_above, say_json
from vitrail.core.errors import printable

if TYPE_CHECKING:
    from vitrail.train.loop import Outcome, Progress

# Called with what is done, how much of it, and of how much if that is known.
Watch = Callable[[str, int, "int | None"], None]

MOST_BROKEN = 10  # lines: the report has all


@contextmanager
def progress() -> Iterator[Watch]:
    """A bar for each piece of work, on the terminal, where there is one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    silent = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=silent) as bar:
        tasks: dict[str, Any] = {}

        def watch(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(plain(what), total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield watch


def plain(text: str) -> str:
    """What a bar shows as it is: rich would take what stands in brackets for colours."""
    from rich.markup import escape

    return escape(printable(text))


class Display:
    """A bar with the loss, the speed, the time left and the last scores."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        columns = (BarColumn(), MofNCompleteColumn(), Left(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, disable=quiet)
        self.quiet = quiet
        self.scores = ""
        self.warning: str | None = None

    def __enter__(self) -> Display:
        self.bar.start()
        self.task = self.bar.add_task("", total=None, visible=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, *lines: str) -> None:
        for line in () if self.quiet else lines:
            say_above(self.bar.console, line)

    def show(self, now: Progress) -> None:
        if now.warning and now.warning != self.warning:
            self.say(f"step {now.step}: {now.warning}")
        self.warning = now.warning
        if now.scores is not None:
            self.scores = ", ".join(f"{name} {value:.4f}" for name, value in now.scores.items())
        text = f"loss {now.loss:.4f}  {now.images_per_second:,.0f} images/s  {self.scores}"
        self.bar.update(
            self.task, completed=now.step, total=now.total, description=plain(text), visible=True
        )

    def watch(self, what: str) -> Callable[[int, int], None]:
        """Something to call with (done, total) of another piece of work."""
        tasks = list[int]()

        def update(done: int, total: int) -> None:
            if not tasks:
                tasks.append(self.bar.add_task(plain(what), total=total))
            self.bar.update(tasks[0], completed=done)  # type: ignore[arg-type]

        return update


def tell(out: Path, outcome: Outcome, *, json: bool) -> None:
    """How the run ended."""
    memory = outcome.memory
    report = out / "report.html"
    facts = {
        "out": str(out),
        "step": outcome.step,
        "total": outcome.total,
        "decides": memory.decides,
        "best": memory.best,
        "best_step": memory.best_step,
        "broken": memory.broken,
        "stopped": outcome.stopped,
        "report": None if outcome.stopped else str(report),
    }
    if json:
        say_json(facts)
        return
    if memory.best is not None:
        best = f"{memory.decides} {memory.best:.4f}"
        say(f"best {best} at step {memory.best_step} of {outcome.total}: {out}/best")
    broken = sorted(memory.broken.items())
    for name, reason in broken[:MOST_BROKEN]:
        say(f"left out {name}: {reason}")
    if len(broken) > MOST_BROKEN:
        say(f"left out {len(broken) - MOST_BROKEN} more: the report names all {len(broken)}")
    if not outcome.stopped:
        say(f"report: {report}")
