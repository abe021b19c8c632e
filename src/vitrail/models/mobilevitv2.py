"""MobileViT V2 (arXiv:2206.02680): attention whose cost grows with the tokens, not their square.

    image ── stem ── stages ── pool ── head
    B C H W   H/2     H/32      B D     B K

Stages as in MobileViT; a MobileViT V2 block is one branch that is not fused with what came in:

    x ── local ── embed ── unfold ── blocks ── norm ── fold ── project
         3x3      1x1      B D P N   B D P N           B D H W   1x1

Axes: B batch · C channels · H W image or map · P places in a patch · N patches · D width
      K classes
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import SeparableAttend
from vitrail.layers.drop import DropPath, linear_drop_rates
from vitrail.layers.fold import fold, round_up, unfold
from vitrail.layers.head import Head
from vitrail.layers.init import zero_
from vitrail.layers.inverted import ConvNorm, mobile_stages
from vitrail.models.config import Config, Input, Numerics, Runtime, Shape
from vitrail.models.limits import check_counts, check_factors
from vitrail.models.model import Model, stage_of
from vitrail.models.variant import Variant

INVERTED = (1, 2)  # inverted residuals of the first two stages


@dataclass(frozen=True, kw_only=True)
class MobileViTV2Config(Config):
    """Everything that decides what a MobileViT V2 computes.

    `widths` are the channels of the five stages, `dims` and `depths` the transformers of the last
    three. No tensor depends on the image: `image_size` is the one that the layouts of attention
    are for, and a model reads images of any size.
    """

    image_size: Input[tuple[int, int]] = (256, 256)
    stem: Shape[int]
    widths: Shape[tuple[int, int, int, int, int]]
    dims: Shape[tuple[int, int, int]]
    depths: Shape[tuple[int, int, int]] = (2, 4, 3)
    expand: Shape[float] = 2.0  # hidden channels of an inverted residual, a multiple of its input's
    mlp_ratio: Shape[float] = 2.0
    patch_size: Numerics[int] = 2  # cells of a map
    norm_eps: Numerics[float] = 1e-5
    dropout: Runtime[float] = 0.0  # after attention, after the MLP and before the head

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("stem", "widths", "dims", "depths", "patch_size")
        check_counts(self, *positive, least=1)
        check_factors(self, "expand", "mlp_ratio")
        if int(min(self.dims) * self.mlp_ratio) < 1:
            raise UserError(f"mlp_ratio must leave the MLP a channel, got {self.mlp_ratio}")

    @property
    def layouts(self) -> tuple[TokenLayout, ...]:
        """Where the tokens of each of the three transformers lie."""
        patch, found = self.patch_size, []
        rows, columns = (-(-side // 4) for side in self.image_size)
        for stride in (8, 16, 32):  # a map that was stretched goes on as it is
            rows, columns = (round_up(-(-side // 2), patch) for side in (rows, columns))
            found.append(
                TokenLayout(
                    grid=(rows, columns), stride=stride, fold=(patch, patch), separable=True
                )
            )
        return tuple(found)

    @property
    def features(self) -> int:
        return self.widths[-1]

    @property
    def tokens(self) -> int:
        rows, columns = self.layouts[0].grid
        return rows * columns


def with_width(factor: float) -> MobileViTV2Config:
    """Every width by the same factor."""
    stem, *widths = (int(width * factor) for width in (32, 64, 128, 256, 384, 512))
    first, second, third, fourth, fifth = widths
    return MobileViTV2Config(
        stem=stem,
        widths=(first, second, third, fourth, fifth),
        dims=(third // 2, fourth // 2, fifth // 2),
    )


# From half to twice the width, as the paper's code has them.
VARIANTS = {
    "mobilevitv2_050": Variant(with_width(0.5), params=1_370_593, macs=464_594_944),
    "mobilevitv2_075": Variant(with_width(0.75), params=2_866_009, macs=1_027_980_288),
    "mobilevitv2_100": Variant(with_width(1.0), params=4_901_841, macs=1_812_090_880),
    "mobilevitv2_125": Variant(with_width(1.25), params=7_478_089, macs=2_816_926_720),
    "mobilevitv2_150": Variant(with_width(1.5), params=10_594_753, macs=4_042_487_808),
    "mobilevitv2_175": Variant(with_width(1.75), params=14_251_833, macs=5_488_774_144),
    "mobilevitv2_200": Variant(with_width(2.0), params=18_449_329, macs=7_155_785_728),
}


class SeparableAttention(nn.Module):
    """One score a token instead of one for each pair; the context that these make of
    the keys is multiplied into every value."""

    def __init__(self, layout: TokenLayout, dim: int) -> None:
        super().__init__()
        self.parts = [1, dim, dim]
        self.qkv = nn.Conv2d(dim, sum(self.parts), 1)
        self.attend = SeparableAttend(layout)
        self.out = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Float[Tensor, "B D P N"]) -> Float[Tensor, "B D P N"]:
        scores, keys, values = self.qkv(x).split(self.parts, dim=1)
        return self.out(F.relu(values) * self.attend(scores, keys))


class PointwiseMLP(nn.Module):
    """Two layers for each token by itself, with channels first."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(dim, hidden, 1)
        self.fc2 = nn.Conv2d(hidden, dim, 1)

    def forward(self, x: Float[Tensor, "B D P N"]) -> Float[Tensor, "B D P N"]:
        return self.fc2(F.silu(self.fc1(x)))


class Block(nn.Module):
    """A transformer's block, norm first; a norm is over all channels, places and patches."""

    def __init__(
        self, config: MobileViTV2Config, layout: TokenLayout, dim: int, drop_path: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(1, dim, eps=config.norm_eps)
        self.attention = SeparableAttention(layout, dim)
        self.norm2 = nn.GroupNorm(1, dim, eps=config.norm_eps)
        self.mlp = PointwiseMLP(dim, int(dim * config.mlp_ratio))
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B D P N"]) -> Float[Tensor, "B D P N"]:
        return self.drop_path(self.drop_path(x, self.attention_branch), self.mlp_branch)

    def attention_branch(self, x: Float[Tensor, "B D P N"]) -> Float[Tensor, "B D P N"]:
        return self.dropout(self.attention(self.norm1(x)))

    def mlp_branch(self, x: Float[Tensor, "B D P N"]) -> Float[Tensor, "B D P N"]:
        return self.dropout(self.mlp(self.norm2(x)))


class MobileViTV2Block(nn.Module):
    """A map that patches do not divide is stretched until they do, and stays so."""

    def __init__(self, config: MobileViTV2Config, stage: int, drop_paths: list[float]) -> None:
        super().__init__()
        width, dim = config.widths[2 + stage], config.dims[stage]
        layout = config.layouts[stage]
        self.patch = config.patch_size
        self.local = ConvNorm(width, width, 3, groups=width)
        self.embed = nn.Conv2d(width, dim, 1, bias=False)
        self.blocks = nn.ModuleList(Block(config, layout, dim, rate) for rate in drop_paths)
        self.norm = nn.GroupNorm(1, dim, eps=config.norm_eps)
        self.project = ConvNorm(dim, width, 1)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C rows columns"]:
        height, width = (round_up(side, self.patch) for side in x.shape[2:])
        if (height, width) != tuple(x.shape[2:]):
            x = F.interpolate(x, (height, width), mode="bilinear", align_corners=True)
        tokens = unfold(self.embed(F.silu(self.local(x))), self.patch)
        for block in self.blocks:
            tokens = block(tokens)
        return self.project(fold(self.norm(tokens), self.patch, rows=height // self.patch))


class MobileViTV2(Model):
    """
    >>> MobileViTV2(with_width(0.5))(torch.zeros(2, 3, 160, 224)).shape
    torch.Size([2, 1000])
    """

    any_size = True

    def __init__(self, config: MobileViTV2Config) -> None:
        super().__init__()
        self.config = config
        self.stem = ConvNorm(config.channels, config.stem, 3, 2)
        rates = linear_drop_rates(config.drop_path, config.depths)
        self.stages = nn.Sequential(
            *mobile_stages(
                (config.stem, *config.widths),
                counts=INVERTED,
                expand=config.expand,
                then=lambda number: MobileViTV2Block(config, number, rates[number]),
            )
        )
        self.dropout = nn.Dropout(config.dropout)
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.dropout(self.features(image)))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.encode(image).mean(dim=(2, 3))

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.stages(F.silu(self.stem(self.check(image))))

    def attach_head(self) -> None:
        self.head = Head(self.config.features, self.config.num_classes)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {
            f"stages.{s}.{b}": block
            for s, stage in enumerate(self.stages.children())
            for b, block in enumerate(stage.children())
        }

    def map_shape(self, block: str) -> tuple[int, int]:
        stage = stage_of(block)
        return self.config.widths[stage], 2 ** (stage + 1)

    @torch.no_grad()
    def init_weights(self) -> None:
        """As the paper's code does.

        | what | how |
        |---|---|
        | convolutions, 1x1 ones too | N(0, 2/fan_out) |
        | every bias | 0 |
        | norms | 1 and 0; running mean 0 and variance 1 |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Conv2d():
                    nn.init.kaiming_normal_(module.weight, mode="fan_out")
                    zero_(module.bias)
                case nn.GroupNorm() | nn.BatchNorm2d():
                    module.reset_parameters()
        self.head.init_weights()
