"""What timm, transformers and apple/ml-cvnets call the parts that both MobileViTs are made of.

{a} is what stands before every name, such as "mobilevit.", {c} a convolution with its batch norm,
{s} a MobileViT block, {i} a block of its transformer, {p} weight or bias.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from vitrail.weights.old_dialect import Facts, Foreign
from vitrail.weights.old_rows import Row, drop, expand, same, supply

PARTS = ("weight", "bias")
STATISTICS = (*PARTS, "running_mean", "running_var")
COUNTED = "counts the batches of training, and nothing is computed from it"
TRANSFORMERS = 2  # the first stage that has one


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """One library's names for the parts of one family; `parts` are a MobileViT block's
    convolutions with a norm, `loose` all else of it."""

    counts: tuple[int, int]  # inverted residuals of the first two stages
    conv: str
    norm: str
    stem: str
    inverted: Callable[[int, int], str]  # of a stage and the number of a block in it
    three: tuple[str, str, str]  # its convolutions: up, in each channel, down
    block: Callable[[int], str]  # the MobileViT block of a stage
    parts: Mapping[str, str]
    loose: Sequence[Row]
    head: str
    last: str | None = None
    prefix: str = ""  # before all names but the head's, in a file with a head


def rows(
    spelling: Spelling,
    depths: Sequence[Sequence[int | str]],
    before: Sequence[str],
) -> list[Row]:
    """The tensors of a model; `depths` are the numbers of the blocks of each transformer, `before`
    what all names may begin with, the one to write first."""
    pairs = list(convolutions(spelling))
    table = [
        same(f"{{a}}{spelling.conv}.weight", "{c}.conv.weight"),
        same(f"{{a}}{spelling.norm}.{{n}}", "{c}.norm.{n}"),
    ]
    found = expand(table, a=before, c=pairs, n=STATISTICS)
    for stage, numbers in enumerate(depths, start=TRANSFORMERS):
        found += expand(
            spelling.loose,
            a=before,
            s=[(spelling.block(stage), f"stages.{stage}.1")],
            i=numbers,
            depth=[len(numbers)],
            p=PARTS,
        )
    counter = supply(
        f"{{a}}{spelling.norm}.num_batches_tracked", lambda: torch.tensor(0), why=COUNTED
    )
    return [
        *found,
        *expand([same(f"{spelling.head}.{{p}}", "head.classes.{p}")], p=PARTS),
        *expand([counter], a=before[:1], c=pairs),
        drop("*.num_batches_tracked", why=COUNTED),
    ]


def convolutions(spelling: Spelling) -> Iterator[tuple[str, str]]:
    """Every convolution that has a norm: their name and ours."""
    yield spelling.stem, "stem"
    if spelling.last is not None:
        yield spelling.last, "last"
    for stage, count in enumerate((*spelling.counts, 1, 1, 1)):
        for number in range(count):
            for theirs, ours in zip(spelling.three, ("expand", "filter", "project"), strict=True):
                name = f"{spelling.inverted(stage, number)}.{theirs}"
                yield name, f"stages.{stage}.{number}.{ours}"
        for ours, theirs in spelling.parts.items() if stage >= TRANSFORMERS else ():
            yield f"{spelling.block(stage)}.{theirs}", f"stages.{stage}.1.{ours}"


def infer(spelling: Spelling, foreign: Foreign) -> Facts:
    """What the shapes of tensors tell of either family."""
    at = spelling.prefix if stem_of(spelling, spelling.prefix) in foreign.tensors else ""
    table = rows(spelling, [(0, "{}")] * 3, before=[at])
    names = {row.ours[0]: row.theirs[0] for row in table if row.ours}

    def shape(ours: str, axes: int) -> tuple[int, ...]:
        return foreign.shape(names[ours], axes)

    stem, channels = shape("stem.conv.weight", 4)[:2]
    dims = tuple(shape(f"stages.{s}.1.embed.weight", 4)[0] for s in (2, 3, 4))
    hidden = next(iter(foreign.shape(names["stages.2.1.blocks.0.mlp.fc1.weight"])), 0)
    head = f"{spelling.head}.weight"
    facts: Facts = {
        "channels": channels,
        "stem": stem,
        "widths": tuple(shape(f"stages.{s}.0.project.conv.weight", 4)[0] for s in range(5)),
        "dims": dims,
        "depths": tuple(
            foreign.count(names[f"stages.{s}.1.blocks.{{}}.norm1.weight"]) for s in (2, 3, 4)
        ),
        "expand": shape("stages.0.0.expand.conv.weight", 4)[0] / stem,
        "mlp_ratio": hidden / dims[0],
        "norm_eps": 1e-5,
        "num_classes": foreign.shape(head, 2)[0] if head in foreign.tensors else 0,
    }
    return facts | ({"last": shape("last.conv.weight", 4)[0]} if spelling.last else {})


def claims(spelling: Spelling, foreign: Foreign) -> bool:
    """By the stem and the first attention of the first transformer."""
    (query,) = (row for row in spelling.loose if row.ours == ("{s}.blocks.{i}.attention.qkv.{p}",))
    first = {"s": spelling.block(TRANSFORMERS), "i": 0, "p": "weight"}
    return any(
        stem_of(spelling, at) in foreign.tensors
        and query.theirs[0].format(a=at, **first) in foreign.tensors
        for at in ("", spelling.prefix)
    )


def stem_of(spelling: Spelling, at: str) -> str:
    return f"{at}{spelling.conv.format(c=spelling.stem)}.weight"
