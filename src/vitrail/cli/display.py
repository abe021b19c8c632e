"""The display of a run: progress on standard error, and how it ended."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from vitrail.cli.endings import RequeueError
from vitrail.cli.output import is_quiet, say, say_above, say_broken, say_json
from vitrail.cli.progress import escape_markup

if TYPE_CHECKING:
    from vitrail.cli.run_options import RunOptions
    from vitrail.tasks.folds import CrossValidation
    from vitrail.tasks.run import Run
    from vitrail.training.progress import Progress

# What a speed is taken from, and the seconds from which the time left is worth a line.
ENOUGH_STEPS, ENOUGH_SECONDS, WORTH_A_LINE = 20, 5.0, 60.0


def show_run(verb: str, options: RunOptions, work: Callable[..., Run | CrossValidation]) -> None:
    """Show the progress of a run, print its record, and exit by the signal if one stopped it."""
    from vitrail.tasks.folds import CrossValidation

    with Display(quiet=options.json or is_quiet()) as display:
        run = work(on_step=display.show_step, on_progress=display.show_progress)
    if options.json:
        say_json(run.facts())
    elif isinstance(run, CrossValidation):
        print_folds(run)
    elif run.plan:
        print_plan(run)
    else:
        print_run(run)
    if isinstance(run, CrossValidation):
        if run.stopped:
            stop_folds(verb, options, run)
        return
    if run.stopped:
        resume = resume_command(options, verb, run.recipe.data, "--out", run.out)
        if run.needs_requeue:
            raise RequeueError(
                f"stopped by {run.stopped_by}; checkpoint saved at step {run.step}. Resume with: "
                f"{resume}"
            )
        raise KeyboardInterrupt(
            f"Interrupted; checkpoint saved at step {run.step}. Resume with: {resume}"
        )


def resume_command(options: RunOptions, *words: object) -> str:
    """What goes on with a run as it was started, with what its recipe does not say; only those who
    started many processes know how they did.

    >>> from vitrail.cli.train import Train
    >>> options = Train("my photos", processes=2, threads=1)
    >>> resume_command(options, "train", options.data, "--out", "runs/a")
    "vitrail train 'my photos' --out runs/a --processes 2 --threads 1 --resume"
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return "the same command with --resume"
    command = ["vitrail", *map(str, words)]
    for name, default in (("processes", 1), ("threads", None), ("device", "auto")):
        if (value := getattr(options, name)) != default:
            command += [f"--{name}", str(value)]
    return shlex.join([*command, "--resume"])


def stop_folds(verb: str, options: RunOptions, folds: CrossValidation) -> NoReturn:
    """Exit as the run of the last fold would have."""
    last, number, out = folds.runs[-1], len(folds.runs), folds.out
    words = (verb, last.recipe.data, "--folds", folds.folds, "--out", out)
    resume = resume_command(options, *words)
    if last.needs_requeue:
        raise RequeueError(
            f"stopped by {last.stopped_by} in fold {number} of {folds.folds}; checkpoint saved. "
            f"Resume with: {resume}"
        )
    raise KeyboardInterrupt(
        f"Interrupted in fold {number} of {folds.folds}; checkpoint saved. Resume with: {resume}"
    )


class Display:
    """A bar with the loss, the speed, the time left and the last scores; without a terminal a line
    for each evaluation."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        columns = (BarColumn(), MofNCompleteColumn(), Left(), TextColumn("{task.description}"))
        self.console = Console(stderr=True)
        self.lines = not quiet and not self.console.is_terminal
        self.bar = Progress(*columns, console=self.console, disable=quiet or self.lines)
        self.quiet = quiet
        self.scores = ""
        self.warning: str | None = None
        self.pace = Pace()
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def print_line(self, line: str) -> None:
        if not self.quiet:
            say_above(self.console, line)

    def show_step(self, now: Progress) -> None:
        for message in now.messages:
            self.print_line(f"- {message}")
        if not now.step:
            return
        if now.warning and now.warning != self.warning:
            self.print_line(f"step {now.step}: {now.warning}")
        self.warning = now.warning
        if now.scores is not None:
            self.scores = ", ".join(f"{name} {value:.4f}" for name, value in now.scores.items())
        text = f"loss {now.loss:.4f}  {now.images_per_second:,.0f} images/s  {self.scores}"
        if self.lines and now.scores is not None:
            self.print_line(f"step {now.step:,} of {now.total:,}  {text}")
        if (estimate := self.pace.estimate(now.step, now.total)) is not None:
            self.print_line(estimate)
        self.update("training", now.step, now.total, escape_markup(text))

    def show_progress(self, what: str, done: int, total: int | None) -> None:
        """Of other work than training."""
        if what != "training":
            self.update(what, done, total, escape_markup(what))

    def update(self, what: str, done: int, total: int | None, text: str) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.bar.add_task(text, total=total)
        self.bar.update(self.tasks[what], completed=done, total=total, description=text)


class Pace:
    """An estimate of how long a run will take, printed once, after its first steps."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        self.is_printed = False

    def estimate(self, step: int, total: int) -> str | None:
        """After some steps or seconds, where more than a minute is left."""
        from vitrail.training.estimate import in_words

        now = time.perf_counter()
        if self.first is None:
            self.first = step, now  # the first step also pays for what happens once
        steps, seconds = step - self.first[0], now - self.first[1]
        if self.is_printed or not steps or (steps < ENOUGH_STEPS and seconds < ENOUGH_SECONDS):
            return None
        self.is_printed = True
        left = seconds / steps * (total - step)
        if left < WORTH_A_LINE:
            return None
        end = time.strftime("%H:%M", time.localtime(time.time() + left))
        speed = f"{steps / seconds:.3g} steps/s"
        return f"about {in_words(left)} at {speed}, until {end}; evaluations come on top"


def print_plan(run: Run) -> None:
    """The recipe as YAML under a few lines of comment, so that it can be saved and used."""
    from vitrail.training.recipe_file import to_yaml

    say(*(f"# {line}" for line in run.plan))
    say(*to_yaml(run.recipe).splitlines())


def print_run(run: Run) -> None:
    """How the run ended."""
    if run.was_finished:
        say(f"{run.out}: this run is finished, at step {run.step} of {run.total}")
    if run.score is not None:
        best = f"{run.metric} {run.score:.4f}"
        say(f"best {best} at step {run.best_step} of {run.total}: {run.out}/best")
    if run.test is not None:
        say(test_line(run.test))
    say_broken(run.broken)
    say(*(f"note: {note}" for note in run.notes))
    if run.report is not None:
        say(f"report: {run.report}")


def print_folds(folds: CrossValidation) -> None:
    """The score of each fold, and of all; of a dry run the plan of the first."""
    if folds.runs[0].plan:
        print_plan(folds.runs[0])
        return
    for number, run in enumerate(folds.runs, start=1):
        say(f"fold {number}: {run.headline}")
    say(folds.headline)
    if folds.report is not None:
        say(f"report: {folds.report}")


def test_line(test: Mapping[str, Any]) -> str:
    """The test split, evaluated once with the chosen weights."""
    low, high = test["interval"]
    return (
        f"test {test['name']} {test['value']:.4f} ({low:.4f} to {high:.4f} with 95% confidence) "
        f"on {test['images']:,} images"
    )
