"""MobileViT (arXiv:2110.02178): convolutions that hand their map to a transformer and take it back.

    image ── stem ── stages ── last ── pool ── head
    B C H W   H/2     H/32      H/32    B D     B K

Two stages of inverted residuals, then three of one inverted residual and one MobileViT block each:

    x ── local ── embed ── unfold ── blocks ── norm ── fold ── project ── fuse with x
         3x3      1x1      B P N D   B P N D           B D H W   1x1       3x3

Axes: B batch · C channels · H W image or map · P places in a patch · N patches · D width
      h heads · d head width · K classes
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import Attend, split_qkv
from vitrail.layers.drop import DropPath, linear_drop_rates
from vitrail.layers.fold import fold, round_up, unfold
from vitrail.layers.head import Head
from vitrail.layers.init import zero_
from vitrail.layers.inverted import ConvNorm, mobile_stages
from vitrail.layers.linear import Linear
from vitrail.layers.mlp import MLP
from vitrail.models.config import Config, Input, Numerics, Runtime, Shape
from vitrail.models.limits import check_counts, check_factors
from vitrail.models.model import Model, stage_of
from vitrail.models.variant import Variant

INVERTED = (1, 3)  # inverted residuals of the first two stages
STRIDES = (2, 4, 8, 16, 32)  # pixels a side for one cell of each stage's map


@dataclass(frozen=True, kw_only=True)
class MobileViTConfig(Config):
    """Everything that decides what a MobileViT computes.

    `widths` are the channels of the five stages, `dims` and `depths` the transformers of the last
    three. No tensor depends on the image: `image_size` is the one that the layouts of attention
    are for, and a model reads images of any size.
    """

    image_size: Input[tuple[int, int]] = (256, 256)
    stem: Shape[int] = 16
    widths: Shape[tuple[int, int, int, int, int]]
    dims: Shape[tuple[int, int, int]]
    depths: Shape[tuple[int, int, int]] = (2, 4, 3)
    heads: Numerics[int]
    last: Shape[int]  # channels of the last convolution, which the head reads
    expand: Shape[float] = 4.0  # hidden channels of an inverted residual, a multiple of its input's
    mlp_ratio: Shape[float] = 2.0
    patch_size: Numerics[int] = 2  # cells of a map
    norm_eps: Numerics[float] = 1e-5
    dropout: Runtime[float] = 0.0  # after attention, after the MLP and before the head

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("stem", "widths", "dims", "depths", "heads", "last", "patch_size")
        check_counts(self, *positive, least=1)
        check_factors(self, "expand", "mlp_ratio")
        if int(min(self.dims) * self.mlp_ratio) < 1:
            raise UserError(f"mlp_ratio must leave the MLP a channel, got {self.mlp_ratio}")
        for dim in self.dims:
            if dim % self.heads:
                raise UserError(
                    f"dims must be multiples of heads ({self.heads}), got {dim} in {self.dims}"
                )

    @property
    def layouts(self) -> tuple[TokenLayout, ...]:
        """Where the tokens of each of the three transformers lie."""
        patch = self.patch_size
        height, width = self.image_size
        return tuple(
            TokenLayout(
                grid=(round_up(-(-height // stride), patch), round_up(-(-width // stride), patch)),
                stride=stride,
                fold=(patch, patch),
            )
            for stride in STRIDES[2:]
        )

    @property
    def features(self) -> int:
        return self.last

    @property
    def tokens(self) -> int:
        rows, columns = self.layouts[0].grid
        return rows * columns


XXS = MobileViTConfig(widths=(16, 24, 48, 64, 80), dims=(64, 80, 96), heads=4, last=320, expand=2.0)
XS = MobileViTConfig(widths=(32, 48, 64, 80, 96), dims=(96, 120, 144), heads=4, last=384)
S = MobileViTConfig(widths=(32, 64, 96, 128, 160), dims=(144, 192, 240), heads=4, last=640)

# The paper's three sizes, as its code has them.
VARIANTS = {
    "mobilevit_xxs": Variant(XXS, params=1_272_024, macs=407_364_096),
    "mobilevit_xs": Variant(XS, params=2_317_848, macs=1_025_911_808),
    "mobilevit_s": Variant(S, params=5_578_632, macs=2_000_831_488),
}


class PlaceAttention(nn.Module):
    """Multi-head attention among the cells at the same place of every patch."""

    def __init__(self, layout: TokenLayout, *, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim)
        self.attend = Attend(layout)
        self.out = Linear(dim, dim)

    def forward(self, x: Float[Tensor, "B P N D"]) -> Float[Tensor, "B P N D"]:
        q, k, v = split_qkv(self.qkv(x), self.heads)
        return self.out(rearrange(self.attend(q, k, v), "B P h N d -> B P N (h d)"))


class Block(nn.Module):
    """A transformer's block, norm first, with SiLU."""

    def __init__(
        self, config: MobileViTConfig, layout: TokenLayout, dim: int, drop_path: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attention = PlaceAttention(layout, dim=dim, heads=config.heads)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = MLP(dim, int(dim * config.mlp_ratio), activation="silu", dropout=0.0)
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B P N D"]) -> Float[Tensor, "B P N D"]:
        return self.drop_path(self.drop_path(x, self.attention_branch), self.mlp_branch)

    def attention_branch(self, x: Float[Tensor, "B P N D"]) -> Float[Tensor, "B P N D"]:
        return self.dropout(self.attention(self.norm1(x)))

    def mlp_branch(self, x: Float[Tensor, "B P N D"]) -> Float[Tensor, "B P N D"]:
        return self.dropout(self.mlp(self.norm2(x)))


class MobileViTBlock(nn.Module):
    """Figure 1b: what a 3x3 convolution sees nearby, a transformer connects with what lies far
    away. Each pixel of a patch meets those at its place in every other patch; together with the
    convolution it has then met all."""

    def __init__(self, config: MobileViTConfig, stage: int, drop_paths: list[float]) -> None:
        super().__init__()
        width, dim = config.widths[2 + stage], config.dims[stage]
        layout = config.layouts[stage]
        self.patch = config.patch_size
        self.local = ConvNorm(width, width, 3)
        self.embed = nn.Conv2d(width, dim, 1, bias=False)
        self.blocks = nn.ModuleList(Block(config, layout, dim, rate) for rate in drop_paths)
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.project = ConvNorm(dim, width, 1)
        self.fuse = ConvNorm(2 * width, width, 3)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        y = self.connect(self.embed(F.silu(self.local(x))))
        y = F.silu(self.project(y))
        return F.silu(self.fuse(torch.cat([x, y], dim=1)))

    def connect(self, x: Float[Tensor, "B D H W"]) -> Float[Tensor, "B D H W"]:
        """A map that patches do not divide is stretched until they do, and shrunk afterwards."""
        height, width = x.shape[2:]
        size = round_up(height, self.patch), round_up(width, self.patch)
        stretched = size != (height, width)
        if stretched:
            x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        tokens = rearrange(unfold(x, self.patch), "B D P N -> B P N D").contiguous()
        for block in self.blocks:
            tokens = block(tokens)
        tokens = rearrange(self.norm(tokens), "B P N D -> B D P N")
        x = fold(tokens, self.patch, rows=size[0] // self.patch)
        if stretched:
            x = F.interpolate(x, (height, width), mode="bilinear", align_corners=False)
        return x


class MobileViT(Model):
    """
    >>> MobileViT(XXS)(torch.zeros(2, 3, 160, 224)).shape
    torch.Size([2, 1000])
    """

    any_size = True

    def __init__(self, config: MobileViTConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = ConvNorm(config.channels, config.stem, 3, 2)
        rates = linear_drop_rates(config.drop_path, config.depths)
        self.stages = nn.Sequential(
            *mobile_stages(
                (config.stem, *config.widths),
                counts=INVERTED,
                expand=config.expand,
                then=lambda number: MobileViTBlock(config, number, rates[number]),
            )
        )
        self.last = ConvNorm(config.widths[-1], config.last, 1)
        self.dropout = nn.Dropout(config.dropout)
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.dropout(self.features(image)))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.encode(image).mean(dim=(2, 3))

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        x = F.silu(self.stem(self.check(image)))
        return F.silu(self.last(self.stages(x)))

    def attach_head(self) -> None:
        self.head = Head(self.config.features, self.config.num_classes)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        blocks = {
            f"stages.{s}.{b}": block
            for s, stage in enumerate(self.stages.children())
            for b, block in enumerate(stage.children())
        }
        return {**blocks, "last": self.last}

    def map_shape(self, block: str) -> tuple[int, int] | None:
        if block == "last":  # before its activation: `encode` returns the map
            return None
        return self.config.widths[stage_of(block)], STRIDES[stage_of(block)]

    @torch.no_grad()
    def init_weights(self) -> None:
        """As the paper's code does.

        | what | how |
        |---|---|
        | convolutions | N(0, 2/fan_out) |
        | linear layers | truncated N(0, 0.02) |
        | every bias | 0 |
        | norms | 1 and 0; running mean 0 and variance 1 |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Linear():
                    nn.init.trunc_normal_(module.weight, std=0.02)
                    zero_(module.bias)
                case nn.Conv2d():
                    nn.init.kaiming_normal_(module.weight, mode="fan_out")
                case nn.LayerNorm() | nn.BatchNorm2d():
                    module.reset_parameters()
        self.head.init_weights()
