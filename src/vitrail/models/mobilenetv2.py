"""MobileNetV2 (arXiv:1801.04381): inverted residuals, narrow between blocks and wide inside.

    image ── stem ── stages ── last ── pool ── head
    B C H W   H/2     H/32      H/32    B D     B K

1x1 up, 3x3 in each channel by itself, 1x1 down, with ReLU6 but at the narrow ends.
Axes: B batch · C channels · H W image or map · D width · K classes
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.layers.drop import BatchDropPath, linear_drop_rates
from vitrail.layers.head import Head
from vitrail.layers.inverted import ConvNorm
from vitrail.models.config import Config, Numerics, Runtime, Shape
from vitrail.models.limits import check_counts, check_factors
from vitrail.models.model import Model, stage_of
from vitrail.models.variant import Variant

# By how much each of the seven stages shrinks the map, and what it makes of the image after the
# stem has halved it.
STRIDES = (1, 2, 2, 2, 1, 2, 1)
REDUCTIONS = (2, 4, 8, 16, 16, 32, 32)
Seven = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class MobileNetV2Config(Config):
    """Everything that decides what a MobileNetV2 computes.

    `widths` are the channels of the seven stages, `depths` their blocks. A block is `expand` times
    as wide inside; in the first stage it is not widened. A model reads images of any size.
    """

    stem: Shape[int] = 32
    widths: Shape[Seven] = (16, 24, 32, 64, 96, 160, 320)
    depths: Shape[Seven] = (1, 2, 3, 4, 3, 3, 1)
    last: Shape[int] = 1280  # channels of the last convolution, which the head reads
    expand: Shape[float] = 6.0
    norm_eps: Numerics[float] = 1e-5
    dropout: Runtime[float] = 0.2  # before the head

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "stem", "widths", "depths", "last", least=1)
        check_factors(self, "expand")
        if round(min(self.widths) * self.expand) < 1:
            raise UserError(f"expand must leave a block a channel, got {self.expand}")

    @property
    def features(self) -> int:
        return self.last

    @property
    def tokens(self) -> int:
        return 0


PAPER = MobileNetV2Config()


def with_width(
    factor: float, depths: Seven = PAPER.depths, *, ends: bool = True
) -> MobileNetV2Config:
    """The paper's (6.1): so many times the channels, as multiples of 8; the last convolution only
    grows. Without `ends` the stem and the last convolution keep theirs."""
    a, b, c, d, e, f, g = (rounded(width * factor) for width in PAPER.widths)
    return MobileNetV2Config(
        stem=rounded(PAPER.stem * factor) if ends else PAPER.stem,
        widths=(a, b, c, d, e, f, g),
        depths=depths,
        last=rounded(PAPER.last * max(factor, 1.0)) if ends else PAPER.last,
    )


def rounded(width: float) -> int:
    """The multiple of 8 that is nearest and not a tenth too small.

    >>> rounded(17.6), rounded(28.8), rounded(11.2)
    (16, 32, 16)
    """
    nearest = max(int(width + 4) // 8 * 8, 8)
    return nearest + 8 if nearest < 0.9 * width else nearest


D110 = with_width(1.1, (1, 3, 4, 5, 4, 4, 1), ends=False)
D120 = with_width(1.2, (1, 3, 5, 6, 5, 5, 1), ends=False)

# torchvision's name, and timm's for other widths; "d" are timm's own, which are deeper too.
VARIANTS = {
    "mobilenet_v2": Variant(PAPER, params=3_504_872, macs=300_774_272),
    "mobilenetv2_035": Variant(with_width(0.35), params=1_677_128, macs=59_285_808),
    "mobilenetv2_050": Variant(with_width(0.5), params=1_968_680, macs=97_131_840),
    "mobilenetv2_075": Variant(with_width(0.75), params=2_636_424, macs=209_069_792),
    "mobilenetv2_140": Variant(with_width(1.4), params=6_108_776, macs=582_195_824),
    "mobilenetv2_110d": Variant(D110, params=4_516_520, macs=430_516_080),
    "mobilenetv2_120d": Variant(D120, params=5_831_144, macs=668_857_568),
}
ALIASES = {"mobilenetv2_100": "mobilenet_v2"}


class ConvNormAct(ConvNorm):
    """A convolution with a batch norm for a bias, then ReLU6."""

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return F.relu6(super().forward(x))


class InvertedResidual(nn.Module):
    """Figure 3b: added to what came in where that has the same shape."""

    def __init__(
        self,
        config: MobileNetV2Config,
        channels: int,
        out: int,
        stride: int,
        *,
        expand: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        hidden, eps = round(channels * expand), config.norm_eps
        self.expand: nn.Module = nn.Identity()
        if expand != 1:
            self.expand = ConvNormAct(channels, hidden, 1, eps=eps)
        self.filter = ConvNormAct(hidden, hidden, 3, stride, groups=hidden, eps=eps)
        self.project = ConvNorm(hidden, out, 1, eps=eps)
        self.adds = stride == 1 and channels == out
        self.drop_path = BatchDropPath(drop_path)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.drop_path(x, self.branch) if self.adds else self.branch(x)

    def branch(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.project(self.filter(self.expand(x)))


class MobileNetV2(Model):
    """
    >>> MobileNetV2(PAPER)(torch.zeros(2, 3, 160, 224)).shape
    torch.Size([2, 1000])
    """

    any_size = True

    def __init__(self, config: MobileNetV2Config) -> None:
        super().__init__()
        self.config = config
        self.stem = ConvNormAct(config.channels, config.stem, 3, 2, eps=config.norm_eps)
        self.stages = nn.Sequential(*make_stages(config))
        self.last = ConvNormAct(config.widths[-1], config.last, 1, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.dropout(self.features(image)))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.encode(image).mean(dim=(2, 3))

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.last(self.stages(self.stem(self.check(image))))

    def attach_head(self) -> None:
        self.head = Head(self.config.features, self.config.num_classes)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        blocks = {
            f"stages.{s}.{b}": block
            for s, stage in enumerate(self.stages.children())
            for b, block in enumerate(stage.children())
        }
        return {**blocks, "last": self.last}

    def map_shape(self, block: str) -> tuple[int, int]:
        if block == "last":
            return self.config.last, REDUCTIONS[-1]
        return self.config.widths[stage_of(block)], REDUCTIONS[stage_of(block)]

    @torch.no_grad()
    def init_weights(self) -> None:
        """As torchvision does.

        | what | how |
        |---|---|
        | convolutions | N(0, 2/fan_out) |
        | norms | 1 and 0; running mean 0 and variance 1 |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Conv2d():
                    nn.init.kaiming_normal_(module.weight, mode="fan_out")
                case nn.BatchNorm2d():
                    module.reset_parameters()
        self.head.init_weights()


def make_stages(config: MobileNetV2Config) -> list[nn.Sequential]:
    rates = linear_drop_rates(config.drop_path, config.depths)
    stages = []
    for stage, (before, width) in enumerate(pairwise((config.stem, *config.widths))):
        stride, expand = STRIDES[stage], config.expand if stage else 1.0
        blocks: list[nn.Module] = []
        for rate in rates[stage]:
            blocks.append(
                InvertedResidual(config, before, width, stride, expand=expand, drop_path=rate)
            )
            before, stride = width, 1
        stages.append(nn.Sequential(*blocks))
    return stages
