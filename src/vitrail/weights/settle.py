"""From what a file tells and what the person says to one config; nothing is guessed in silence."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.models.catalogue import FAMILIES, variant_of
from vitrail.models.config import Config
from vitrail.weights.families.family import pair
from vitrail.weights.old_dialect import Dialect, Facts, Foreign
from vitrail.weights.settle_beit import settle_beit
from vitrail.weights.settle_swin import settle_swin

Settle = Callable[..., tuple[Any, list[str]]]

# Families whose files leave open what only they know how to find out.
SETTLE: dict[str, Settle] = {
    "beit": settle_beit,
    "swin": settle_swin,
    "swinv2": settle_swin,
}
# What a person may say of a file that does not tell it.
OPEN = {"image_size", "heads", "dim_head"}


def settle(
    foreign: Foreign,
    dialect: Dialect,
    *,
    named: Config | None,
    grid: tuple[int, int] | None,
    said: dict[str, Any],
) -> tuple[Config, list[str]]:
    """The config of the file as it is, and a sentence for each thing that was looked up rather than
    read; `named` is the model that the person named, `said` are the fields they asked for."""
    if named is not None and type(named) is not FAMILIES[dialect.family].config:
        raise UserError(
            f"{foreign.source}: its tensors are those of {dialect.name}, a {dialect.family}, and "
            "the model you named is none"
        )
    own: Settle = SETTLE.get(dialect.family, settle_plainly)
    return own(foreign, dialect, named=named, grid=grid, said=said)


def settle_plainly(
    foreign: Foreign,
    dialect: Dialect,
    *,
    named: Config | None,
    grid: tuple[int, int] | None,
    said: dict[str, Any],
) -> tuple[Config, list[str]]:
    """What the file tells, and the rest from the published model that has all of it."""
    family = FAMILIES[dialect.family]
    facts = dict(dialect.infer(foreign))
    notes = [*foreign.notes, *facts.pop("notes", ())]
    if sizes := facts.pop("sizes", None):
        facts["image_size"] = one_of(sizes, grid, said.get("image_size"), foreign.source)
    variants = [variant.config for variant in family.variants.values()]
    like = named or published(facts, variants)
    if named is not None:
        agree(facts, named, foreign.source)
    elif like is not None:
        looked_up = [f.name for f in fields(like) if f.name in OPEN and f.name not in facts]
        told = ", ".join(f"{name} {getattr(like, name)}" for name in looked_up)
        notes += [f"{told}, as {variant_of(like)} has"] if told else []
    values = asdict(like) if like is not None else {}
    answers = {name: value for name, value in said.items() if name in OPEN and like is None}
    if answers.get("image_size") is not None:
        answers["image_size"] = pair(answers["image_size"], "image_size")
    return validate(family.config, {**values, **answers, **facts}, where=foreign.source), notes


def published(facts: Facts, configs: Iterable[Config]) -> Config | None:
    """The first published model that is all that the file tells."""
    free = {"num_classes", "channels", "image_size", "norm_eps"}
    telling = {name: value for name, value in facts.items() if name not in free}
    for config in configs:
        if all(getattr(config, name) == value for name, value in telling.items()):
            return config
    return None


def agree(facts: Facts, named: Config, where: str) -> None:
    """Refuse a name that the tensors contradict."""
    for name, value in facts.items():
        ours = getattr(named, name)
        if name not in ("num_classes", "channels", "image_size") and ours != value:
            raise UserError(f"{where}: its {name} is {value}, the model you named has {ours}")


def one_of(
    sizes: dict[tuple[int, int], tuple[int, int]],
    grid: tuple[int, int] | None,
    asked: Any,
    where: str,
) -> tuple[int, int]:
    """The image size of a file that leaves several open, each with the grid that it makes."""
    if grid is not None and pair(grid, "grid") in sizes:
        return sizes[pair(grid, "grid")]
    if asked is not None and pair(asked, "image_size") in sizes.values():
        return pair(asked, "image_size")
    grids = " or ".join(f"{rows}x{columns}" for rows, columns in sizes)
    raise UserError(
        f"{where}: its attention works on a grid of {grids}: "
        "say which, by grid=(rows, columns) (--grid ROWSxCOLUMNS)"
    )
