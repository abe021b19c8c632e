"""A masked autoencoder whole, decoder and all, between our names and those of others, as rows.

Dialects read the encoder alone, which is all that remains of pre-training. To go on with it, here
or in their code, the decoder is wanted too: `objectives/mae.py` has it beside its model.

| dialect | whose names |
|---|---|
| mae | facebookresearch/mae |
| transformers-vit_mae | ViTMAEForPreTraining, as version 5 has them in memory |
| transformers-vit_mae-v4 | the same in the classic names, which versions 4 and 5 read |
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.weights.dialects import facebook, transformers
from vitrail.weights.families.family import NamedTensors
from vitrail.weights.patterns import Table
from vitrail.weights.rows import Row, Tensors, same, within
from vitrail.weights.translate import Coverage, check_total, read, write

TABLE, PLACES = "model.positions.table", "decoder.positions"
# What decoders have beside blocks, within `decoder_`.
AROUND = (
    same("norm.{p}", "norm.{p}"),
    same("embed.{p}", "embed.{p}"),
    same("pos_embed", "positions"),
    same("pred.{p}", "pixels.{p}"),
)


def ours_within(prefix: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows with a prefix before every name of ours."""
    return tuple(replace(row, ours=tuple(prefix + name for name in row.ours)) for row in rows)


def facebook_rows() -> tuple[Row, ...]:
    block = (*facebook.BLOCK, *facebook.MLP)
    decoder = (*within("decoder_", (*block, *AROUND)), same("mask_token", "mask"))
    encoder = (*facebook.TOKENS, *block, *facebook.NORM)
    return (*ours_within("model.", encoder), *ours_within("decoder.", decoder))


def transformers_rows(block: tuple[Row, ...], layer: str, decoder_layer: str) -> tuple[Row, ...]:
    """The blocks of one version; `layer` and `decoder_layer` stand before the names of a block."""
    encoder = (
        same("embeddings.cls_token", "cls"),
        same("embeddings.patch_embeddings.projection.{p}", "patches.projection.{p}"),
        same("embeddings.position_embeddings", "positions.table"),
        same("layernorm.{p}", "norm.{p}"),
        *within(layer, block),
    )
    decoder = (
        *within("decoder.decoder_", (*AROUND, *within(decoder_layer, block))),
        same("decoder.mask_token", "mask"),
    )
    return (*ours_within("model.", within("vit.", encoder)), *ours_within("decoder.", decoder))


NEW = (*transformers.NORMS, *transformers.NEW, *transformers.MLP)
CLASSIC = (*transformers.NORMS, *transformers.OLD, *transformers.DENSE)
ROWS = {
    "mae": facebook_rows(),
    "transformers-vit_mae": transformers_rows(NEW, "layers.{i}.", "layers.{i}."),
    "transformers-vit_mae-v4": transformers_rows(CLASSIC, "encoder.layer.{i}.", "layers.{i}."),
}
# Version 5 writes classic names too, but spells the decoder's as if they were the encoder's.
READ_ALONE = transformers_rows(CLASSIC, "encoder.layer.{i}.", "encoder.layer.{i}.")
ALL = Table([row for rows in (*ROWS.values(), READ_ALONE) for row in rows], {})


def read_mae(
    tensors: Tensors, shapes: Mapping[str, torch.Size], *, where: str = "a masked autoencoder"
) -> tuple[Tensors, Coverage]:
    """The state of our objective, of the given shapes, from the tensors of a file; `where` names
    it in an error."""
    if decoder_of(tensors) is None:
        raise UserError(f"{where}: it has no decoder: load the encoder, and begin with a new one")
    made = read(ALL, tensors, {}, where=where)
    check_total(made, shapes, tensors, where=where)
    return made.state, made.coverage


def write_mae(state: Tensors, dialect: str = "mae") -> Tensors:
    """The tensors of a file in one of the dialects, from the state of our objective."""
    if dialect not in ROWS:
        raise UserError(f"no masked autoencoder is written as {dialect!r}: use {', '.join(ROWS)}")
    # a class token alone before the patches, which has a place in the table as they have
    table = state.get(TABLE)
    if "model.cls" not in state or table is None or table.shape[1] != state[PLACES].shape[1]:
        raise UserError(
            f"the {dialect} dialect has a table with a place for the class token and for each "
            'patch, and nothing else: use a model with a class token and positions="learned"'
        )
    where = f"the {dialect} dialect"
    return write(Table(ROWS[dialect], {}), state, SimpleNamespace(), where=where)


def decoder_of(tensors: Mapping[str, Tensor]) -> dict[str, int] | None:
    """The arguments of our objective that a file tells, or None if it is an encoder alone. How
    many heads there are is in no tensor; those of every published decoder are 32 wide."""
    ours: Tensors = {}
    for row in ALL.rows:
        for name, tensor in tensors.items():
            bound = row.theirs[0].match(name)
            if bound is not None:
                ours.setdefault(str(row.ours[0].format(bound)), tensor)
    embed = ours.get("decoder.embed.weight")
    depth = NamedTensors("", ours).count("decoder.blocks.{}.norm1.weight")
    if embed is None or not embed.ndim or not depth:
        return None
    return {"decoder_dim": len(embed), "decoder_depth": depth}
