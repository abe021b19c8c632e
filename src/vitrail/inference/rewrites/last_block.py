"""A last block that computes the tokens that are read, and no others.

Where a ViT's head reads the class token alone, the patches that leave the last block are read by
nobody: they are still attended to, but need no query, no output and no MLP. In ViT-S/16 that is a
fifteenth of all work. Where the mean of the patches is read before any norm, as in BEiT, the last
linear layer of the MLP is applied to that mean instead of to every patch.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.merging import MergedViT
from vitrail.inference.rewrites.sharing import with_children
from vitrail.layers.attention import SelfAttention
from vitrail.layers.mlp import MLP
from vitrail.models import beit, vit
from vitrail.models.model import Model


class QueryBlock(nn.Module):
    """The first `queries` tokens that a ViT's block gives."""

    def __init__(self, block: vit.Block, queries: int) -> None:
        super().__init__()
        self.block, self.queries = block, queries

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n D"]:
        return self.block(x, self.queries)


class MeanBlock(nn.Module):
    """The prefix tokens that a block gives, and the mean of its patches as one token more."""

    def __init__(self, block: vit.Block | beit.Block, prefix: int) -> None:
        super().__init__()
        self.block, self.prefix = block, prefix

    def forward(
        self, x: Float[Tensor, "B N D"], shared: Float[Tensor, "1 h N N"] | None = None
    ) -> Float[Tensor, "B M D"]:
        x = x + self.attention_branch(x, shared)
        hidden = self.block.mlp.act(self.block.mlp.fc1(self.block.norm2(x)))
        change = self.block.scale2(self.block.mlp.fc2(self.reduce(hidden)))
        return self.reduce(x) + change

    def attention_branch(
        self, x: Float[Tensor, "B N D"], shared: Float[Tensor, "1 h N N"] | None
    ) -> Float[Tensor, "B N D"]:
        if isinstance(self.block, vit.Block):
            return self.block.attention_branch(x)
        bias = shared if self.block.relative is None else self.block.relative()
        return self.block.attention_branch(x, bias)

    def reduce(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B M D"]:
        patches = x[:, self.prefix :].mean(dim=1, keepdim=True)
        return torch.cat([x[:, : self.prefix], patches], dim=1)


def prune_last_block(model: Model) -> Model:
    """The model for its head's sake: logits and features stay, the tokens of `encode` are fewer."""
    if isinstance(model, MergedViT):
        return prune_merged(model)
    if type(model) not in (vit.ViT, beit.Beit):
        return model
    blocks = model.get_submodule("blocks")
    name, last = list(blocks.named_children())[-1]
    shortened = shorten(model, last)
    if shortened is None:
        return model
    return with_children(model, {"blocks": with_children(blocks, {name: shortened})})


def prune_merged(model: MergedViT) -> MergedViT:
    """The same where tokens merge: a last block for the class token merges none."""
    attention = model.blocks[-1].get_submodule("attention")
    assert isinstance(attention, SelfAttention)
    if model.config.pool != "cls" or not attention.can_split_queries:
        return model
    pruned = with_children(model, {})
    pruned.read = tokens_read(model.config)
    return pruned


def tokens_read(config: vit.ViTConfig) -> int:
    """By the heads of a model that reads class and distillation tokens."""
    return 2 if config.distilled else 1


def shorten(model: Model, last: nn.Module) -> nn.Module | None:
    """The last block for what the head reads; None where it reads all, or the block is unknown."""
    config = model.config
    known = type(last) in (vit.Block, vit.PostNormBlock) and config.pool == "cls"
    if known and isinstance(last, vit.Block) and last.attention.can_split_queries:
        return QueryBlock(last, tokens_read(config))
    if type(last) is vit.Block and config.pool in ("mean", "cls+mean"):
        linear_after = config.final_norm != "tokens"
        return MeanBlock(last, config.prefix) if linear_after and has_plain_mlp(last) else None
    if type(last) is beit.Block and config.pool == "mean" and has_plain_mlp(last):
        return MeanBlock(last, prefix=1)
    return None


def has_plain_mlp(block: vit.Block | beit.Block) -> bool:
    return type(block.mlp) is MLP
