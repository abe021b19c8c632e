"""The ResNet in front of a hybrid ViT (arXiv:2010.11929, 3.1): feature maps instead of pixels.

    image ── root ── stages ── features
    B C H W  H/4 W/4  1, 1/2, 1/4 …

Post-activation bottlenecks, weight-standardised convolutions, GroupNorm, SAME padding: the ResNet
of the paper's code.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.layers.conv import MaxPoolSame, Standardize, StandardizedConv
from vitrail.models.config import Numerics, Shape


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """`blocks` in each stage, () for the root alone; `standardize` and `norm_eps` differ between
    the paper's code ("jax", 1e-6) and timm ("timm", 1e-5)."""

    blocks: Shape[tuple[int, ...]]
    width: Shape[int] = 64
    groups: Numerics[int] = 32
    standardize: Numerics[Standardize] = "jax"
    norm_eps: Numerics[float] = 1e-6

    def __post_init__(self) -> None:
        if any(not 1 <= count <= 100 for count in self.blocks) or len(self.blocks) > 6:
            raise UserError(f"a ResNet has up to 6 stages of 1 to 100 blocks, got {self.blocks}")
        if not 1 <= self.width <= 2**14 or self.groups < 1 or self.width % self.groups:
            raise UserError(
                f"width must be a multiple of groups, got {self.width} and {self.groups}"
            )

    @property
    def stride(self) -> int:
        """Pixels a side for one cell of the feature map."""
        return 4 * 2 ** max(len(self.blocks) - 1, 0)

    @property
    def channels(self) -> int:
        """Channels of the feature map."""
        return self.width * 4 * 2 ** (len(self.blocks) - 1) if self.blocks else self.width


class ResNet(nn.Module):
    """
    >>> ResNet(ResNetConfig(blocks=(3, 4, 9)), channels=3)(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 1024, 14, 14])
    """

    def __init__(self, config: ResNetConfig, *, channels: int) -> None:
        super().__init__()
        self.root = Root(config, channels)
        stages = []
        before = config.width
        for number, count in enumerate(config.blocks):
            middle, stride = config.width * 2**number, 1 if number == 0 else 2
            first = Bottleneck(config, before, middle, stride)
            rest = [Bottleneck(config, middle * 4, middle, 1) for _ in range(count - 1)]
            stages.append(nn.Sequential(first, *rest))
            before = middle * 4
        self.stages = nn.Sequential(*stages)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.stages(self.root(x))


class Root(nn.Module):
    def __init__(self, config: ResNetConfig, channels: int) -> None:
        super().__init__()
        self.conv = StandardizedConv(channels, config.width, 7, 2, standardize=config.standardize)
        self.norm = nn.GroupNorm(config.groups, config.width, eps=config.norm_eps)
        self.pool = MaxPoolSame(3, 2)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.pool(F.relu(self.norm(self.conv(x))))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, each normed; the shortcut is projected where shapes change."""

    def __init__(self, config: ResNetConfig, before: int, middle: int, stride: int) -> None:
        super().__init__()
        after, groups, eps, kind = middle * 4, config.groups, config.norm_eps, config.standardize
        self.conv1 = StandardizedConv(before, middle, 1, standardize=kind)
        self.norm1 = nn.GroupNorm(groups, middle, eps=eps)
        self.conv2 = StandardizedConv(middle, middle, 3, stride, standardize=kind)
        self.norm2 = nn.GroupNorm(groups, middle, eps=eps)
        self.conv3 = StandardizedConv(middle, after, 1, standardize=kind)
        self.norm3 = nn.GroupNorm(groups, after, eps=eps)
        self.shortcut: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.shortcut = nn.Sequential(
                StandardizedConv(before, after, 1, stride, standardize=kind),
                nn.GroupNorm(groups, after, eps=eps),
            )

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))
