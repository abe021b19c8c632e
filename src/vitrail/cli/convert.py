"""`vitrail convert`: a checkpoint in another dialect, bit for bit."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from vitrail.cli.messages import options_of, with_options
from vitrail.cli.options import (
    DryRunOption,
    ModelOptions,
    OutputOptions,
    OverwriteOption,
    Source,
    parse_changes,
    parse_channels,
    parse_grid,
)
from vitrail.cli.output import say, say_json


@dataclass(frozen=True)
class Convert(ModelOptions, DryRunOption, OverwriteOption, OutputOptions):
    """What to convert, where to and into which dialect."""

    source: Source
    out: str
    """A file (.safetensors, .npz, .pth), or a directory, which also gets the config files of the
    dialect."""
    _: KW_ONLY
    to: str = "vitrail"
    """The dialect to write: vitrail, timm, vit_jax, … (a wrong name lists them), or a rows.yaml of
    vitrail adopt."""
    method: Literal["paper", "timm", "hf", "torchvision", "dinov2", "dinov2_registers"] | None = (
        None
    )
    """How to resize position embeddings. [default: as the authors of the weights do]"""


def convert(options: Convert) -> None:
    """Read a checkpoint in one dialect and write it in another.

    Examples:
      vitrail convert B_16.npz vit-b-16
      vitrail convert runs/pets/best pets.safetensors --to timm
    """
    from vitrail.tasks.convert import convert as run

    done = run(
        options.source,
        options.out,
        to=options.to,
        model=options.model,
        dialect=options.dialect,
        grid=parse_grid(options.grid),
        method=options.method,
        mean=parse_channels(options.mean, "--mean"),
        std=parse_channels(options.std, "--std"),
        overwrite=options.overwrite,
        dry_run=options.dry_run,
        **parse_changes(options.image_size, options.set),
    )
    if options.json:
        say_json(done.facts())
        return
    would = "would write " if options.dry_run else ""
    say(f"{would}{done.out}: {done.tensors} tensors, {done.source.dialect} to {done.to}")
    for name, why in done.source.coverage.dropped:
        say(f"  dropped {name}: {why}")
    for sentence in done.changes:
        say(f"  note: {sentence}")
    for sentence in done.cautions:
        say(f"  caution: {with_options(sentence, options_of(Convert))}")
