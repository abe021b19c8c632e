"""Batch norms over all processes: what several compute together is what one computes.

torch's SyncBatchNorm runs on GPUs alone, and counts the image that a process without any computes
in the place of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.training.world import World

PIXELS = (0, 2, 3)  # the axes that statistics are taken over


def synchronise_batch_norms(module: nn.Module, world: World) -> None:
    """Let every batch norm see the images of all processes; names and weights stay."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.forward = Synchronised(norm, world)  # type: ignore[method-assign]


@contextmanager
def not_counted(module: nn.Module) -> Iterator[None]:
    """Batch norms take no notice of what this process computes meanwhile."""
    norms = [norm.forward for norm in module.modules() if isinstance(norm.forward, Synchronised)]
    for norm in norms:
        norm.counts = False
    try:
        yield
    finally:
        for norm in norms:
            norm.counts = True


class Synchronised:
    """The forward pass of a batch norm with the statistics of all processes."""

    def __init__(self, norm: nn.BatchNorm2d, world: World) -> None:
        self.norm, self.world, self.counts = norm, world, True

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        norm = self.norm
        if not norm.training or norm.running_mean is None or norm.running_var is None:
            return nn.BatchNorm2d.forward(norm, x)
        y, mean, variance, total = Normalise.apply(  # type: ignore[no-untyped-call]
            x, norm.weight, norm.bias, norm.eps, self.counts, self.world
        )
        with torch.no_grad():
            momentum = 0.1 if norm.momentum is None else norm.momentum
            share = momentum * (total > 0).to(norm.running_mean)
            unbiased = variance * total / (total - 1).clamp(min=1)
            norm.running_mean.lerp_(mean.to(norm.running_mean), share)
            norm.running_var.lerp_(unbiased.to(norm.running_var), share)
        return y


class Normalise(torch.autograd.Function):
    """(x - mean) / deviation over the images of all processes that count."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        counts: bool,
        world: World,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(wide, dim=PIXELS, correction=0)
        count = mean.new_tensor([x.numel() / x.shape[1] if counts else 0.0])
        rows = world.stack(torch.cat([mean, variance, count]))
        means, variances, pixels = rows.split([len(mean), len(mean), 1], dim=1)
        total = pixels.sum()
        if x[0, 0].numel() == 1 and total == 1:  # seen by all processes alike
            raise UserError(
                "a batch norm in training got one value in each channel, from the only image of a "
                "step: raise batch_size, or the size of the images"
            )
        shares = pixels / total.clamp(min=1)
        mean = (means * shares).sum(dim=0)
        variance = ((variances + (means - mean).square()) * shares).sum(dim=0)
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt(), total)
        ctx.counts, ctx.world = counts, world
        ctx.mark_non_differentiable(mean, variance, total)
        return F.batch_norm(x, mean, variance, weight, bias, eps=eps), mean, variance, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, total = ctx.saved_tensors
        column = (1, -1, 1, 1)
        gradient = gradients[0].to(mean.dtype)
        normal = (x - mean.view(column)) * scale.view(column)
        by_bias, by_weight = gradient.sum(PIXELS), (gradient * normal).sum(PIXELS)
        # every process changes the statistics that all are normalised by
        sums = ctx.world.total(torch.cat([by_bias, by_weight])) / total.clamp(min=1)
        if ctx.counts:
            shift, stretch = sums.chunk(2)
            gradient = gradient - shift.view(column) - normal * stretch.view(column)
        by_x = gradient * (scale * weight).view(column)
        return by_x.to(x.dtype), by_weight.to(weight), by_bias.to(weight), None, None, None
