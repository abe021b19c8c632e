"""Long work as a person sees it: its progress while it lasts, and how a run ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.output import say, say_above, say_json
from vitrail.cli.progress import escape_markup

if TYPE_CHECKING:
    from vitrail.training.loop import Outcome
    from vitrail.training.progress import Progress

MOST_BROKEN = 10  # lines: the report has all
MOST_IGNORED = 5  # names
INTERRUPTED = "interrupted at step"
# What a speed is told from, and the seconds from which the time left is worth a line.
ENOUGH_STEPS, ENOUGH_SECONDS, WORTH_TELLING = 20, 5.0, 60.0


class Display:
    """A bar with the loss, the speed, the time left and the last scores; without a terminal a line
    for each evaluation."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        columns = (BarColumn(), MofNCompleteColumn(), Left(), TextColumn("{task.description}"))
        self.console = Console()
        self.lines = not quiet and not self.console.is_terminal
        self.bar = Progress(*columns, console=self.console, disable=quiet or self.lines)
        self.quiet = quiet
        self.scores = ""
        self.warning: str | None = None
        self.pace = Pace()

    def __enter__(self) -> Display:
        self.bar.start()
        self.task = self.bar.add_task("", total=None, visible=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, *lines: str) -> None:
        for line in () if self.quiet else lines:
            say_above(self.console, line)

    def show(self, now: Progress) -> None:
        if now.warning and now.warning != self.warning:
            self.say(f"step {now.step}: {now.warning}")
        self.warning = now.warning
        if now.scores is not None:
            self.scores = ", ".join(f"{name} {value:.4f}" for name, value in now.scores.items())
        text = f"loss {now.loss:.4f}  {now.images_per_second:,.0f} images/s  {self.scores}"
        if self.lines and now.scores is not None:
            self.say(f"step {now.step:,} of {now.total:,}  {text}")
        if (estimate := self.pace.estimate(now.step, now.total)) is not None:
            self.say(estimate)
        self.bar.update(
            self.task,
            completed=now.step,
            total=now.total,
            description=escape_markup(text),
            visible=True,
        )

    def watch(self, what: str) -> Callable[[int, int], None]:
        """Something to call with (done, total) of another piece of work."""
        tasks = list[int]()

        def update(done: int, total: int) -> None:
            if not tasks:
                tasks.append(self.bar.add_task(escape_markup(what), total=total))
            self.bar.update(tasks[0], completed=done)  # type: ignore[arg-type]

        return update


class Pace:
    """How long a run will take, told once, as soon as its first steps show it."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        self.told = False

    def estimate(self, step: int, total: int) -> str | None:
        """After some steps or seconds, where more than a minute is left."""
        from vitrail.training.estimate import in_words

        now = time.perf_counter()
        if self.first is None:
            self.first = step, now  # the first step also pays for what happens once
        steps, seconds = step - self.first[0], now - self.first[1]
        if self.told or not steps or (steps < ENOUGH_STEPS and seconds < ENOUGH_SECONDS):
            return None
        self.told = True
        left = seconds / steps * (total - step)
        if left < WORTH_TELLING:
            return None
        end = time.strftime("%H:%M", time.localtime(time.time() + left))
        speed = f"{steps / seconds:.3g} steps/s"
        return f"about {in_words(left)} at {speed}, until {end}; evaluations come on top"


def ignored_files(ignored: Sequence[str]) -> list[str]:
    """One line about files that are no images, or none."""
    if not ignored:
        return []
    named = ", ".join(ignored[:MOST_IGNORED])
    more = f" and {len(ignored) - MOST_IGNORED:,} more" if len(ignored) > MOST_IGNORED else ""
    files = (
        "1 file is not an image and is"
        if len(ignored) == 1
        else (f"{len(ignored):,} files are not images and are")
    )
    return [f"{files} ignored: {named}{more}"]


def interrupted_at(outcome: Outcome) -> str | None:
    """What the report of a run that was interrupted begins with."""
    if not outcome.stopped:
        return None
    return f"{INTERRUPTED} {outcome.step:,} of {outcome.total:,}; --resume goes on from there"


@dataclass(frozen=True)
class Written:
    """A report that was written, what in it a person must not miss, and the scores of the test
    part where the data has one."""

    notes: Sequence[str] = ()
    test: Mapping[str, Any] | None = None


def facts_of(out: Path, outcome: Outcome, written: Written) -> dict[str, Any]:
    """How the run ended, in plain values."""
    memory = outcome.run_state
    report = out / "report.html"
    return {
        "out": str(out),
        "step": outcome.step,
        "total": outcome.total,
        "decides": memory.decides,
        "best": memory.best,
        "best_step": memory.best_step,
        "broken": memory.broken,
        "stopped": outcome.stopped,
        "report": str(report) if report.exists() else None,
        "notes": list(written.notes),
        "test": written.test,
    }


def tell(facts: Mapping[str, Any], *, json: bool) -> None:
    """Print how the run ended."""
    if json:
        say_json(facts)
        return
    if facts["best"] is not None:
        best = f"{facts['decides']} {facts['best']:.4f}"
        say(f"best {best} at step {facts['best_step']} of {facts['total']}: {facts['out']}/best")
    for line in test_lines(facts["test"]):
        say(line)
    broken = sorted(facts["broken"].items())
    for name, reason in broken[:MOST_BROKEN]:
        say(f"left out {name}: {reason}")
    if len(broken) > MOST_BROKEN:
        say(f"left out {len(broken) - MOST_BROKEN} more: the report names all {len(broken)}")
    for note in facts["notes"]:
        say(f"note: {note}")
    if facts["report"] is not None:
        say(f"report: {facts['report']}")


def test_lines(test: Mapping[str, Any] | None) -> list[str]:
    """The test part, judged once by the chosen weights."""
    if test is None:
        return []
    low, high = test["interval"]
    return [
        f"test {test['name']} {test['value']:.4f} ({low:.4f} to {high:.4f} with 95% confidence) "
        f"on {test['images']:,} images"
    ]
