"""What leaves out or scales whole branches of a block, or whole patches."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def linear_drop_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates of stochastic depth for the blocks of each stage: from 0 at the first of all to `rate`
    at the last.

    >>> linear_drop_rates(0.5, [1, 2])
    [[0.0], [0.25, 0.5]]
    """
    last = max(sum(depths) - 1, 1)
    rates = iter([rate * i / last for i in range(sum(depths))])
    return [[next(rates) for _ in range(depth)] for depth in depths]


class DropPath(nn.Module):
    """x + branch(x), with stochastic depth (arXiv:1603.09382): in training each sample goes without
    the branch with probability `rate`, and where it is taken it counts so much more that the mean
    stays. The branch is not computed for the samples that go without it. A `shortcut` is what x
    becomes beside the branch, where the two change its shape."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(
        self,
        x: Float[Tensor, "B ..."],
        branch: Callable[[Float[Tensor, "B ..."]], Float[Tensor, "B ..."]],
        shortcut: Callable[[Float[Tensor, "B ..."]], Float[Tensor, "B ..."]] = lambda x: x,
    ) -> Float[Tensor, "B ..."]:
        if not self.training or self.rate == 0:
            return shortcut(x) + branch(x)
        keep = 1 - self.rate
        if torch.compiler.is_compiling():  # a graph wants shapes that do not depend on draws
            kept = self.draw_kept(x.shape[0], x.device)
            return shortcut(x) + scale_samples(branch(x), kept / keep)
        # Drawn on the CPU: to ask a GPU how many are kept would wait for all its work.
        kept = self.draw_kept(x.shape[0], torch.device("cpu"))
        # maybe none: the branch's gradients are then zeros
        chosen = kept.nonzero().squeeze(1)
        with self.among(chosen):
            chosen = chosen.to(x.device, non_blocking=True)
            change = branch(x.index_select(0, chosen))
        beside = shortcut(x)
        return beside.index_add(0, chosen, change.to(beside.dtype), alpha=1 / keep)

    def draw_kept(self, count: int, device: torch.device) -> Bool[Tensor, " B"]:
        """Which samples take the branch."""
        return torch.rand(count, device=device) < 1 - self.rate

    def among(self, chosen: Tensor) -> AbstractContextManager[None]:
        """The branch is computed for these samples meanwhile."""
        return nullcontext()

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class BatchDropPath(DropPath):
    """The same for a branch that has to see the whole batch, as one with BatchNorm does: it is
    computed for every sample, and then left out."""

    def forward(
        self,
        x: Float[Tensor, "B ..."],
        branch: Callable[[Float[Tensor, "B ..."]], Float[Tensor, "B ..."]],
        shortcut: Callable[[Float[Tensor, "B ..."]], Float[Tensor, "B ..."]] = lambda x: x,
    ) -> Float[Tensor, "B ..."]:
        if not self.training or self.rate == 0:
            return shortcut(x) + branch(x)
        keep = 1 - self.rate
        kept = self.draw_kept(x.shape[0], x.device)
        return shortcut(x) + scale_samples(branch(x), kept / keep)


def scale_samples(x: Float[Tensor, "B ..."], factors: Float[Tensor, "B"]) -> Float[Tensor, "B ..."]:
    """Each sample times its own factor."""
    return x * factors.to(x.dtype).view(-1, *[1] * (x.ndim - 1))


class PatchDropout(nn.Module):
    """In training each sample goes on with a random part of its patches, as many as 1 - `rate` of
    them (arXiv:2212.00794); the `prefix` tokens stay, and the order too."""

    def __init__(self, rate: float, *, prefix: int) -> None:
        super().__init__()
        self.rate, self.prefix = rate, prefix

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n D"]:
        if not self.training or self.rate == 0:
            return x
        prefix, patches = x[:, : self.prefix], x[:, self.prefix :]
        count = max(round(patches.shape[1] * (1 - self.rate)), 1)
        draws = self.draw(patches)
        kept = draws.topk(count, dim=1).indices.sort(dim=1).values
        chosen = patches.gather(1, kept[..., None].expand(-1, -1, patches.shape[2]))
        return torch.cat([prefix, chosen], dim=1)

    def draw(self, patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N"]:
        """A number for each patch: those with the largest stay."""
        return torch.rand(patches.shape[:2], device=patches.device)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class LayerScale(nn.Module):
    """A learned factor per channel, small at first (arXiv:2103.17239)."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.factor = nn.Parameter(torch.empty(dim))

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return x * self.factor


def make_layer_scale(dim: int, initial: float | None) -> nn.Module:
    return nn.Identity() if initial is None else LayerScale(dim, initial)
