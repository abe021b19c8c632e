"""CoAtNet (arXiv:2106.04803): convolutions while the image is large, attention when it is small.

    image ── stem ── C stages ── T stages ── pool ── norm ── head
    B C H W   H/2     H/4 H/8     H/16 H/32   B D     B D     B K

C is an inverted bottleneck with squeeze-excitation, T a transformer block whose attention has a
bias for every 2-D offset. The first block of a stage halves the sides of the map.
Axes: B batch · C channels · H W image · D width · N cells of a map · h heads · d head width
      K classes
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import Attend
from vitrail.layers.drop import (
    BatchDropPath,
    DropPath,
    LayerScale,
    linear_drop_rates,
    make_layer_scale,
)
from vitrail.layers.head import Head
from vitrail.layers.init import zero_
from vitrail.layers.linear import Linear
from vitrail.layers.mlp import MLP, make_activation
from vitrail.layers.norm import BatchNorm
from vitrail.layers.relative import ComputedBias, RelativeBias
from vitrail.layers.squeeze import SqueezeExcite
from vitrail.models.config import Classifier, Config, Numerics, Runtime, Shape
from vitrail.models.limits import check_computed, check_counts
from vitrail.models.model import Model, stage_of
from vitrail.models.variant import Variant

EXPANSION = 4  # hidden channels for each that a block has


@dataclass(frozen=True, kw_only=True)
class CoAtNetConfig(Config):
    """Everything that decides what a CoAtNet computes.

    `kinds` has a letter for each stage, C or T. The defaults are timm's reading of the paper; what
    timm's own "rw" models do otherwise has a field each, from `widening` on.
    """

    stem: Shape[tuple[int, int]]  # widths of its two convolutions
    dims: Shape[tuple[int, ...]]  # of the stages
    depths: Shape[tuple[int, ...]]  # blocks in each stage
    kinds: Shape[str] = "CCTT"
    strides: Shape[tuple[int, ...] | None] = None  # of each stage's first block; None: 2
    dim_head: Shape[int] = 32
    head: Classifier[Literal["linear", "pretrain"]] = "pretrain"
    # after pooling, or on every cell before it
    final_norm: Numerics[Literal["pooled", "cells"]] = "pooled"
    norm_eps: Numerics[float] = 1e-6  # of LayerNorm
    dropout: Runtime[float] = 0.0  # after attention and both linear layers of the MLP
    # where a stage's first block takes on its new width: in its first layer, or in its last
    widening: Shape[Literal["early", "late"]] = "early"
    pooling: Numerics[Literal["mean", "max"]] = "mean"  # of shortcuts, and before attention
    # in the branch of a C block
    downsampling: Numerics[Literal["convolution", "pool"]] = "convolution"
    activation: Numerics[Literal["gelu", "silu"]] = "gelu"  # of C blocks and the stem
    preactivation: Numerics[bool] = False  # another one, after the first norm of a C block
    squeeze: Shape[int] = 16  # hidden channels for each that squeeze-excitation has
    squeeze_activation: Numerics[Literal["silu", "relu"]] = "silu"
    early_squeeze: Numerics[bool] = False  # before the norm, not after norm and activation
    conv_bias: Shape[bool] = True  # of a C block's last layer and shortcut
    shortcut_bias: Shape[bool] = True  # of a T block's shortcut
    # hidden units of the MLP that computes attention's bias; None: the bias is a table
    bias_hidden: Shape[int | None] = None
    layer_scale: Shape[float | None] = None  # in T blocks

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("stem", "dims", "depths", "strides", "dim_head", "squeeze")
        check_counts(self, *positive, "bias_hidden", least=1)
        if set(self.kinds) - {"C", "T"} or "T" not in self.kinds or len(self.kinds) > 8:
            raise UserError(
                f'kinds must be up to 8 letters, C and T, such as "CCTT", got {self.kinds!r}'
            )
        for name in ("dims", "depths", "steps"):
            if len(getattr(self, name)) != len(self.kinds):
                raise UserError(
                    f"{name} must have one value for each of {self.kinds!r}, got "
                    f"{getattr(self, name)}"
                )
        befores = (self.stem[1], *self.dims[:-1])
        for before, dim, kind in zip(befores, self.dims, self.kinds, strict=True):
            for width in (dim, *([before] if self.widening == "late" else [])):
                if kind == "T" and width % self.dim_head:
                    raise UserError(f"width {width} must be a multiple of dim_head {self.dim_head}")
        for side in self.image_size:
            if math.ceil(side / 2) % (self.stride // 2):  # the stem rounds up, no other layer does
                low = max(side // self.stride, 1) * self.stride
                raise UserError(
                    f"image side {side} is not a multiple of {self.stride}: "
                    f"use {low} or {low + self.stride}"
                )
        grids = zip(self.kinds, self.depths, (layout.grid for layout in self.layouts), strict=True)
        pairs = sum(depth * max(grid) ** 2 for kind, depth, grid in grids if kind == "T")
        check_computed(8 * pairs, "relative attention")

    @property
    def steps(self) -> tuple[int, ...]:
        """By how much each stage shrinks the sides of the map."""
        return (2,) * len(self.kinds) if self.strides is None else self.strides

    @property
    def stride(self) -> int:
        """Pixels a side for one cell of the last map."""
        return 2 * math.prod(self.steps)

    @property
    def layouts(self) -> tuple[TokenLayout, ...]:
        """Where the cells of each stage lie in the image."""
        strides = [2 * math.prod(self.steps[: i + 1]) for i in range(len(self.steps))]
        height, width = self.image_size
        return tuple(
            TokenLayout(grid=(math.ceil(height / side), math.ceil(width / side)), stride=side)
            for side in strides
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns that the first attention works on."""
        return self.layouts[self.kinds.index("T")].grid

    @property
    def features(self) -> int:
        return self.dims[-1]

    @property
    def tokens(self) -> int:
        return self.layouts[self.kinds.index("T")].tokens


def paper(stem: int, dims: tuple[int, ...], depths: tuple[int, ...]) -> CoAtNetConfig:
    return CoAtNetConfig(stem=(stem, stem), dims=dims, depths=depths)


# Table 3 of the paper; 5 from table 11, 6 and 7 from table 12, whose third stage begins with
# convolutions at half its width. The paper gives 5 heads of 64; timm, followed here, heads of 32.
# Table 12 prints a last stage of 2048 for 6, but only 3072 makes the 1.47 G parameters (1.35 with
# 2048) and the multiply-adds of table 5.
C0 = paper(64, (96, 192, 384, 768), (2, 3, 5, 2))
C1 = paper(64, (96, 192, 384, 768), (2, 6, 14, 2))
C2 = paper(128, (128, 256, 512, 1024), (2, 6, 14, 2))
C3 = paper(192, (192, 384, 768, 1536), (2, 6, 14, 2))
C4 = paper(192, (192, 384, 768, 1536), (2, 12, 28, 2))
C5 = paper(192, (256, 512, 1280, 2048), (2, 12, 28, 2))
C6 = CoAtNetConfig(
    stem=(192, 192),
    dims=(192, 384, 768, 1536, 3072),
    depths=(2, 4, 8, 42, 2),
    kinds="CCCTT",
    strides=(2, 2, 2, 1, 2),
    dim_head=128,
)
C7 = replace(C6, dims=(256, 512, 1024, 2048, 3072))

# fmt: off
VARIANTS = {
    "coatnet_0": Variant(C0, params=25_036_820, macs=4_546_507_776),
    "coatnet_1": Variant(C1, params=42_225_776, macs=8_643_499_008),
    "coatnet_2": Variant(C2, params=74_684_744, macs=16_427_134_976),
    "coatnet_3": Variant(C3, params=166_966_264, macs=36_453_156_864),
    "coatnet_4": Variant(C4, params=275_425_288, macs=62_316_840_960),
    "coatnet_5": Variant(C5, params=687_472_008, macs=145_264_287_744),
    "coatnet_6": Variant(C6, params=1_471_125_232, macs=267_975_757_824),
    "coatnet_7": Variant(C7, params=2_441_972_728, macs=462_188_531_712),
}
# timm's names
ALIASES = {f"coatnet_{number}_224": f"coatnet_{number}" for number in range(6)}
# fmt: on


class Stem(nn.Module):
    def __init__(self, config: CoAtNetConfig) -> None:
        super().__init__()
        first, second = config.stem
        self.conv1 = nn.Conv2d(config.channels, first, 3, stride=2, padding=1, bias=False)
        self.norm = BatchNorm(first)
        self.act = make_activation(config.activation)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1, bias=False)

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.conv2(self.act(self.norm(self.conv1(image))))


class MBConv(nn.Module):
    """Eq. 5, norm first: wide, depthwise, squeezed, narrow. The stride is the depthwise
    convolution's, which the paper found better than its own (table 9), or a pool's before it."""

    def __init__(
        self, config: CoAtNetConfig, before: int, after: int, *, stride: int, drop_path: float
    ) -> None:
        super().__init__()
        hidden = EXPANSION * (after if config.widening == "early" else before)
        pool, step = (stride, 1) if config.downsampling == "pool" else (1, stride)
        bias, act = config.conv_bias, partial(make_activation, config.activation)
        middle: list[tuple[str, nn.Module]] = [("norm2", BatchNorm(hidden)), ("act2", act())]
        squeeze = SqueezeExcite(
            hidden, max(hidden // config.squeeze, 1), activation=config.squeeze_activation
        )
        middle.insert(0 if config.early_squeeze else 2, ("squeeze", squeeze))
        layers: list[tuple[str, nn.Module]] = [
            ("norm", BatchNorm(before)),
            ("act", act() if config.preactivation else nn.Identity()),
            ("pool", nn.AvgPool2d(pool) if pool > 1 else nn.Identity()),
            ("expand", nn.Conv2d(before, hidden, 1, bias=False)),
            ("norm1", BatchNorm(hidden)),
            ("act1", act()),
            ("depthwise", nn.Conv2d(hidden, hidden, 3, step, 1, groups=hidden, bias=False)),
            *middle,
            ("project", nn.Conv2d(hidden, after, 1, bias=bias)),
        ]
        self.branch = nn.Sequential(OrderedDict(layers))
        self.shortcut = make_shortcut(config, before, after, stride=stride, bias=bias)
        self.drop_path = BatchDropPath(drop_path)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.drop_path(x, self.branch, self.shortcut)


class RelativeAttention(nn.Module):
    """Eq. 3: the logits of two cells plus a bias for the offset between them."""

    def __init__(self, config: CoAtNetConfig, layout: TokenLayout, before: int, after: int) -> None:
        super().__init__()
        inner = after if config.widening == "early" else before
        self.heads = inner // config.dim_head
        self.qkv = Linear(before, 3 * inner)
        self.bias = make_bias(config, layout.grid, self.heads)
        self.attend = Attend(layout)
        self.out = Linear(inner, after)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        q, k, v = rearrange(
            self.qkv(x.flatten(2).mT), "B N (three h d) -> three B h N d", three=3, h=self.heads
        )
        mixed = rearrange(self.attend(q, k, v, self.bias()), "B h N d -> B N (h d)")
        return self.out(mixed).mT.unflatten(2, x.shape[2:])


class TransformerBlock(nn.Module):
    """Eq. 4: where a stage begins, both the branch and its shortcut pool their input."""

    def __init__(
        self,
        config: CoAtNetConfig,
        layout: TokenLayout,
        before: int,
        after: int,
        *,
        stride: int,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(before, eps=config.norm_eps)
        self.pool = make_pool(config, stride)
        self.attention = RelativeAttention(config, layout, before, after)
        self.scale1 = make_layer_scale(after, config.layer_scale)
        self.shortcut = make_shortcut(
            config, before, after, stride=stride, bias=config.shortcut_bias
        )
        self.norm2 = nn.LayerNorm(after, eps=config.norm_eps)
        self.mlp = MLP(after, EXPANSION * after, activation="gelu", dropout=config.dropout)
        self.scale2 = make_layer_scale(after, config.layer_scale)
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        x = self.drop_path(x, self.attention_branch, self.shortcut)
        return self.drop_path(x, self.mlp_branch)

    def attention_branch(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        x = self.attention(self.pool(by_cell(self.norm1, x)))
        return by_cell(self.scale1, self.dropout(x))

    def mlp_branch(self, x: Float[Tensor, "B D H W"]) -> Float[Tensor, "B D H W"]:
        return by_cell(lambda cells: self.scale2(self.mlp(self.norm2(cells))), x)


class CoAtNet(Model):
    """
    >>> CoAtNet(replace(C0, num_classes=10, image_size=(64, 96)))(torch.zeros(1, 3, 64, 96)).shape
    torch.Size([1, 10])
    """

    no_decay = ("*.attention.bias.fc*",)

    def __init__(self, config: CoAtNetConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        self.stages = nn.ModuleList(make_stages(config))
        self.norm = nn.LayerNorm(config.features, eps=config.norm_eps)
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.features(image))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        x = self.encode(image).mean(dim=(2, 3))
        return self.norm(x) if self.config.final_norm == "pooled" else x

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        x = self.stem(self.check(image))
        for stage in self.stages:
            x = stage(x)
        return by_cell(self.norm, x) if self.config.final_norm == "cells" else x

    def attach_head(self) -> None:
        """A head that knows nothing yet: whatever the features, every class gets the same logit."""
        hidden = self.config.features if self.config.head == "pretrain" else None
        self.head = Head(self.config.features, self.config.num_classes, hidden=hidden)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {
            f"stages.{i}.{j}": block
            for i, stage in enumerate(self.stages)
            for j, block in enumerate(stage.children())
        }

    def map_shape(self, block: str) -> tuple[int, int]:
        stage = stage_of(block)
        return self.config.dims[stage], self.config.layouts[stage].stride

    @torch.no_grad()
    def init_weights(self) -> None:
        """As timm does; the paper does not say.

        | what | how |
        |---|---|
        | convolutions of the stem and of C blocks | N(0, 2/fan_out) |
        | layers of T blocks; q, k and v each for itself | Xavier uniform |
        | MLP biases | N(0, 1e-6) |
        | every other bias | 0 |
        | tables of attention's bias | N(0, 0.02), cut at two units |
        | perceptrons that compute it | torch's own |
        | norms | 1 and 0; running means 0, variances 1 |
        | LayerScale | its initial value |
        | last layer of the head | 0; a hidden one truncated N(0, 1/fan_in) |
        """
        for module in self.modules():
            match module:
                case nn.Conv2d():
                    fan_out = module.weight.shape[0] * module.weight[0, 0].numel() // module.groups
                    nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
                    zero_(module.bias)
                case nn.Linear():
                    nn.init.xavier_uniform_(module.weight)
                    zero_(module.bias)
                case nn.LayerNorm() | BatchNorm():
                    module.reset_parameters()
                case LayerScale():
                    nn.init.constant_(module.factor, module.initial)
                case RelativeBias():
                    nn.init.trunc_normal_(module.table, std=0.02)
        for module in self.modules():  # where a part differs from its kind
            match module:
                case TransformerBlock():
                    for layer in module.shortcut.children():
                        if isinstance(layer, nn.Conv2d):
                            nn.init.xavier_uniform_(layer.weight)
                case RelativeAttention():
                    for part in module.qkv.weight.chunk(3):
                        nn.init.xavier_uniform_(part)
                case MLP():
                    nn.init.normal_(module.fc1.bias, std=1e-6)
                    nn.init.normal_(module.fc2.bias, std=1e-6)
                case ComputedBias():
                    module.fc1.reset_parameters()
                    module.fc2.reset_parameters()
                case Head():
                    module.init_weights()


def by_cell(
    layer: Callable[[Float[Tensor, "B H W D"]], Float[Tensor, "B H W D"]],
    x: Float[Tensor, "B D H W"],
) -> Float[Tensor, "B D H W"]:
    """What works on the last axis, applied to the channels of a map."""
    return layer(x.movedim(1, -1)).movedim(-1, 1)


def make_stages(config: CoAtNetConfig) -> Iterator[nn.Sequential]:
    """Stages of blocks, the first of each with its stride and its new width; stochastic depth
    rises over all of them."""
    width, rates = config.stem[1], linear_drop_rates(config.drop_path, config.depths)
    for kind, dim, stage_rates, step, layout in zip(
        config.kinds, config.dims, rates, config.steps, config.layouts, strict=True
    ):
        blocks = []
        for i, rate in enumerate(stage_rates):
            stride = step if i == 0 else 1
            blocks.append(
                MBConv(config, width, dim, stride=stride, drop_path=rate)
                if kind == "C"
                else TransformerBlock(config, layout, width, dim, stride=stride, drop_path=rate)
            )
            width = dim
        yield nn.Sequential(*blocks)


def make_shortcut(
    config: CoAtNetConfig, before: int, after: int, *, stride: int, bias: bool
) -> nn.Module:
    """Pooled where the branch strides, projected where it widens."""
    if before == after and stride == 1:
        return nn.Identity()
    same = before == after
    project = nn.Identity() if same else nn.Conv2d(before, after, 1, bias=bias)
    return nn.Sequential(OrderedDict(pool=make_pool(config, stride), project=project))


def make_pool(config: CoAtNetConfig, stride: int) -> nn.Module:
    if stride == 1:
        return nn.Identity()
    if config.pooling == "mean":
        return nn.AvgPool2d(stride)
    return nn.MaxPool2d(2 * stride - 1, stride, padding=stride - 1)


def make_bias(
    config: CoAtNetConfig, grid: tuple[int, int], heads: int
) -> RelativeBias | ComputedBias:
    if config.bias_hidden is None:
        return RelativeBias(grid, heads)
    return ComputedBias(grid, heads, hidden=config.bias_hidden)
