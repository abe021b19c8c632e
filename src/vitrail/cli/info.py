"""`vitrail info`: what a model is made of, and what a checkpoint contains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from vitrail.cli.options import LoadOptions, OutputOptions, parse_changes, parse_grid
from vitrail.cli.output import say, say_json, say_table
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.models.measure import Layer
    from vitrail.tasks.info import Initialisation, ModelInfo, Torchinfo, Why


@dataclass(frozen=True)
class Info(LoadOptions, OutputOptions):
    """Which model or checkpoint to describe, at which size."""

    source: Annotated[str, Parameter(name="model")]
    """Name of a model (vit_b_16), Vitrail directory, file or directory of another library, or hub
    id owner/name."""
    _: KW_ONLY
    batch_size: int = 1
    """Images in a batch, for shapes, multiply-adds and activations."""
    depth: int = 1
    """How deep into the modules the table goes; blocks are shown at depth 1."""
    why: str | None = None
    """Module whose number of parameters to explain, tensor by tensor: blocks.0"""
    init: bool = False
    """Print how the weights of a new model start: mean, std and largest value of each tensor."""


def info(options: Info) -> None:
    """Describe a model layer by layer, or a checkpoint: dialect, config, coverage, passport.

    Examples:
      vitrail info vit_b_16 --image-size 384
      vitrail info vit_h_14 --why blocks.0
      vitrail info vit_h_14 --init
    """
    from vitrail.tasks.info import info as run

    if options.init and options.why is not None:
        raise UserError("--init and --why contradict each other: give one")
    found = run(
        options.source,
        batch_size=options.batch_size,
        model=options.model,
        dialect=options.dialect,
        grid=parse_grid(options.grid),
        **parse_changes(options.image_size, options.set),
    )
    if options.why is not None:
        why = found.why(options.why)
        say_json(why.facts()) if options.json else print_why(why, options)
        return
    if options.init:
        init = found.init()
        say_json(init.facts()) if options.json else print_init(init)
        return
    if options.json:
        say_json(found.facts())
        return
    if found.checkpoint is not None:
        print_checkpoint(found.facts())
    print_layers(found, options)


def print_why(why: Why, options: Info) -> None:
    """The sum, term by term, and why other tools print fewer multiply-adds."""
    say(*why.text().splitlines())
    say(
        "",
        f"multiply-adds of the whole model for {images_text(options)}: {why.macs:,}",
        f"torchinfo would print {macs_text(why.weight_macs)}: it counts each linear layer once "
        "per image instead of once per token, and leaves out attention products",
    )


def print_init(init: Initialisation) -> None:
    """Each tensor, those of all blocks in one row, and the rules of the family."""
    rows = []
    for name, each in init.by_kind():
        shape = " x ".join(map(str, each[0].shape))
        mean, std = mean_text([one.mean for one in each]), std_text([one.std for one in each])
        largest = max(one.largest for one in each)
        rows.append((name, shape, str(len(each)), mean, std, f"{largest:.3g}"))
    say_table(("tensor", "shape", "tensors", "mean", "std", "largest"), rows, right=4)
    if init.rules:
        say("", "as the family documents it:")
        say_table(("what", "how"), init.rules, right=0)


def print_checkpoint(facts: dict[str, Any]) -> None:
    found, passport = facts["checkpoint"], facts["passport"]
    used = f"{found['used']} foreign tensors used" if found["used"] else "native"
    lines = [
        ("dialect", found["dialect"]),
        ("tensors", f"{found['tensors']} ({', '.join(found['precision'])}), {used}"),
        *[
            ("dropped", f"{len(row['tensors'])} ({', '.join(row['tensors'][:3])}…): {row['why']}")
            for row in found["dropped"]
        ],
        *[("filled", f"{row['tensor']}: {row['why']}") for row in found["filled"]],
        *[("note", sentence) for sentence in passport["origin"]["changes"]],
        ("config", fields(unusual(passport["family"], facts["config"]))),
        ("preprocessing", preprocessing_of(passport)),
        ("resize", passport["resize"]),
        ("origin", f"{passport['origin']['source']} ({passport['origin']['dialect']})"),
        *([("labels", ", ".join(passport["labels"][:8]))] if passport["labels"] else []),
        *([("scores", fields(passport["scores"]))] if passport["scores"] else []),
    ]
    for name, value in lines:
        say(f"{name:14}{value}")
    say("")


def preprocessing_of(passport: dict[str, Any]) -> str:
    """As the model card has it."""
    from vitrail.core.passport import Preprocessing

    how = Preprocessing(**passport["preprocessing"])
    return f"{how.in_words()}, {how.channel_order}, mean {how.mean}, std {how.std}"


def unusual(family: str, config: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not at their default, which is what makes this model this model."""
    from vitrail.models.catalogue import FAMILIES

    plain = {field.name: field.default for field in dataclass_fields(FAMILIES[family].config)}
    return {name: value for name, value in config.items() if value != plain[name]}


def fields(record: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in record.items())


def print_layers(found: ModelInfo, options: Info) -> None:
    measured = found.measured
    shown = [layer for layer in measured.layers if is_shown(layer, options.depth)]
    rows = [
        (
            layer.name,
            layer.kind,
            " x ".join(map(str, layer.output)),
            f"{layer.params:,}",
            f"{layer.macs:,}",
        )
        for layer in shown
    ]
    say_table(("module", "kind", "output", "parameters", "multiply-adds"), rows, right=2)
    images, memory = images_text(options), megabytes(measured.activation_memory)
    say(
        "",
        f"parameters    {measured.params:,} ({megabytes(measured.parameter_memory)} in float32)",
        f"multiply-adds {measured.macs:,} for {images}",
        f"activations   {memory} saved for the backward pass of {images}, with fused attention",
        f"torchinfo     {torchinfo_text(found.torchinfo)}",
    )


def is_shown(layer: Layer, depth: int) -> bool:
    """A number in a name is a place in a list, and no level of its own: blocks.0 is at depth 1."""
    level = sum(not part.isdecimal() for part in layer.name.split("."))
    return level <= depth and layer.kind not in ("Identity", "Dropout")


def images_text(options: Info) -> str:
    return "one image" if options.batch_size == 1 else f"{options.batch_size} images"


def megabytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def torchinfo_text(found: Torchinfo) -> str:
    """The lines below its table, in its units: 1 MB is 1,000,000 bytes."""
    sizes = {"input": found.input_size, "forward/backward": found.pass_size}
    sizes |= {"params": found.params_size}
    terms = " + ".join(f"{name} {size / 1e6:,.2f}" for name, size in sizes.items())
    macs = macs_text(found.macs)
    return f"{macs} multiply-adds; in MB: {terms} = {found.total_size / 1e6:,.2f}"


def macs_text(macs: int) -> str:
    return f"{macs / 1e9:,.2f} G" if macs >= 1e9 else f"{macs / 1e6:,.2f} M"


def mean_text(means: Sequence[float]) -> str:
    """To four places, because further ones are chance."""
    return f"{sum(means) / len(means):z.4f}"


def std_text(stds: Sequence[float]) -> str:
    """Of all tensors together; a range where they start differently, as those of BEiT do."""
    low, high = min(stds), max(stds)
    if high > 1.5 * low:
        return f"{low:.3g} to {high:.3g}"
    return f"{math.sqrt(sum(std**2 for std in stds) / len(stds)):.3g}"
