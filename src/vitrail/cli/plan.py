"""`vitrail plan`: how to train a model on many GPUs."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.language import translate
from vitrail.cli.messages import options_of, with_options
from vitrail.cli.options import OutputOptions, parse_changes, parse_size
from vitrail.cli.output import say, say_json, say_table
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.tasks.plan import Plan as FoundPlan


@dataclass(frozen=True)
class Plan(OutputOptions):
    """Which model, on how many GPUs, with which batches."""

    model: str
    """Architecture (see vitrail models)."""
    _: KW_ONLY
    gpus: int
    """GPUs in all."""
    memory: float = 80.0
    """GB of a GPU."""
    batch_size: Annotated[int, Parameter(name=["--batch-size", "--batch"])] = 4096
    """Images per step, over all GPUs."""
    gpus_per_machine: int = 8
    """GPUs of a machine."""
    image_size: str | None = None
    """Image size: 224, or height x width as 192x672. [default: the model's]"""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of matrix products; weights stay in float32."""
    optimiser: Literal["adamw", "sgd", "muon"] = "adamw"
    """Optimiser, which decides how many numbers it keeps for each weight."""
    without_ema: bool = False
    """Plan without a running mean of the weights."""
    set: tuple[str, ...] = ()
    """Set a field of the model: --set depth=24. May be repeated."""


def plan(options: Plan) -> None:
    """Print memory and communication of a GPU for each kind of parallelism, and a command.

    Examples:
      vitrail plan vit_G_14 --gpus 64
      vitrail plan vit_l_16 --gpus 256 --memory 80 --batch-size 4096
    """
    from vitrail.tasks.plan import plan as run

    size = options.image_size
    found = run(
        options.model,
        gpus=options.gpus,
        memory=options.memory,
        batch_size=options.batch_size,
        gpus_per_machine=options.gpus_per_machine,
        image_size=None if size is None else parse_size(size, "--image-size"),
        precision=options.precision,
        optimiser=options.optimiser,
        ema=not options.without_ema,
        set=parse_changes(None, options.set),
    )
    if options.json:
        say_json(found.facts())
    else:
        print_plan(found)
    if (why := found.why_nothing_fits()) is not None:
        raise UserError(why)


def print_plan(found: FoundPlan) -> None:
    from vitrail.tasks.plan import HEADER, MODELLED

    height, width = found.image_size
    say(
        f"{found.model}: {found.params:,} parameters, images of {height}x{width}, batches of "
        f"{found.batch_size:,} on {found.gpus:,} GPUs of {found.memory:g} GB; GB of one GPU,",
        f"{MODELLED}",
        "",
    )
    say_table(HEADER, found.rows(), right=8)
    if (note := found.why_uneven()) is not None:
        say("", with_options(translate(note), options_of(Plan)))
    if found.command is not None:
        say("", f"recommended: {found.recommended and found.recommended.parallel}", found.command)
