"""A masked autoencoder whole, decoder and all, between our names and those of others.

A dialect reads the encoder alone, which is all that remains of pre-training. To go on with it, here
or in their code, the decoder is needed too: `objectives/mae.py` has it beside its model, and the
dialects of masked autoencoders have rows for it (`Dialect.decoder`).
"""

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.weights.dialect import Dialect
from vitrail.weights.dialects import DIALECTS
from vitrail.weights.families.family import NamedTensors
from vitrail.weights.patterns import Table
from vitrail.weights.rows import Row, Tensors, ours_within
from vitrail.weights.translate import Coverage, check_total, read, write

TABLE, PLACES = "model.positions.table", "decoder.positions"
# What the rows need to know of the encoder's config: it norms its tokens after the last block, and
# its class token has a position.
ENCODER = SimpleNamespace(final_norm="tokens", slots=1, num_classes=0)


def autoencoder_rows(dialect: Dialect) -> tuple[Row, ...]:
    """The rows of encoder and decoder; none drops a tensor, and none is of a classifier."""
    encoder = [row for row in dialect.rows if row.theirs and row.ours]
    encoder = [row for row in encoder if not row.ours[0].startswith("head")]
    return (*ours_within("model.", encoder), *ours_within("decoder.", dialect.decoder))


def table_of(*dialects: Dialect) -> Table:
    values = {name: found for dialect in dialects for name, found in dialect.values.items()}
    return Table([row for dialect in dialects for row in autoencoder_rows(dialect)], values)


AUTOENCODERS = {dialect.name: dialect for dialect in DIALECTS if dialect.decoder}
ALL = table_of(*AUTOENCODERS.values())


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
    if dialect not in AUTOENCODERS:
        known = ", ".join(AUTOENCODERS)
        raise UserError(f"no masked autoencoder is written as {dialect!r}: use {known}")
    # a class token alone before the patches, which has a place in the table as they have
    table = state.get(TABLE)
    if "model.cls" not in state or table is None or table.shape[1] != state[PLACES].shape[1]:
        raise UserError(
            f"the {dialect} dialect has a table with a place for the class token and for each "
            'patch, and nothing else: use a model with a class token and positions="learned"'
        )
    where = f"the {dialect} dialect"
    return write(table_of(AUTOENCODERS[dialect]), state, ENCODER, where=where)


def decoder_of(tensors: Mapping[str, Tensor]) -> dict[str, int] | None:
    """The arguments of our objective that a file's tensors show, or None if it is an encoder
    alone. The number of heads is in no tensor; those of every published decoder are 32 wide."""
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
