"""BiT, Big Transfer (arXiv:1912.11370): a ResNet v2 that needs no batch statistics.

    image ── stem ── stages ── norm ── pool ── head
    B C H W   H/4     H/32      H/32    B D     B K

Bottlenecks that norm and activate before each convolution (arXiv:1603.05027), so that what is added
up from block to block is never changed. GroupNorm and weight-standardised convolutions stand in
for batch norm. The ResNet of hybrid ViTs (`models/resnet.py`) has the same layers in the order of
v1, and pads them otherwise.
Axes: B batch · C channels · H W image or map · D width · K classes
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.layers.conv import PaddedStandardizedConv, Standardize
from vitrail.layers.drop import DropPath, linear_drop_rates
from vitrail.layers.head import Head
from vitrail.models.config import Config, Numerics, Runtime, Shape
from vitrail.models.limits import check_counts
from vitrail.models.model import Model, stage_of
from vitrail.models.variant import Variant

MOST_STAGES = 8
EXPANSION = 4  # channels that a bottleneck gives, for each in its middle


@dataclass(frozen=True, kw_only=True)
class BiTConfig(Config):
    """Everything that decides what a BiT computes.

    `depths` are the blocks of each stage, `width` the channels of the stem and of the first stage's
    3x3 convolutions; it doubles from stage to stage. `standardize` differs between the paper's code
    ("bit") and timm ("timm"). A model reads images of any size.
    """

    depths: Shape[tuple[int, ...]]
    width: Shape[int] = 64
    groups: Numerics[int] = 32
    standardize: Numerics[Standardize] = "bit"
    norm_eps: Numerics[float] = 1e-5
    dropout: Runtime[float] = 0.0  # before the head

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "depths", "width", "groups", least=1)
        if not 1 <= len(self.depths) <= MOST_STAGES:
            raise UserError(f"depths must have 1 to {MOST_STAGES} stages, got {self.depths}")
        if self.width % self.groups:
            raise UserError(
                f"width must be a multiple of groups, got {self.width} and {self.groups}"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels that each stage gives."""
        return tuple(self.width * 2**stage * EXPANSION for stage in range(len(self.depths)))

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels a side for one cell of each stage's map."""
        return tuple(4 * 2**stage for stage in range(len(self.depths)))

    @property
    def features(self) -> int:
        return self.widths[-1]

    @property
    def tokens(self) -> int:
        return 0


def sized(depths: tuple[int, ...], factor: int) -> BiTConfig:
    return BiTConfig(depths=depths, width=64 * factor)


R50, R101, R152 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)

# The paper's six: layers, and by how much they are wider than a ResNet.
VARIANTS = {
    "bit_r50x1": Variant(sized(R50, 1), params=25_549_352, macs=4_089_184_256),
    "bit_r50x3": Variant(sized(R50, 3), params=217_319_080, macs=36_082_286_592),
    "bit_r101x1": Variant(sized(R101, 1), params=44_541_480, macs=7_801_405_440),
    "bit_r101x3": Variant(sized(R101, 3), params=387_934_888, macs=69_492_277_248),
    "bit_r152x2": Variant(sized(R152, 2), params=236_335_208, macs=45_814_382_592),
    "bit_r152x4": Variant(sized(R152, 4), params=936_533_224, macs=182_777_282_560),
}
# timm's names
ALIASES = {f"resnetv2_{name.removeprefix('bit_r')}_bit": name for name in VARIANTS}


class Stem(nn.Module):
    """7x7 and a max-pool, each halving the image. The pool is padded with zeros, which win where
    all that it sees is below: there is no ReLU before it."""

    def __init__(self, config: BiTConfig) -> None:
        super().__init__()
        self.conv = PaddedStandardizedConv(
            config.channels, config.width, 7, 2, standardize=config.standardize
        )

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return F.max_pool2d(zero_border(self.conv(image)), 3, 2)


def zero_border(x: Float[Tensor, "B D H W"]) -> Float[Tensor, "B D H+2 W+2"]:
    """One cell of zeros around a map, as a part of it: ONNX Runtime makes `F.pad` the padding of
    the pool that follows (its PadFusion), and there padding never wins.

    >>> zero_border(torch.ones(1, 1, 1, 1)).sum(dim=(0, 1)).tolist()
    [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    row = torch.zeros_like(x[:, :, :1])
    x = torch.cat([row, x, row], dim=2)
    column = torch.zeros_like(x[:, :, :, :1])
    return torch.cat([column, x, column], dim=3)


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, each after a norm and ReLU; where shapes change, the shortcut is
    projected from what the first of these norms gives."""

    def __init__(
        self, config: BiTConfig, before: int, after: int, stride: int, drop_path: float
    ) -> None:
        super().__init__()
        middle, kind = after // EXPANSION, config.standardize
        self.norm1 = nn.GroupNorm(config.groups, before, eps=config.norm_eps)
        self.conv1 = PaddedStandardizedConv(before, middle, 1, standardize=kind)
        self.norm2 = nn.GroupNorm(config.groups, middle, eps=config.norm_eps)
        self.conv2 = PaddedStandardizedConv(middle, middle, 3, stride, standardize=kind)
        self.norm3 = nn.GroupNorm(config.groups, middle, eps=config.norm_eps)
        self.conv3 = PaddedStandardizedConv(middle, after, 1, standardize=kind)
        self.shortcut: nn.Module | None = None
        if before != after or stride != 1:
            self.shortcut = PaddedStandardizedConv(before, after, 1, stride, standardize=kind)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        normed = F.relu(self.norm1(x))
        beside = x if self.shortcut is None else self.shortcut(normed)
        return self.drop_path(normed, self.branch, lambda _: beside)

    def branch(self, normed: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        y = self.conv2(F.relu(self.norm2(self.conv1(normed))))
        return self.conv3(F.relu(self.norm3(y)))


class NormAct(nn.GroupNorm):
    """GroupNorm, then ReLU: what ends the sum of all blocks."""

    def forward(self, input: Float[Tensor, "B D H W"]) -> Float[Tensor, "B D H W"]:
        return F.relu(super().forward(input))


class BiT(Model):
    """
    >>> from dataclasses import replace
    >>> BiT(replace(VARIANTS["bit_r50x1"].config, depths=(1, 1)))(torch.zeros(2, 3, 64, 96)).shape
    torch.Size([2, 1000])
    """

    any_size = True

    def __init__(self, config: BiTConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        self.stages = nn.Sequential(*make_stages(config))
        self.norm = NormAct(config.groups, config.features, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.dropout(self.features(image)))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.encode(image).mean(dim=(2, 3))

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.norm(self.stages(self.stem(self.check(image))))

    def attach_head(self) -> None:
        self.head = Head(self.config.features, self.config.num_classes)

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {
            f"stages.{s}.{b}": block
            for s, stage in enumerate(self.stages.children())
            for b, block in enumerate(stage.children())
        }

    def map_shape(self, block: str) -> tuple[int, int]:
        return self.config.widths[stage_of(block)], self.config.strides[stage_of(block)]

    @torch.no_grad()
    def init_weights(self) -> None:
        """As timm does; the paper's code has no other start than its weights.

        | what | how |
        |---|---|
        | convolutions | N(0, 2/fan_out), of which standardisation leaves the direction |
        | norms | 1 and 0 |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Conv2d():
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                case nn.GroupNorm():
                    module.reset_parameters()
        self.head.init_weights()


def make_stages(config: BiTConfig) -> list[nn.Sequential]:
    """Stages of blocks, all but the first halving the map."""
    befores = (config.width, *config.widths)
    rates = linear_drop_rates(config.drop_path, config.depths)
    stages = []
    for stage, after in enumerate(config.widths):
        before, stride = befores[stage], 2 if stage else 1
        blocks: list[nn.Module] = []
        for rate in rates[stage]:
            blocks.append(Bottleneck(config, before, after, stride, rate))
            before, stride = after, 1
        stages.append(nn.Sequential(*blocks))
    return stages
