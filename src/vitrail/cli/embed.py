"""`vitrail embed`: the features of images, in a directory that can be searched."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.options import (
    COMPUTING,
    BatchSize,
    ComputeOptions,
    DryRunOption,
    ModelOptions,
    Out,
    OutputOptions,
    Source,
    model_source,
)
from vitrail.cli.output import plural, say, say_json
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError
from vitrail.data.paths import check_paths, list_images


@dataclass(frozen=True)
class Embed(ModelOptions, ComputeOptions, DryRunOption, OutputOptions):
    """Which model embeds which images."""

    source: Source
    """A Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    images: tuple[str, ...] = ()
    """Files, directories, patterns or http addresses; - reads names from standard input, one a
    line."""
    _: KW_ONLY
    out: Out = None
    """Directory for Parquet files. Images that have a row there are not computed again. [required]
    """
    tokens: bool = False
    """Write the features of every token instead of the pooled ones that the head reads."""
    vector_precision: Literal["float16", "float32"] = "float32"
    """Precision of the stored vectors."""
    fast: Annotated[bool, Parameter(group=COMPUTING)] = False
    """Decode large images smaller and resize with torch: faster, and features differ a little. By
    default both are done exactly as the weights' authors did."""
    batch_size: BatchSize = 8
    engine: Annotated[Literal["local", "ray"], Parameter(group=COMPUTING)] = "local"
    """Compute in this process, or on a Ray cluster."""
    address: Annotated[str | None, Parameter(group=COMPUTING)] = None
    """Ray cluster: auto, or host:port. [default: one on this machine]"""


def embed(options: Embed) -> None:
    """Write the features of images to Parquet files; an interrupted run is resumed by the same
    command. Then vitrail search and vitrail duplicates read them.

    Examples:
      vitrail embed runs/pets/best photos/ --out vectors
      vitrail embed B_16.npz photos/ --out vectors --vector-precision float16
    """
    if options.out is None:
        raise UserError("missing --out DIR")
    check_paths(options.images)
    from vitrail.tasks.arguments import check_not_swapped
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.embed import EmbedOptions, embed_images

    check_not_swapped(options.source, options.images[0])

    how = EmbedOptions(
        tokens=options.tokens,
        exact=not options.fast,
        vector_precision=options.vector_precision,
        batch_size=options.batch_size,
        engine=options.engine,
        address=options.address,
        threads=options.threads,
    )
    with progress() as on_progress:
        done = embed_images(
            model_source(options),
            list_images(options.images),
            Path(options.out),
            how,
            device=options.device,
            precision=options.precision,
            dry_run=options.dry_run,
            on_progress=on_progress,
        )
    if options.json:
        say_json(done.facts())
    elif isinstance(done, DryRun):
        images, before = plural(done.details["images"], "image"), done.details["before"]
        say(f"would embed {images} to {done.out}, which has {plural(before, 'image')} already")
    else:
        known = f", {done.before} were there already" if done.before else ""
        embedded = plural(done.embedded, "image")
        say(f"{done.out}: {embedded} embedded, {done.broken} cannot be read{known}")
