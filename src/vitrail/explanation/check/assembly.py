"""What was found in a trace as the weights and the choices of the reference."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args

from torch import Tensor

from vitrail.explanation.check.embedding import Embedding, as_norm
from vitrail.explanation.check.layers import BlockLayers, ViTLayers
from vitrail.explanation.check.reference import (
    Activation,
    BlockChoices,
    BlockWeights,
    Choices,
    Linear,
    Norm,
    Weights,
)
from vitrail.explanation.check.trace import Event

EMBEDDING = ("patch", "pixels", "projection", "patch_norms", "token_norms")


def build_choices(layers: ViTLayers, embedding: Embedding, found: Mapping[str, Any]) -> Choices:
    """`found`: pool, output, and the fields of each block under its number."""
    names = [field.name for field in fields(BlockChoices)]
    blocks = tuple(
        BlockChoices(**{name: found[f"{number} {name}"] for name in names})
        for number in range(len(layers.blocks))
    )
    tokens, pooled = final_norms(layers, blocks)
    final: Literal["tokens", "pooled", "missing"] = "missing"
    if tokens or pooled:
        final = "tokens" if tokens else "pooled"
    return Choices(
        blocks=blocks,
        final_norm=final,
        pool=found["pool"],
        output=found["output"],
        **embedding.choices,
    )


def split_norms_after(layers: ViTLayers) -> tuple[list[Event], list[Event]]:
    """Norms after the last block: of all tokens, and of what was pooled."""
    after, pooled = layers.norms_after, layers.batch * layers.dim
    tokens = [one for one in after if one.data[0].numel() > pooled]
    return tokens, [one for one in after if one.data[0].numel() <= pooled]


def final_norms(
    layers: ViTLayers, blocks: Sequence[BlockChoices]
) -> tuple[list[Event], list[Event]]:
    """Those that are not the last block's own."""
    tokens, pooled = split_norms_after(layers)
    return (tokens[1:] if is_post_norm(blocks) else tokens), pooled


def build_weights(
    layers: ViTLayers, embedding: Embedding, choices: Choices, given: Mapping[str, Tensor]
) -> Weights:
    found = embedding.weights
    tokens, pooled = final_norms(layers, choices.blocks)
    own = split_norms_after(layers)[0][:1] if is_post_norm(choices.blocks) else []
    return Weights(
        heads=layers.heads,
        class_token=found.get("class_token"),
        positions=found.get("positions"),
        used_positions=found.get("used_positions"),
        blocks=tuple(map(block_weights, layers.blocks)),
        final_norm=next((as_norm(one) for one in (*tokens, *pooled)), Norm()),
        head=tuple(Linear(one.weight, one.bias) for one in layers.head),
        head_activation=head_activation(layers.head_activation),
        embed_norms=tuple(map(as_norm, layers.blocks[0].norms_before[:-1])),
        last_norms=tuple(map(as_norm, own)),
        given=given,
        **{name: found[name] for name in EMBEDDING},
    )


def is_post_norm(blocks: Sequence[BlockChoices]) -> bool:
    """Whether norms are on the stream after each branch, as in the first transformer."""
    places = [place for block in blocks for place in (block.norm1, block.norm2)]
    return "branch" not in places and "stream" in places


def block_weights(block: BlockLayers) -> BlockWeights:
    return BlockWeights(
        norm1=as_norm(block.norms_before[-1]) if block.norms_before else Norm(),
        projections=tuple(Linear(one.weight, one.bias) for one in block.projections),
        out=None if block.out is None else Linear(block.out.weight, block.out.bias),
        norm2=as_norm(block.norms_between[-1]) if block.norms_between else Norm(),
        hidden=Linear(block.hidden.weight, block.hidden.bias),
        mlp_out=Linear(block.mlp_out.weight, block.mlp_out.bias),
        scale1=None if block.out_scale is None else block.out_scale.weight.flatten(),
        scale2=None if block.mlp_scale is None else block.mlp_scale.weight.flatten(),
    )


def head_activation(event: Event | None) -> Activation:
    known: tuple[Activation, ...] = get_args(Activation)
    name = "none" if event is None else event.operation
    return next((kind for kind in known if kind == name), "none")
