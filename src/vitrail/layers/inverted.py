"""The inverted residual of MobileNetV2 (arXiv:1801.04381): narrow between blocks, wide inside."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.norm import BatchNorm


class ConvNorm(nn.Module):
    """A convolution with a batch norm for a bias; an odd kernel leaves ceil(side / stride)
    cells."""

    def __init__(
        self,
        channels: int,
        out: int,
        size: int,
        stride: int = 1,
        *,
        groups: int = 1,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            channels, out, size, stride, padding=size // 2, groups=groups, bias=False
        )
        self.norm = BatchNorm(out, eps=eps)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return self.norm(self.conv(x))


class InvertedResidual(nn.Module):
    """1x1 up, 3x3 in each channel by itself, 1x1 down, with SiLU between but not at the narrow
    ends; added to what came in where that has the same shape."""

    def __init__(self, channels: int, out: int, stride: int, *, expand: float) -> None:
        super().__init__()
        hidden = expanded(channels, expand)
        self.expand = ConvNorm(channels, hidden, 1)
        self.filter = ConvNorm(hidden, hidden, 3, stride, groups=hidden)
        self.project = ConvNorm(hidden, out, 1)
        self.adds = stride == 1 and channels == out

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        y = self.project(F.silu(self.filter(F.silu(self.expand(x)))))
        return x + y if self.adds else y


def inverted_residuals(
    channels: int, out: int, *, stride: int, count: int, expand: float
) -> list[nn.Module]:
    """So many of them, one after the other; the first changes channels and size."""
    first = InvertedResidual(channels, out, stride, expand=expand)
    return [first, *(InvertedResidual(out, out, 1, expand=expand) for _ in range(count - 1))]


def mobile_stages(
    widths: Sequence[int],
    *,
    counts: Sequence[int],
    expand: float,
    then: Callable[[int], nn.Module],
) -> list[nn.Sequential]:
    """Stages of several inverted residuals each, all but the first halving the map; the stages
    beyond `counts` have one, and `then` makes what comes after it, by their number."""
    stages = []
    for stage, (before, width) in enumerate(pairwise(widths)):
        early, stride = stage < len(counts), 2 if stage else 1
        count = counts[stage] if early else 1
        blocks = inverted_residuals(before, width, stride=stride, count=count, expand=expand)
        stages.append(nn.Sequential(*blocks, *([] if early else [then(stage - len(counts))])))
    return stages


def expanded(channels: int, factor: float) -> int:
    """So many times the channels, as the multiple of 8 that is nearest and not a tenth too small.

    >>> expanded(16, 4.0), expanded(20, 0.5)
    (64, 16)
    """
    wanted = round(channels * factor)
    nearest = max((wanted + 4) // 8 * 8, 8)
    return nearest + 8 if nearest < 0.9 * wanted else nearest
