"""`vitrail reproduce`: claims of the papers, put to the test on this machine."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.compare import parse_seeds
from vitrail.cli.options import (
    Device,
    DryRunOption,
    Out,
    OutputOptions,
    Threads,
    arguments_of,
)
from vitrail.cli.output import plural, say, say_json, say_table
from vitrail.cli.progress import progress

if TYPE_CHECKING:
    from vitrail.tasks.claims.catalogue import ClaimList
    from vitrail.tasks.claims.reproduction import Reproduction
    from vitrail.tasks.dry_run import DryRun


@dataclass(frozen=True)
class Reproduce(DryRunOption, OutputOptions):
    """Which claim to test, and how large the runs are."""

    claim: str | None = None
    """Name of the claim. [default: list all claims]"""
    _: KW_ONLY
    data: str | None = None
    """Images with labels, as for vitrail train; for public weights the validation images of
    ImageNet-1k, a folder for each class. [default: that of the claim]"""
    weights: str | None = None
    """File or directory of the public weights. [default: downloaded from the hub]"""
    seeds: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    """How many seeds, or a list of them: 3, or 7,8,9. [default: 3]"""
    scale: Literal["quick", "full"] = "quick"
    """Size of models and length of runs: quick takes minutes, full hours."""
    device: Device = "auto"
    threads: Threads = None
    out: Out = None
    """Directory for the runs, report.html and result.json; the same command resumes it.
    [default: runs/reproduce-CLAIM]"""


def reproduce(options: Reproduce) -> None:
    """Reproduce a claim of a paper: train what it compares, measure, and judge by intervals whether
    it is shown, not shown at this scale, or contradicted. Without a claim, list them.

    Examples:
      vitrail reproduce
      vitrail reproduce positions --out runs/positions
      vitrail reproduce imagenet-swin-t --data imagenet-val
    """
    from vitrail.tasks.claims.catalogue import ClaimList
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.reproduce import reproduce as run

    with progress() as on_progress:
        parsed: dict[str, Any] = {"seeds": parse_seeds(options.seeds), "on_progress": on_progress}
        found = run(options.claim, **arguments_of(options, run, **parsed))
    if options.json:
        say_json(found.facts())
    elif isinstance(found, ClaimList):
        print_claims(found)
    elif isinstance(found, DryRun):
        print_plan(found)
    else:
        print_reproduction(found)


def print_claims(found: ClaimList) -> None:
    """The name and sentence of every claim, with its source, data and time."""
    for claim in found.claims:
        data = claim.data if claim.data is not None else "ImageNet-1k validation images"
        cost = f"about {claim.minutes[0]} min" if claim.minutes[0] > 1 else "a minute"
        say(claim.name, f"  {claim.sentence}", f"  {claim.citation}")
        say(f"  {', '.join(filter(None, [data, cost]))}", "")
    say("run one: vitrail reproduce NAME --out DIR")


def print_plan(plan: DryRun) -> None:
    """The runs of a claim."""
    say("dry run of vitrail reproduce: nothing was computed or written")
    say(f"{plan.details['claim']}: {plan.details['sentence']}")
    runs = plan.details["runs"]
    if runs:
        rows = [
            [one["run"], one["objective"], f"{one['steps']:,}", "yes" if one["finished"] else "no"]
            for one in runs
        ]
        say_table(["run", "objective", "steps", "finished"], rows, right=2)
    left = len(runs) - plan.details["finished"]
    say(f"{plural(left, 'run')} left; all of it takes about {plan.details['minutes']} minutes")
    say(f"out: {plan.out}")


def print_reproduction(found: Reproduction) -> None:
    """The verdict, the findings, and where the page is."""
    facts = found.facts()
    from vitrail.pages.reproduction import finding_text

    say(found.claim.sentence, str(found.claim.citation), "")
    say(*(f"- {finding_text(one)}" for one in facts["findings"]))
    say("", facts["in_words"], "", f"report: {facts['report']}")
