"""`vitrail convert`: a checkpoint in another dialect, bit for bit."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from vitrail.cli.options import OutputOptions, Source, parse_changes, parse_grid, refuse_existing
from vitrail.cli.output import say, say_json


@dataclass(frozen=True)
class Convert(OutputOptions):
    """What to convert, where to and into which dialect."""

    source: Source
    """A Vitrail directory, a foreign file or directory, or hf-hub:owner/name."""
    out: str
    """A file (.safetensors, .npz, .pth), or a directory, which also gets the config files of the
    dialect."""
    _: KW_ONLY
    to: str = "vitrail"
    """The dialect to write: vitrail, timm, vit_jax, … (a wrong name lists them)."""
    model: str | None = None
    """The variant that a foreign file holds, where it does not tell."""
    dialect: str | None = None
    """The dialect of a foreign file, where its names do not tell."""
    grid: str | None = None
    """Rows x columns of a foreign file's positions, where it does not tell."""
    image_size: str | None = None
    """Resize positions for another image size: 384, or height x width as 192x672."""
    method: Literal["paper", "timm", "hf", "torchvision", "dinov2", "dinov2_registers"] | None = (
        None
    )
    """How to resize positions; by default as those who published the weights do."""
    set: tuple[str, ...] = ()
    """Another field of the model: --set num_classes=10. May be repeated."""
    overwrite: bool = False
    """Replace OUT where it exists."""


def convert(asked: Convert) -> None:
    """Read a checkpoint in one dialect and write it in another.

    Examples:
      vitrail convert B_16.npz vit-b-16
      vitrail convert runs/pets/best pets.safetensors --to timm
    """
    from vitrail.tasks.convert import convert as run

    refuse_existing(asked.out, overwrite=asked.overwrite)
    done = run(
        asked.source,
        asked.out,
        to=asked.to,
        model=asked.model,
        dialect=asked.dialect,
        grid=parse_grid(asked.grid),
        method=asked.method,
        overwrite=asked.overwrite,
        **parse_changes(asked.image_size, asked.set),
    )
    if asked.json:
        say_json(done.facts())
        return
    say(f"{done.out}: {done.tensors} tensors, {done.source.dialect} to {done.to}")
    for name, why in done.source.coverage.dropped:
        say(f"  left out {name}: {why}")
    for sentence in done.changes:
        say(f"  note: {sentence}")
    for sentence in done.cautions:
        say(f"  caution: {sentence}")
