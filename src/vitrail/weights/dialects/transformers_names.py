"""transformers' names for the tensors of its ViTs, as rows.

Version 5 holds new names in memory but still writes the old ones to disk, and reads both; version 4
knows the old ones alone. So the new names are met in state dicts that somebody saved by hand.
{b} is what a model with a head calls its encoder, such as "vit.", {i} a block, {p} weight or bias.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.weights.old_rows import Op, Row, drop, fuse, same, supply

PARTS = ("weight", "bias")

TOKENS = [
    same("{b}embeddings.cls_token", "cls"),
    same("{b}embeddings.patch_embeddings.projection.{p}", "patches.projection.{p}"),
    same("{b}layernorm.{p}", "norm.{p}"),
]
REGISTERS = [
    same("{b}embeddings.register_tokens", "registers"),
]
# Without a head of its own it is a token that the others may read, which is what a register is.
DISTILLATION = [
    same("{b}embeddings.distillation_token", "distillation"),
    same("{b}embeddings.distillation_token", "registers"),
]
HEAD = [
    same("classifier.{p}", "head.classes.{p}"),
]
TWO_HEADS = [
    same("cls_classifier.{p}", "head.classes.{p}"),
    same("distillation_classifier.{p}", "head_distilled.classes.{p}"),
]
UNREAD = [
    drop("{b}pooler.*", why="transformers' classifiers do not read the pooler either"),
    drop("{b}embeddings.mask_token", why="only masked pre-training reads it"),
    drop("decoder.*", why="the decoder of masked pre-training is not part of the encoder"),
]


@dataclass(frozen=True)
class Spelling:
    """The rows of one block, in the names of one version."""

    block: list[Row]
    mlp: list[Row]
    gated: list[Row] | None = None  # instead of `mlp` where a SwiGLU stands


def attention(layer: str, *projections: str) -> list[Row]:
    *split, out = (f"{layer}.attention.{projection}.{{p}}" for projection in projections)
    return [
        fuse(split, "blocks.{i}.attention.qkv.{p}"),
        same(out, "blocks.{i}.attention.out.{p}"),
    ]


NEW = ("q_proj", "k_proj", "v_proj", "o_proj")
OLD = ("attention.query", "attention.key", "attention.value", "output.dense")

VIT_5 = Spelling(
    block=[
        same("{b}layers.{i}.layernorm_before.{p}", "blocks.{i}.norm1.{p}"),
        *attention("{b}layers.{i}", *NEW),
        same("{b}layers.{i}.layernorm_after.{p}", "blocks.{i}.norm2.{p}"),
    ],
    mlp=[
        same("{b}layers.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.fc1.{p}"),
        same("{b}layers.{i}.mlp.fc2.{p}", "blocks.{i}.mlp.fc2.{p}"),
    ],
)
VIT_4 = Spelling(
    block=[
        same("{b}encoder.layer.{i}.layernorm_before.{p}", "blocks.{i}.norm1.{p}"),
        *attention("{b}encoder.layer.{i}", *OLD),
        same("{b}encoder.layer.{i}.layernorm_after.{p}", "blocks.{i}.norm2.{p}"),
    ],
    mlp=[
        same("{b}encoder.layer.{i}.intermediate.dense.{p}", "blocks.{i}.mlp.fc1.{p}"),
        same("{b}encoder.layer.{i}.output.dense.{p}", "blocks.{i}.mlp.fc2.{p}"),
    ],
)

DINO = [
    same("{b}encoder.layer.{i}.norm1.{p}", "blocks.{i}.norm1.{p}"),
    same("{b}encoder.layer.{i}.layer_scale1.lambda1", "blocks.{i}.scale1.factor"),
    same("{b}encoder.layer.{i}.norm2.{p}", "blocks.{i}.norm2.{p}"),
    same("{b}encoder.layer.{i}.layer_scale2.lambda1", "blocks.{i}.scale2.factor"),
]
DINO_MLP = [
    same("{b}encoder.layer.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.fc1.{p}"),
    same("{b}encoder.layer.{i}.mlp.fc2.{p}", "blocks.{i}.mlp.fc2.{p}"),
]
DINO_5 = Spelling(
    block=[*DINO, *attention("{b}encoder.layer.{i}", *NEW)],
    mlp=DINO_MLP,
    gated=[
        fuse(
            ["{b}encoder.layer.{i}.mlp.gate_proj.{p}", "{b}encoder.layer.{i}.mlp.up_proj.{p}"],
            "blocks.{i}.mlp.fc1.{p}",
        ),
        same("{b}encoder.layer.{i}.mlp.down_proj.{p}", "blocks.{i}.mlp.fc2.{p}"),
    ],
)
DINO_4 = Spelling(
    block=[*DINO, *attention("{b}encoder.layer.{i}", *OLD)],
    mlp=DINO_MLP,
    gated=[
        same("{b}encoder.layer.{i}.mlp.weights_in.{p}", "blocks.{i}.mlp.fc1.{p}"),
        same("{b}encoder.layer.{i}.mlp.weights_out.{p}", "blocks.{i}.mlp.fc2.{p}"),
    ],
)


def mask_token(base: str, dim: int) -> Row:
    """DINOv2 with registers cannot be told to do without one."""
    return supply(
        f"{base}embeddings.mask_token",
        lambda: torch.zeros(1, dim),
        why="only masked pre-training reads it",
    )


def slotted(slots: int, wanted: int) -> Op:
    """A prefix token without a position is one whose position is zero, and theirs all have one."""

    def write(table: Tensor) -> Tensor:
        zeros = table.new_zeros(1, wanted - slots, table.shape[2])
        return torch.cat([table[:, :slots], zeros, table[:, slots:]], dim=1)

    return Op(read=lambda table: table, write=write)
