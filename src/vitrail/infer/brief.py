"""A model that computes no more than its head reads.

Where only the class token is read, the last block need not work out what becomes of the patches:
they are still looked at, but ask nothing and are not thought over. In ViT-S/16 that is a fifteenth
of all work.
"""

from copy import copy

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.models.model import Model
from vitrail.models.vit import Block, ViT


def brief(model: Model) -> Model:
    """The same function from images to logits and features, with the same weights; `encode` gives
    only the tokens before the patches. A model whose head reads them all is given back as it is."""
    if not isinstance(model, ViT) or model.config.pool != "cls":
        return model
    if model.config.positions == "relative" or model.config.qkv_bias == "qv":
        return model  # rare, and `LastBlock` does not know them
    short = copy(model)
    short._modules = dict(model._modules)
    *blocks, last = model.blocks
    assert isinstance(last, Block)
    short.blocks = nn.ModuleList([*blocks, LastBlock(last, model.config.prefix)])
    return short


class LastBlock(nn.Module):
    """What a block makes of its first `count` tokens."""

    def __init__(self, block: Block, count: int) -> None:
        super().__init__()
        self.block, self.count = block, count

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n D"]:
        first = x[:, : self.count]
        first = first + self.block.scale1(self.look(self.block.norm1(x)))
        return first + self.block.think(first)

    def look(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n D"]:
        attention = self.block.attention
        inner = attention.out.in_features
        asked = rows(attention.qkv, x[:, : self.count], slice(inner))
        known = rows(attention.qkv, x, slice(inner, None))
        q, k, v = (
            rearrange(part, "B N (h d) -> B h N d", h=attention.heads)
            for part in (asked, *known.chunk(2, dim=-1))
        )
        return attention.out(rearrange(attention.attend(q, k, v), "B h N d -> B N (h d)"))


def rows(layer: nn.Linear, x: Float[Tensor, "B N D"], which: slice) -> Float[Tensor, "B N E"]:
    """Some of the features that a linear layer gives."""
    bias: Tensor | None = layer.bias
    return F.linear(x, layer.weight[which], None if bias is None else bias[which])
