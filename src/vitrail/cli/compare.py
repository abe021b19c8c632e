"""`vitrail compare`: models side by side, at shares of the labels, with paired tests."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.options import (
    COMPUTING,
    Device,
    DryRunOption,
    Out,
    OutputOptions,
    Threads,
    arguments_of,
    parse_changes,
    parse_counts,
    parse_list,
    parse_size,
)
from vitrail.cli.output import note, plural, say, say_json, say_table
from vitrail.cli.progress import progress
from vitrail.cli.run_options import RECIPE
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.tasks.compare_runs import CellResult
    from vitrail.tasks.comparison import Comparison
    from vitrail.tasks.dry_run import DryRun

Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]


@dataclass(frozen=True)
class Compare(DryRunOption, OutputOptions):
    """What to compare, and how each run is trained."""

    data: str
    """Images with labels, as for vitrail train; or a plan.yaml that names data and models."""
    _: KW_ONLY
    models: Words = ()
    """Architectures (see vitrail models), separated by spaces: vit_s_16 resnet18. Fields of the
    config come after a colon: vit_s_16:depth=6,dim=192."""
    shares: Words = ()
    """Shares of the labels: 0.01 0.1 1. [default: 1]"""
    seeds: Words = ()
    """How many seeds, or a list of them: 3, or 7,8,9. [default: 3]"""
    image_sizes: Words = ()
    """Image sizes: 224 160, or 192x672. [default: that of each model]"""
    recipe: Annotated[str | None, Parameter(group=RECIPE)] = None
    """Recipe of every run, by name or as recipe.yaml. [default: small]"""
    epochs: Annotated[float | None, Parameter(group=RECIPE)] = None
    """Length of every run in epochs of its own training images."""
    steps: Annotated[int | None, Parameter(group=RECIPE)] = None
    """Length of every run in steps."""
    batch_size: Annotated[int | None, Parameter(group=RECIPE)] = None
    """Images per step."""
    lr: Annotated[float | None, Parameter(group=RECIPE)] = None
    """Peak learning rate."""
    val_share: Annotated[float | None, Parameter(group=RECIPE)] = None
    """Share of the training images set aside if the data has no validation split."""
    set: Annotated[tuple[str, ...], Parameter(group=RECIPE)] = ()
    """Set another field of every recipe: --set optimiser.weight_decay=0.1. May be repeated."""
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, Parameter(group=RECIPE)
    ] = None
    """Precision of training."""
    device: Device = "auto"
    threads: Threads = None
    workers: Annotated[int | None, Parameter(group=COMPUTING)] = None
    """Processes that read images, for each run."""
    ray: Annotated[bool, Parameter(group=COMPUTING)] = False
    """Train the runs as tasks of Ray, each on --threads processors (default 1)."""
    address: Annotated[str | None, Parameter(group=COMPUTING)] = None
    """Address of a Ray cluster. [default: a local one]"""
    out: Out = None
    """Directory for the runs, report.html and compare.json; the same command resumes it.
    [default: runs/compare-DATA, or runs/PLAN]"""


def compare(options: Compare) -> None:
    """Compare models: train each at shares of the labels with several seeds, test all on the same
    images, with intervals, paired tests and cost. Finished runs are never computed again.

    Examples:
      vitrail compare photos --models vit_s_16 resnet18 --shares 0.1 1
      vitrail compare plan.yaml --out runs/plan --dry-run
    """
    from vitrail.tasks.compare import compare as run
    from vitrail.tasks.dry_run import DryRun

    parsed: dict[str, Any] = {
        "models": list(options.models) or None,
        "shares": parse_shares(options.shares),
        "seeds": parse_seeds(options.seeds),
        "image_sizes": parse_sizes(options.image_sizes),
        "set": parse_changes(None, options.set) or None,
    }
    with progress() as on_progress:
        parsed |= {"on_progress": on_progress, "on_cell": None if options.json else note_cell}
        found = run(options.data, **arguments_of(options, run, **parsed))
    if options.json:
        say_json(found.facts())
    elif isinstance(found, DryRun):
        print_plan(found)
    else:
        print_comparison(found)
    if not isinstance(found, DryRun) and found.stopped:
        done, left = len(found.cells), plural(len(found.remaining), "run")
        raise KeyboardInterrupt(
            f"Interrupted; {done} finished, {left} left. Resume with the same command and "
            f"--out {found.out}"
        )


def parse_shares(texts: tuple[str, ...]) -> list[float] | None:
    """
    >>> parse_shares(("0.01", "0.1,1"))
    [0.01, 0.1, 1.0]
    """
    if not texts:
        return None
    try:
        return [float(text) for text in parse_list(texts, "--shares", "0.01,0.1,1")]
    except ValueError:
        raise UserError(
            f"--shares must be numbers like 0.01,0.1,1, got {','.join(texts)!r}"
        ) from None


def parse_seeds(texts: tuple[str, ...]) -> int | list[int] | None:
    """One number is how many; several are the seeds.

    >>> parse_seeds(("3",)), parse_seeds(("7,8",))
    (3, [7, 8])
    """
    if not texts:
        return None
    items = parse_list(texts, "--seeds", "3")
    if len(items) == 1:
        return parse_counts(items, "--seeds", "3")[0]
    if not all(item.isascii() and item.isdecimal() for item in items):
        raise UserError(f"--seeds must be whole numbers like 3 or 7,8,9, got {','.join(texts)!r}")
    return [int(item) for item in items]


def parse_sizes(texts: tuple[str, ...]) -> list[tuple[int, int]] | None:
    if not texts:
        return None
    items = parse_list(texts, "--image-sizes", "224,160")
    return [parse_size(item, "--image-sizes") for item in items]


def note_cell(cell: CellResult) -> None:
    """A line for each run that ends."""
    cost = f"{cell.steps:,} steps, {cell.seconds:.0f} s"
    note(f"{cell.name}: accuracy {cell.accuracy:.4f} after {cost}")


def print_plan(plan: DryRun) -> None:
    """The runs that are left with their cost."""
    from vitrail.pages.comparison import big_number, duration

    cells = plan.details["cells"]
    say("dry run of vitrail compare: nothing was computed or written")
    if cells:
        rows = [
            [
                cell["run"],
                f"{cell['labelled']:,}",
                f"{cell['steps']:,}",
                big_number(cell["flops"]),
                duration(cell["seconds"]),
            ]
            for cell in cells
        ]
        say_table(["run", "images", "steps", "FLOPs", "time"], rows, right=4)
    total = duration(plan.details["seconds"])
    done = plan.details["finished"]
    say(f"{plural(len(cells), 'run')} left, {done} finished; about {total} on this machine")
    say(f"out: {plan.out}")


def print_comparison(found: Comparison) -> None:
    """Means over seeds, tests in words, and where the page is."""
    from vitrail.pages.comparison import big_number, duration, range_text, share_text, size_text
    from vitrail.pages.render import percent

    rows = [
        [
            one.model,
            share_text(one.share),
            size_text(one.image_size),
            percent(one.accuracy),
            range_text(one.interval),
            big_number(one.flops),
            duration(one.seconds),
        ]
        for one in found.means
    ]
    if rows:
        titles = ["model", "labels", "size", "accuracy", "95 % interval", "FLOPs", "time"]
        say_table(titles, rows, right=len(titles) - 1)
    if found.tests:
        say("", *(test.sentence for test in found.tests))
    say("", f"report: {found.out / 'report.html'}")
