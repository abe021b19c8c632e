"""ResNet v1.5 (arXiv:1512.03385): residual blocks of convolutions, each with a batch norm.

    image ── stem ── stages ── pool ── head
    B C H W   H/4     H/32      B D     B K

A basic block has two 3x3 convolutions, a bottleneck 1x1, 3x3 and 1x1. The first block of a stage
halves the map: in a bottleneck by its 3x3 convolution, which is what v1.5 does otherwise than the
paper, and what torchvision and timm do. `models/resnet.py` has the ResNet of hybrid ViTs.
Axes: B batch · C channels · H W image or map · D width · K classes
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.layers.drop import BatchDropPath, linear_drop_rates
from vitrail.layers.head import Head
from vitrail.layers.inverted import ConvNorm
from vitrail.models.config import Config, Numerics, Runtime, Shape
from vitrail.models.limits import check_counts
from vitrail.models.model import Model, stage_of
from vitrail.models.variant import Variant

MOST_STAGES = 8
BlockKind = Literal["basic", "bottleneck"]
StemKind = Literal["7x7", "3x3"]
EXPANSION: dict[BlockKind, int] = {"basic": 1, "bottleneck": 4}
REDUCTION: dict[StemKind, int] = {"7x7": 4, "3x3": 1}


@dataclass(frozen=True, kw_only=True)
class ResNetV15Config(Config):
    """Everything that decides what a ResNet v1.5 computes.

    `depths` are the blocks of each stage. `width` is that of the stem and of the 3x3 convolutions
    of the first stage; it doubles from stage to stage. The stem "7x7" halves the image twice, by
    its convolution and a max-pool; "3x3" keeps its size, as the paper does for CIFAR (4.2), for
    images of about 32 pixels. A model reads images of any size.
    """

    depths: Shape[tuple[int, ...]]
    block: Shape[BlockKind] = "bottleneck"
    width: Shape[int] = 64
    stem: Shape[StemKind] = "7x7"
    norm_eps: Numerics[float] = 1e-5
    dropout: Runtime[float] = 0.0  # before the head

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "depths", "width", least=1)
        if not 1 <= len(self.depths) <= MOST_STAGES:
            raise UserError(f"depths must have 1 to {MOST_STAGES} stages, got {self.depths}")

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels that each stage gives."""
        expansion = EXPANSION[self.block]
        return tuple(self.width * 2**stage * expansion for stage in range(len(self.depths)))

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels a side for one cell of each stage's map."""
        return tuple(REDUCTION[self.stem] * 2**stage for stage in range(len(self.depths)))

    @property
    def features(self) -> int:
        return self.widths[-1]

    @property
    def tokens(self) -> int:
        return 0


R18 = ResNetV15Config(depths=(2, 2, 2, 2), block="basic")
R34 = ResNetV15Config(depths=(3, 4, 6, 3), block="basic")
R50 = ResNetV15Config(depths=(3, 4, 6, 3))
R101 = ResNetV15Config(depths=(3, 4, 23, 3))
R152 = ResNetV15Config(depths=(3, 8, 36, 3))

# Table 1 of the paper; torchvision and timm have the same names.
VARIANTS = {
    "resnet18": Variant(R18, params=11_689_512, macs=1_814_073_344),
    "resnet34": Variant(R34, params=21_797_672, macs=3_663_761_408),
    "resnet50": Variant(R50, params=25_557_032, macs=4_089_184_256),
    "resnet101": Variant(R101, params=44_549_160, macs=7_801_405_440),
    "resnet152": Variant(R152, params=60_192_808, macs=11_513_626_624),
}


class Stem(nn.Module):
    """7x7 and a max-pool, each halving the image; or 3x3, which leaves it as large as it is."""

    def __init__(self, config: ResNetV15Config) -> None:
        super().__init__()
        size, stride = (7, 2) if config.stem == "7x7" else (3, 1)
        self.first = ConvNorm(config.channels, config.width, size, stride, eps=config.norm_eps)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if config.stem == "7x7" else nn.Identity()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.pool(F.relu(self.first(image)))


class Block(nn.Module):
    """x + branch(x), then ReLU; the shortcut is projected where shapes change."""

    def __init__(
        self, config: ResNetV15Config, before: int, after: int, stride: int, drop_path: float
    ) -> None:
        super().__init__()
        self.shortcut: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.shortcut = ConvNorm(before, after, 1, stride, eps=config.norm_eps)
        self.drop_path = BatchDropPath(drop_path)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return F.relu(self.drop_path(x, self.branch, self.shortcut))

    def branch(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        raise NotImplementedError

    @property
    def last(self) -> ConvNorm:
        """The branch's last convolution."""
        raise NotImplementedError


class BasicBlock(Block):
    """Figure 5, left: two 3x3 convolutions."""

    def __init__(
        self, config: ResNetV15Config, before: int, after: int, stride: int, drop_path: float
    ) -> None:
        super().__init__(config, before, after, stride, drop_path)
        self.conv1 = ConvNorm(before, after, 3, stride, eps=config.norm_eps)
        self.conv2 = ConvNorm(after, after, 3, eps=config.norm_eps)

    def branch(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.conv2(F.relu(self.conv1(x)))

    @property
    def last(self) -> ConvNorm:
        return self.conv2


class Bottleneck(Block):
    """Figure 5, right: 1x1 down to a quarter, 3x3, 1x1 up again."""

    def __init__(
        self, config: ResNetV15Config, before: int, after: int, stride: int, drop_path: float
    ) -> None:
        super().__init__(config, before, after, stride, drop_path)
        middle, eps = after // EXPANSION["bottleneck"], config.norm_eps
        self.conv1 = ConvNorm(before, middle, 1, eps=eps)
        self.conv2 = ConvNorm(middle, middle, 3, stride, eps=eps)
        self.conv3 = ConvNorm(middle, after, 1, eps=eps)

    def branch(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))

    @property
    def last(self) -> ConvNorm:
        return self.conv3


class ResNetV15(Model):
    """
    >>> ResNetV15(R18)(torch.zeros(2, 3, 160, 224)).shape
    torch.Size([2, 1000])
    """

    any_size = True

    def __init__(self, config: ResNetV15Config) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        self.stages = nn.Sequential(*make_stages(config))
        self.dropout = nn.Dropout(config.dropout)
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.dropout(self.features(image)))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        return self.encode(image).mean(dim=(2, 3))

    def encode(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.stages(self.stem(self.check(image)))

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
        """As torchvision and timm do.

        | what | how |
        |---|---|
        | convolutions | N(0, 2/fan_out) |
        | norms | 1 and 0; running mean 0 and variance 1 |
        | the last norm of a branch | 0 and 0 (arXiv:1706.02677, 5.1): a block begins as identity |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Conv2d():
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                case nn.BatchNorm2d():
                    module.reset_parameters()
        for block in self.modules():
            if isinstance(block, Block):
                nn.init.zeros_(block.last.norm.weight)
        self.head.init_weights()


def make_stages(config: ResNetV15Config) -> list[nn.Sequential]:
    """Stages of blocks, all but the first halving the map."""
    kind = BasicBlock if config.block == "basic" else Bottleneck
    befores = (config.width, *config.widths)
    rates = linear_drop_rates(config.drop_path, config.depths)
    stages = []
    for stage, after in enumerate(config.widths):
        before, stride = befores[stage], 2 if stage else 1
        blocks: list[nn.Module] = []
        for rate in rates[stage]:
            blocks.append(kind(config, before, after, stride, rate))
            before, stride = after, 1
        stages.append(nn.Sequential(*blocks))
    return stages
