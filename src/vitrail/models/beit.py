"""BEiT (arXiv:2106.08254) and BEiT v2 (2208.06366): a ViT that knows places by distance alone.

    image ── patches ── class token ── blocks ── pool ── norm ── head
    B C H W   B N D       B N D        B N D     B D     B D     B K

No position is added to a patch; every attention has a learned bias for how far, down and across,
one patch lies from another. Both versions are this one model, trained otherwise.
Axes: B batch · C channels · H W image · N tokens · D width · h heads · M distances · K classes
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import SelfAttention
from vitrail.layers.computed import Computed
from vitrail.layers.drop import DropPath, LayerScale, linear_drop_rates, make_layer_scale
from vitrail.layers.head import Head
from vitrail.layers.init import zero_
from vitrail.layers.mlp import MLP
from vitrail.layers.patch import PatchEmbedding
from vitrail.models.config import Config, Numerics, Runtime, Shape
from vitrail.models.limits import check_computed, check_counts, check_multiple
from vitrail.models.model import Model, tokens_to_map
from vitrail.models.variant import Variant

# The class token looking at a patch, a patch looking at the class token, the token at itself.
CLASS_RELATIONS = 3


@dataclass(frozen=True, kw_only=True)
class BeitConfig(Config):
    """Everything that decides what a BEiT computes.

    `pool="mean"` is how it classifies: the patches' mean is normed. With "cls" every token is
    normed first, as pre-training does. `relative_bias` is one table for all blocks in
    pre-training, and a table for each block from then on.
    """

    dim: Shape[int]
    depth: Shape[int]
    heads: Shape[int]
    mlp_dim: Shape[int]
    patch_size: Shape[int] = 16
    pool: Numerics[Literal["mean", "cls"]] = "mean"
    relative_bias: Shape[Literal["block", "shared"]] = "block"
    layer_scale: Shape[float | None] = 1e-5
    activation: Numerics[Literal["gelu", "gelu_tanh", "quick_gelu"]] = "gelu"
    norm_eps: Numerics[float] = 1e-6
    dropout: Runtime[float] = 0.0  # after embedding, attention and both linear layers of the MLP

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("dim", "depth", "heads", "mlp_dim", "patch_size")
        check_counts(self, *positive, least=1)
        check_multiple(self.image_size, self.patch_size, "patch")
        if self.dim % self.heads:
            raise UserError(f"dim must be a multiple of heads, got {self.dim} and {self.heads}")
        check_computed(self.depth * self.tokens**2, "the distances between all patches")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def features(self) -> int:
        return self.dim

    @property
    def tokens(self) -> int:
        return self.layout.tokens

    @property
    def layout(self) -> TokenLayout:
        return TokenLayout(grid=self.grid, stride=self.patch_size, prefix=1)


B = BeitConfig(dim=768, depth=12, heads=12, mlp_dim=3072)
L = BeitConfig(dim=1024, depth=24, heads=16, mlp_dim=4096)

# v1 was published at 224, 384 and, the large one, 512 pixels, v2 at 224. All that sets the two
# apart is where LayerScale begins in the base model.
# fmt: off
VARIANTS = {
    "beit_b_16": Variant(replace(B, layer_scale=0.1), params=86_530_984, macs=17_563_828_224),
    "beit_l_16": Variant(L, params=304_430_568, macs=61_554_712_576),
    "beitv2_b_16": Variant(B, params=86_530_984, macs=17_563_828_224),
    "beitv2_l_16": Variant(L, params=304_430_568, macs=61_554_712_576),
}
# fmt: on


class RelativeBias(nn.Module):
    """What is added to the logits of attention, for each head, by how far the key lies from the
    query; the last three rows of the table are the relations that the class token has."""

    def __init__(self, grid: tuple[int, int], heads: int) -> None:
        super().__init__()
        self.tokens = 1 + math.prod(grid)
        self.table = nn.Parameter(torch.empty(count_relations(grid), heads))
        self.index = Computed(partial(relation_index, grid))

    def forward(self) -> Float[Tensor, "1 h N N"]:
        bias = self.table.mT.index_select(1, self.index())
        return bias.unflatten(1, (self.tokens, self.tokens))[None]


def count_relations(grid: tuple[int, int]) -> int:
    """Rows of a table: every distance there is on the grid, and what the class token has.

    >>> count_relations((14, 14))
    732
    """
    rows, columns = grid
    return (2 * rows - 1) * (2 * columns - 1) + CLASS_RELATIONS


def relation_index(grid: tuple[int, int]) -> Int[Tensor, "NN"]:
    """The row of the table for every pair of tokens, query by query."""
    rows, columns = grid
    place = torch.arange(rows * columns, dtype=torch.int32, device="cpu")
    row, column = place // columns, place % columns
    down, across = row[:, None] - row + rows - 1, column[:, None] - column + columns - 1
    index = F.pad(down * (2 * columns - 1) + across, (1, 0, 1, 0))
    first = count_relations(grid) - CLASS_RELATIONS
    index[0, :], index[:, 0], index[0, 0] = first, first + 1, first + 2
    return index.flatten()


class Block(nn.Module):
    """A ViT's block whose attention is biased by distance, and whose branches begin small."""

    def __init__(self, config: BeitConfig, drop_path: float) -> None:
        super().__init__()
        own = config.relative_bias == "block"
        self.norm1 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.relative = RelativeBias(config.grid, config.heads) if own else None
        self.attention = SelfAttention(
            config.layout,
            dim=config.dim,
            heads=config.heads,
            dim_head=config.dim // config.heads,
            qkv_bias="qv",
        )
        self.scale1 = make_layer_scale(config.dim, config.layer_scale)
        self.norm2 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.mlp = MLP(
            config.dim, config.mlp_dim, activation=config.activation, dropout=config.dropout
        )
        self.scale2 = make_layer_scale(config.dim, config.layer_scale)
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Float[Tensor, "B N D"], shared: Float[Tensor, "1 h N N"] | None = None
    ) -> Float[Tensor, "B N D"]:
        bias = shared if self.relative is None else self.relative()
        return self.drop_path(
            self.drop_path(x, partial(self.attention_branch, bias=bias)), self.mlp_branch
        )

    def attention_branch(
        self, x: Float[Tensor, "B N D"], bias: Float[Tensor, "1 h N N"] | None
    ) -> Float[Tensor, "B N D"]:
        return self.scale1(self.dropout(self.attention(self.norm1(x), bias)))

    def mlp_branch(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        return self.scale2(self.mlp(self.norm2(x)))


class Beit(Model):
    """
    >>> config = replace(VARIANTS["beit_b_16"].config, depth=1, num_classes=10)
    >>> Beit(config)(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 10])
    """

    def __init__(self, config: BeitConfig) -> None:
        super().__init__()
        self.config = config
        shared = config.relative_bias == "shared"
        self.patches = PatchEmbedding(config.channels, config.dim, config.patch_size)
        self.cls = nn.Parameter(torch.empty(1, 1, config.dim))
        self.dropout = nn.Dropout(config.dropout)
        self.relative = RelativeBias(config.grid, config.heads) if shared else None
        (rates,) = linear_drop_rates(config.drop_path, [config.depth])
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.features(image))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        x = self.encode(image)
        return self.norm(x[:, 1:].mean(dim=1)) if self.config.pool == "mean" else x[:, 0]

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        return self.forward_blocks(self.embed(image))

    def embed(
        self,
        image: Float[Tensor, "B C H W"],
        corrupt: Callable[[Float[Tensor, "B N D"]], Float[Tensor, "B N D"]] | None = None,
    ) -> Float[Tensor, "B M D"]:
        """The class token, then the patches in reading order, which `corrupt` may change."""
        patches = self.patches(self.check(image))
        if corrupt is not None:
            patches = corrupt(patches)
        return self.dropout(torch.cat([self.cls.expand(patches.shape[0], -1, -1), patches], dim=1))

    def forward_blocks(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """What `embed` gives through every block; a bias they share is made once."""
        shared = None if self.relative is None else self.relative()
        for block in self.blocks:
            x = block(x, shared)
        return x if self.config.pool == "mean" else self.norm(x)

    def attach_head(self) -> None:
        """A head that knows nothing yet: whatever the features, every class gets the same logit."""
        self.head = Head(self.config.features, self.config.num_classes)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {f"blocks.{i}": block for i, block in enumerate(self.blocks)}

    def map_shape(self, block: str) -> tuple[int, int]:
        return self.config.dim, self.config.patch_size

    def to_map(self, output: Float[Tensor, "B N D"]) -> Float[Tensor, "B D rows columns"]:
        return tokens_to_map(output, self.config.layout)

    @torch.no_grad()
    def init_weights(self) -> None:
        """As its code begins pre-training.

        | what | how |
        |---|---|
        | linear layers, patches, class token | N(0, 0.02), cut at one deviation |
        | last linear layer of both branches in block i = 1, 2, … | the same, divided by √(2 i) |
        | every bias, relative bias | 0 |
        | norms | 1 and 0 |
        | LayerScale | its initial value |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Linear() | nn.Conv2d():
                    trunc_normal_(module.weight)
                    zero_(module.bias)
                case nn.LayerNorm():
                    nn.init.ones_(module.weight)
                    zero_(module.bias)
                case LayerScale():
                    nn.init.constant_(module.factor, module.initial)
                case RelativeBias():
                    zero_(module.table)
                case SelfAttention():
                    zero_(module.qv_bias)
        blocks = (module for module in self.modules() if isinstance(module, Block))
        for number, block in enumerate(blocks, start=1):
            for last in (block.attention.out, block.mlp.fc2):
                last.weight.div_(math.sqrt(2 * number))
        trunc_normal_(self.cls)
        self.head.init_weights()


def trunc_normal_(weight: Tensor, std: float = 0.02) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-std, b=std)
