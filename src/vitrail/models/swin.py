"""Swin Transformer (arXiv:2103.14030): attention within windows that shift from block to block.

    image ── patches ── stage 1 ── stage 2 ── stage 3 ── stage 4 ── norm ── pool ── head
    B C H W   1/4, D     1/4, D     1/8, 2D   1/16, 4D   1/32, 8D            B 8D    B K

Axes: B batch · C channels · H W image · D width · W windows · n cells of one · h heads · d head
width · K classes. Between attentions tokens lie on their grid: B rows columns D.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout, WindowPolicy
from vitrail.layers.attention import Attend, split_qkv
from vitrail.layers.drop import DropPath, linear_drop_rates
from vitrail.layers.head import Head
from vitrail.layers.init import zero_
from vitrail.layers.linear import Linear
from vitrail.layers.mlp import MLP
from vitrail.layers.patch import PatchEmbedding
from vitrail.layers.relative import RelativeBias
from vitrail.layers.window import (
    Grid,
    ShiftMask,
    join_heads,
    lay_windows,
    merge_neighbours,
    window_of,
    window_partition,
    window_reverse,
)
from vitrail.models.config import Config, Numerics, Runtime, Shape
from vitrail.models.limits import check_computed, check_counts, check_multiple
from vitrail.models.model import Model, stage_of
from vitrail.models.variant import Variant


@dataclass(frozen=True, kw_only=True)
class SwinConfig(Config):
    """Everything that decides what a Swin computes.

    `depths` and `heads` are per stage; each stage has twice the width of the one before and half
    of its grid. `window_policy` says what happens where windows do not divide a grid, which no
    file tells:
    `layers/window.py` has the ways that are known.
    """

    dim: Shape[int]  # of the first stage
    depths: Shape[tuple[int, ...]]
    heads: Shape[tuple[int, ...]]
    window_size: Shape[int] = 7
    patch_size: Shape[int] = 4
    mlp_ratio: Shape[float] = 4.0
    window_policy: Numerics[WindowPolicy] = "paper"
    norm_eps: Numerics[float] = 1e-5
    dropout: Runtime[float] = 0.0  # after embedding, attention and both linear layers of the MLP

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "dim", "window_size", "patch_size", least=1)
        check_stages(self.dim, self.depths, self.heads, self.mlp_ratio)
        check_multiple(self.image_size, self.patch_size, "patch")
        pairs = self.layout(0, 0).tokens ** 2
        check_computed(pairs, f"window_size {self.window_size}")

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches, which are those of the first stage."""
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def features(self) -> int:
        return self.width(len(self.depths) - 1)

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    def width(self, stage: int) -> int:
        return self.dim * 2**stage

    def mlp_dim(self, stage: int) -> int:
        return round(self.width(stage) * self.mlp_ratio)

    def layout(self, stage: int, block: int) -> TokenLayout:
        """Every second block shifts its windows."""
        return lay_windows(
            self.grid,
            merged=stage,
            patch_size=self.patch_size,
            size=self.window_size,
            shifted=block % 2 == 1,
            window_policy=self.window_policy,
        )


def check_stages(
    dim: int, depths: tuple[int, ...], heads: tuple[int, ...], mlp_ratio: float
) -> None:
    """What a Swin of either version may be made of."""
    if not 1 <= len(depths) <= 8 or any(not 1 <= depth <= 1024 for depth in depths):
        raise UserError(f"depths must be 1 to 8 stages of 1 to 1024 blocks, got {depths}")
    if len(heads) != len(depths):
        raise UserError(f"heads must have one value for each of {len(depths)} stages, got {heads}")
    for stage, count in enumerate(heads):
        if count < 1 or dim * 2**stage % count:
            raise UserError(
                f"the width of stage {stage + 1} must be a multiple of its heads, got "
                f"{dim * 2**stage} and {count}"
            )
    if not 0 < mlp_ratio <= 64 or round(dim * mlp_ratio) < 1:
        raise UserError(f"mlp_ratio must be in (0, 64], got {mlp_ratio}")


T = SwinConfig(dim=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24))
S = replace(T, depths=(2, 2, 18, 2))
B = replace(S, dim=128, heads=(4, 8, 16, 32))
L = replace(S, dim=192, heads=(6, 12, 24, 48))


def at_384_pixels(config: SwinConfig) -> SwinConfig:
    """Fine-tuned on 384 pixels with windows of 12."""
    return replace(config, image_size=(384, 384), window_size=12)


# Section 3.3 and table 1 of the paper.
# fmt: off
VARIANTS = {
    "swin_t": Variant(T, params=28_288_354, macs=4_490_566_656),
    "swin_s": Variant(S, params=49_606_258, macs=8_740_875_264),
    "swin_b": Variant(B, params=87_768_224, macs=15_430_946_816),
    "swin_b_384": Variant(at_384_pixels(B), params=87_903_584, macs=47_083_134_976),
    "swin_l": Variant(L, params=196_532_476, macs=34_475_759_616),
    "swin_l_384": Variant(at_384_pixels(L), params=196_735_516, macs=103_919_087_616),
}
# fmt: on

# timm's names; torchvision's are ours already
ALIASES = {
    "swin_tiny_patch4_window7_224": "swin_t",
    "swin_small_patch4_window7_224": "swin_s",
    "swin_base_patch4_window7_224": "swin_b",
    "swin_base_patch4_window12_384": "swin_b_384",
    "swin_large_patch4_window7_224": "swin_l",
    "swin_large_patch4_window12_384": "swin_l_384",
}


class WindowAttention(nn.Module):
    """Eq. 4: attention within windows, biased by the offset between two cells."""

    def __init__(self, layout: TokenLayout, *, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim)
        self.bias = RelativeBias(window_of(layout), heads)
        self.mask = ShiftMask(layout)
        self.attend = Attend(layout)
        self.out = Linear(dim, dim)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        qkv = self.qkv(window_partition(x, self.attend.layout))
        q, k, v = split_qkv(qkv, self.heads)
        y = self.attend(q, k, v, self.mask(self.bias()))
        return window_reverse(self.out(join_heads(y)), self.attend.layout)


class Block(nn.Module):
    """Eq. 3: norm first, then add."""

    def __init__(self, config: SwinConfig, stage: int, block: int, drop_path: float) -> None:
        super().__init__()
        dim = config.width(stage)
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attention = WindowAttention(
            config.layout(stage, block), dim=dim, heads=config.heads[stage]
        )
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = MLP(dim, config.mlp_dim(stage), activation="gelu", dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        return self.drop_path(self.drop_path(x, self.attention_branch), self.mlp_branch)

    def attention_branch(
        self, x: Float[Tensor, "B rows columns D"]
    ) -> Float[Tensor, "B rows columns D"]:
        return self.dropout(self.attention(self.norm1(x)))

    def mlp_branch(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        return self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """Two by two cells become one of twice the width."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, eps=eps)
        self.reduction = Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B r c twoD"]:
        return self.reduction(self.norm(merge_neighbours(x)))


class Stage(nn.Module):
    """Blocks on one grid; all but the first stage begin by merging the grid of the one before."""

    def __init__(self, merge: nn.Module | None, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.merge = merge
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B r c E"]:
        if self.merge is not None:
            x = self.merge(x)
        for block in self.blocks:
            x = block(x)
        return x


class Swin(Model):
    """
    >>> Swin(replace(VARIANTS["swin_t"].config, num_classes=10))(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 10])
    """

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = PatchEmbedding(config.channels, config.dim, config.patch_size)
        self.embed_norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        rates = linear_drop_rates(config.drop_path, config.depths)
        self.stages = nn.ModuleList(map(self.make_stage, range(len(rates)), rates))
        self.norm = nn.LayerNorm(config.features, eps=config.norm_eps)
        self.attach_head()
        self.init_weights()

    def make_stage(self, stage: int, rates: list[float]) -> Stage:
        """`rates` of stochastic depth, one for each block."""
        config = self.config
        merge = PatchMerging(config.width(stage - 1), config.norm_eps) if stage else None
        return Stage(merge, [Block(config, stage, block, rate) for block, rate in enumerate(rates)])

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.features(image))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E"]:
        return self.encode(image).mean(dim=(1, 2))

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B rows columns E"]:
        return self.forward_blocks(self.embed(image))

    def embed(
        self,
        image: Float[Tensor, "B C H W"],
        corrupt: Callable[[Float[Tensor, "B N D"]], Float[Tensor, "B N D"]] | None = None,
    ) -> Float[Tensor, "B rows columns D"]:
        """The normed patches, which `corrupt` may change in reading order, on their grid."""
        x = self.embed_norm(self.patches(self.check(image)))
        if corrupt is not None:
            x = corrupt(x)
        return self.dropout(x.unflatten(1, self.config.grid))

    def forward_blocks(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B r c E"]:
        """What `embed` gives through every stage."""
        for stage in self.stages:
            x = stage(x)
        return self.norm(x)

    def attach_head(self) -> None:
        """A head that knows nothing yet: whatever the features, every class gets the same logit."""
        self.head = Head(self.config.features, self.config.num_classes)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        """Merging is a step of its own, because no block contains it."""
        step = re.compile(r"stages\.\d+\.(merge|blocks\.\d+)")
        return {name: module for name, module in self.named_modules() if step.fullmatch(name)}

    def map_shape(self, block: str) -> tuple[int, int]:
        stage = stage_of(block)
        return self.config.width(stage), self.config.patch_size * 2**stage

    def to_map(
        self, output: Float[Tensor, "B rows columns D"]
    ) -> Float[Tensor, "B D rows columns"]:
        return output.movedim(-1, 1)

    @torch.no_grad()
    def init_weights(self) -> None:
        """As the paper's code does.

        | what | how |
        |---|---|
        | linear layers, tables of relative bias | truncated N(0, 0.02) |
        | their biases | 0 |
        | patch kernels and their biases | uniform, at most 1/√fan_in |
        | norms | 1 and 0 |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Linear():
                    nn.init.trunc_normal_(module.weight, std=0.02)
                    zero_(module.bias)
                case nn.Conv2d() | nn.LayerNorm():
                    module.reset_parameters()
                case RelativeBias():
                    nn.init.trunc_normal_(module.table, std=0.02)
        self.head.init_weights()
