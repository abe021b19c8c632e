"""`vitrail figures`: what a model has learnt, in the figures of the papers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import (
    OUTPUT,
    BatchSize,
    ComputeOptions,
    DryRunOption,
    ModelOptions,
    Others,
    OutputOptions,
    OverwriteOption,
    Source,
    arguments_of,
    model_sources,
    parse_list,
)
from vitrail.cli.output import say, say_broken, say_dry_run, say_json
from vitrail.cli.progress import progress


@dataclass(frozen=True)
class Figures(ModelOptions, ComputeOptions, DryRunOption, OverwriteOption, OutputOptions):
    """Which model to draw, over which images."""

    source: Source
    data: str | None = None
    """Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, torchvision:NAME:ROOT,
    digits, planted or fashion-mnist. [default: two sample photos and four crops of each]"""
    _: KW_ONLY
    others: Others = ()
    what: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    """Figures to draw: filters, positions, distance, ablation, tokens, cka, sinks, equivariance.
    [default: all but equivariance]"""
    split: str | None = None
    """Split to take images from. [default: test, else val]"""
    max_images: int = 128
    """Number of images, spread over the split; the paper uses 128."""
    ablated: int = 4
    """Number of images for the position ablation, which runs the model once for each tile."""
    batch_size: BatchSize = 8
    out: Annotated[str, Parameter(group=OUTPUT)] = "figures"
    """Directory for report.html, each figure as SVG and PNG, figures.json and figures.npz."""


def figures(options: Figures) -> None:
    """Draw what a model has learnt: filters, positions, attention distance, tokens, similarity of
    layers, attention sinks; or how far tokens and logits move when images are shifted.

    Examples:
      vitrail figures B_16.npz
      vitrail figures runs/pets/best pets --max-images 64 --out pets-figures
      vitrail figures runs/a/last pets --and runs/b/last --what equivariance
    """
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.figures import figures as run

    with progress() as on_progress:
        what = parse_list(options.what, "--what", "distance,cka") if options.what else None
        arguments = arguments_of(options, run, what=what, on_progress=on_progress)
        found = run(model_sources(options), options.data, **arguments)
    facts = found.facts()
    if options.json:
        say_json(facts)
        return
    if isinstance(found, DryRun):
        say_dry_run(found)
        return
    for panel in found:
        say(f"{panel.title}: {panel.caption}", "")
    say_broken(found.broken)
    say(f"report: {facts['report']}")
