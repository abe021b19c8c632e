"""A masked autoencoder whole, decoder and all, between our names and those of others.

Dialects read the encoder alone, which is all that remains of pre-training. To go on with it, here
or in their code, the decoder is wanted too: `objectives/mae.py` has it beside its model.

| dialect | whose names |
|---|---|
| mae | facebookresearch/mae |
| transformers-vit_mae | ViTMAEForPreTraining, as version 5 has them in memory |
| transformers-vit_mae-v4 | the same in the classic names, which versions 4 and 5 read |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.weights.dialects import transformers_names as names
from vitrail.weights.old_rows import Row, expand, read, same, write
from vitrail.weights.rows import Tensors
from vitrail.weights.translate import Coverage

TOKENS = [
    same("{at}cls_token", "cls"),
    same("{at}pos_embed", "positions.table"),
    same("{at}patch_embed.proj.{p}", "patches.projection.{p}"),
]
BLOCK = [
    same("{at}blocks.{i}.norm{n}.{p}", "blocks.{i}.norm{n}.{p}"),
    same("{at}blocks.{i}.attn.qkv.{p}", "blocks.{i}.attention.qkv.{p}"),
    same("{at}blocks.{i}.attn.proj.{p}", "blocks.{i}.attention.out.{p}"),
]
MLP = [same("{at}blocks.{i}.mlp.fc{n}.{p}", "blocks.{i}.mlp.fc{n}.{p}")]
NORM = [same("{at}norm.{p}", "norm.{p}")]
AXES = {"p": ("weight", "bias"), "n": (1, 2)}
ENCODER, DECODER = "model.", "decoder."
TABLE, PLACES = "model.positions.table", "decoder.positions"
POSITIONS = same("{at}pos_embed", "positions")


@dataclass(frozen=True)
class Layout:
    """Rows of the encoder and of the decoder, for our names within each, and what theirs begin
    with in either; `norm` is theirs in each block of the decoder."""

    encoder: list[Row]
    decoder: list[Row]
    at: tuple[str, str]
    norm: str


def renamed(rows: Iterable[Row], old: str, new: str) -> list[Row]:
    """Rows for names of theirs that differ in a part."""
    return [
        replace(row, theirs=tuple(name.replace(old, new) for name in row.theirs)) for row in rows
    ]


def transformers(spelling: names.Spelling, layers: str = "layers.") -> Layout:
    """`layers` is what it calls the blocks of the decoder."""
    block = renamed([*spelling.block, *spelling.mlp], "{b}", "{at}")
    return Layout(
        encoder=[
            *renamed(names.TOKENS, "{b}", "{at}"),
            same("{at}embeddings.position_embeddings", "positions.table"),
            *block,
        ],
        decoder=[
            *renamed(renamed(block, "encoder.layer.", "layers."), "layers.", layers),
            same("{at}norm.{p}", "norm.{p}"),
            same("{at}embed.{p}", "embed.{p}"),
            same("decoder.mask_token", "mask"),
            POSITIONS,
            same("{at}pred.{p}", "pixels.{p}"),
        ],
        at=("vit.", "decoder.decoder_"),
        norm=f"decoder.decoder_{layers}{{}}.layernorm_before.weight",
    )


LAYOUTS = {
    "mae": Layout(
        encoder=[*TOKENS, *BLOCK, *MLP, *NORM],
        decoder=[
            *BLOCK,
            *MLP,
            *NORM,
            same("{at}embed.{p}", "embed.{p}"),
            same("mask_token", "mask"),
            POSITIONS,
            same("{at}pred.{p}", "pixels.{p}"),
        ],
        at=("", "decoder_"),
        norm="decoder_blocks.{}.norm1.weight",
    ),
    "transformers-vit_mae": transformers(names.VIT_5),
    "transformers-vit_mae-v4": transformers(names.VIT_4),
}
# Version 5 writes classic names too, but spells the decoder's as if they were the encoder's.
READ_ALONE = transformers(names.VIT_4, layers="encoder.layer.")


def read_mae(
    tensors: Tensors, shapes: Mapping[str, torch.Size], *, where: str = "a masked autoencoder"
) -> tuple[Tensors, Coverage]:
    """The state of our objective, of the given shapes, from the tensors of a file; `where` names
    it in an error."""
    if decoder_of(tensors) is None:
        raise UserError(f"{where}: it has no decoder: load the encoder, and begin with a new one")
    rows = [row for layout in (*LAYOUTS.values(), READ_ALONE) for row in whole(layout, shapes)]
    return read(rows, tensors, shapes, where=where)


def write_mae(state: Tensors, dialect: str = "mae") -> Tensors:
    """The tensors of a file in one of the dialects, from the state of our objective."""
    if dialect not in LAYOUTS:
        raise UserError(
            f"no masked autoencoder is written as {dialect!r}: use {', '.join(LAYOUTS)}"
        )
    shapes = {name: tensor.shape for name, tensor in state.items()}
    rows = whole(LAYOUTS[dialect], shapes)
    # a class token alone before the patches, which has a place in the table as they have
    if f"{ENCODER}cls" not in shapes or shapes.get(TABLE, [0, 0])[1] != shapes[PLACES][1]:
        raise UserError(
            f"the {dialect} dialect has a table with a place for the class token and for each "
            'patch, and nothing else: use a model with a class token and positions="learned"'
        )
    return write(rows, state, where=f"the {dialect} dialect")


def decoder_of(tensors: Mapping[str, Tensor]) -> dict[str, int] | None:
    """The arguments of our objective that a file tells, or None if it is an encoder alone. How
    many heads there are is in no tensor; those of every published decoder are 32 wide."""
    for layout in (*LAYOUTS.values(), READ_ALONE):
        embed = tensors.get(f"{layout.at[1]}embed.weight")
        depth = count(tensors, layout.norm)
        if embed is not None and embed.ndim and depth:
            return {"decoder_dim": len(embed), "decoder_depth": depth}
    return None


def whole(layout: Layout, shapes: Mapping[str, torch.Size]) -> list[Row]:
    """The rows of one dialect, for as many blocks as ours has."""
    rows = []
    parts = zip((ENCODER, DECODER), (layout.encoder, layout.decoder), layout.at, strict=True)
    for within, table, at in parts:
        blocks = range(count(shapes, f"{within}blocks.{{}}.norm1.weight"))
        for row in expand(table, at=[at], i=blocks, **AXES):
            rows.append(replace(row, ours=tuple(f"{within}{name}" for name in row.ours)))
    return rows


def count(known: Mapping[str, object], pattern: str) -> int:
    """How many consecutive indices exist, from 0."""
    number = 0
    while pattern.format(number) in known:
        number += 1
    return number
