"""`vitrail explain`: which parts of an image drive a prediction, and how far to trust that."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.options import (
    OUTPUT,
    ComputeOptions,
    DryRunOption,
    Images,
    ModelOptions,
    Others,
    OutputOptions,
    OverwriteOption,
    ServedSource,
    arguments_of,
    model_sources,
    parse_list,
)
from vitrail.cli.output import is_verbose, say, say_broken, say_dry_run, say_json
from vitrail.cli.progress import progress
from vitrail.core.broken import list_broken
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.tasks.explained_together import ExplainedTogether
    from vitrail.tasks.explanation import Explanation, Explanations


@dataclass(frozen=True)
class Explain(ModelOptions, ComputeOptions, DryRunOption, OverwriteOption, OutputOptions):
    """Which model to look into, over which images, and how."""

    source: ServedSource
    images: Images
    _: KW_ONLY
    others: Others = ()
    method: tuple[str, ...] = ("auto",)
    """attention, rollout, relevance, attribution, gradcam, hirescam, saliency, smoothgrad,
    integrated, occlusion, or all. Separated by commas, or repeated. auto is attribution if only
    attention carries patches to the prediction, else smoothgrad."""
    target: str | None = None
    """Class to explain, by its label or number. [default: the predicted one]"""
    layer: str | None = None
    """Layer for attention, gradcam and hirescam, by name or number from 0. [default: the last]"""
    head: int | None = None
    """Head for attention. [default: the mean of all]"""
    query: str | None = None
    """Query token for attention: a patch as row,column or the number of a token. [default: the
    token(s) the head uses]"""
    fusion: Literal["mean", "max", "min"] | None = None
    """How rollout fuses the heads of a layer. [default: mean]"""
    discard: float | None = None
    """Share of each attention map that rollout discards, the lowest weights: 0.9. [default: 0]"""
    verdict: Annotated[
        bool, Parameter(negative="--no-verdict", show_default=lambda _: "--verdict")
    ] = True
    """Test whether the maps track the model: about 60 forward passes."""
    checks: int = 4
    """Number of images used for the verdict."""
    out: Annotated[str | None, Parameter(group=OUTPUT)] = None
    """Directory for report.html, explain.json, maps.npz and overlays as PNG. [default: explained;
    none with --html]"""
    html: Annotated[str | None, Parameter(group=OUTPUT)] = None
    """File for an offline page of the attention of every layer and head."""


def explain(options: Explain) -> None:
    """Explain predictions: which parts of an image drive them. Tests whether the maps track the
    model.

    Examples:
      vitrail explain runs/pets/best photos/ --method attention,gradcam --target cat
      vitrail explain runs/pets/best cat.jpg --html cat.html
      vitrail explain runs/vit/last cat.jpg --and runs/resnet/last
    """
    from vitrail.data.paths import check_paths
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.explain import explain as run
    from vitrail.tasks.explained_together import ExplainedTogether

    models = model_sources(options)
    check_paths(options.images)
    methods = parse_list(options.method, "--method", "attention,gradcam")
    query = parse_query(options.query)
    with progress() as on_progress:
        out = options.out or (None if options.html else "explained")
        parsed = {"method": methods, "query": query, "out": out, "on_progress": on_progress}
        images = list(options.images)
        found = run(models, images, **arguments_of(options, run, **parsed))
    if options.json:
        say_json(found.facts())
    elif isinstance(found, DryRun):
        say_dry_run(found)
    elif isinstance(found, ExplainedTogether):
        print_together(found)
    else:
        print_explanations(found)


def parse_query(text: str | None) -> int | tuple[int, int] | None:
    """
    >>> parse_query("7,3"), parse_query("0")
    ((7, 3), 0)
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or len(parts) > 2:
        raise UserError(
            f"--query must be row,column like 7,3 or the number of a token, got {text!r}"
        )
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def print_together(found: ExplainedTogether) -> None:
    for each, file in zip(found.images(), found.files, strict=True):
        say(f"{next(iter(each.values())).name}  {file}")
        say(*(f"  {name}, {one.method}: {one.answer}" for name, one in each.items()))
    for name, one in found.models.items():
        say_broken(one.broken)
        say(*(f"{name}, {method}: {v.sentence}" for method, v in one.verdicts.items()))
    say("", f"report: {found.facts()['report']}")


def print_explanations(found: Explanation | Explanations) -> None:
    from vitrail.explanation.verdict import ERRORS, RULE

    facts, run = found.facts(), found.run
    if run.auto is not None:
        say(f"auto chose {run.auto.method}: {run.auto.reason}")
    for image in found:
        say("  ".join(filter(None, [image.name, image.answer, image.files.get(image.method)])))
    say_broken(list_broken(run.problems))
    for path, note in run.notes.items():
        say(f"{path}  {note}")
    for name, check in run.checks.items():
        say("", f"{name}: {check.verdict.sentence}")
        say(*(f"  {reason}" for reason in check.verdict.reasons))
    if run.checks and is_verbose():
        say("", RULE)
    if run.checks:
        say("", ERRORS)
    if "report" in facts:
        say("", f"report: {facts['report']}")
    if run.html is not None:
        say(f"attention: {run.html} (open it in a browser: it needs no server)")
