"""Integrated gradients (arXiv:1703.01365), summed over patches, and how complete they are."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.explanation.propagation import sum_over_cells
from vitrail.explanation.readout import Relevance, check_model, finest_layout, sum_target_logits

MIN_STEPS, MAX_STEPS = 32, 256  # without `steps`: doubled from the first up to the last
MAX_DELTA = 0.05  # of the difference of the logits: what may be missing
SMALL_DELTA = 0.01  # of a logit: what may be missing where both ends are nearly alike


class IncompleteWarning(UserWarning):
    """Attributions do not add up to the difference that they explain."""


@dataclass(frozen=True)
class Integral:
    """Of each pixel, channels summed: how much it adds to the logit. `delta` is how far all of
    them together are from `difference`, that of the logits at both ends."""

    pixels: Float[Tensor, "B H W"]
    difference: Float[Tensor, "B"]
    target: Int[Tensor, "B"]

    @property
    def delta(self) -> Float[Tensor, "B"]:
        return self.pixels.sum(dim=(1, 2)) - self.difference

    @property
    def complete(self) -> Bool[Tensor, "B"]:
        return self.delta.abs() <= (MAX_DELTA * self.difference.abs()).clamp(min=SMALL_DELTA)


def integrated(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    steps: int | None = None,
    baseline: Float[Tensor, "#B C H W"] | float = 0.0,
) -> Relevance:
    """How much each patch adds to the logit, on the straight way from `baseline` to the image; what
    counts against the class is negative. 0 is the grey or the mean colour that preprocessing
    subtracts.

    All patches together make the difference of the logits at both ends, as far as `steps` points
    on the way can tell: `delta` is what is missing. Without `steps`, points are added until it is
    at most 5 % of the difference, up to 256. Above that there is an `IncompleteWarning`.

    >>> integrated(model, images, torch.tensor([2]), steps=8).map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    found = integrate_pixels(model, images, target, steps=steps, baseline=baseline)
    if not found.complete.all():
        share = (found.delta / found.difference).abs()[~found.complete].max()
        warnings.warn(
            f"integrated gradients do not add up: they miss the difference of the logits by "
            f"{float(share):.0%} on {int((~found.complete).sum())} of {len(images)} images; use "
            "more steps, another baseline or another method",
            IncompleteWarning,
            stacklevel=2,
        )
    finest = finest_layout(model)
    heat = sum_over_cells(found.pixels, finest)
    return Relevance(heat, finest, "integrated", found.target, delta=found.delta)


def integrate_pixels(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None,
    *,
    steps: int | None,
    baseline: Float[Tensor, "#B C H W"] | float,
) -> Integral:
    """With a fixed number of steps, or as many as each image needs."""
    if steps is not None and steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}")
    with torch.inference_mode(False):
        image = images.detach().clone()
        start = torch.as_tensor(baseline, dtype=image.dtype, device=image.device)
        start = start.expand_as(image)
        with torch.no_grad():
            after, before = model(image), model(start)
        _, target = sum_target_logits(after, target)
        difference = (after - before).gather(1, target[:, None])[:, 0]
        pixels = image.new_zeros(len(image), *image.shape[2:])
        count, left = steps or MIN_STEPS, torch.arange(len(image), device=image.device)
        while True:
            pixels[left] = path_integral(model, start[left], image[left], target[left], count)
            found = Integral(pixels, difference, target)
            left = (~found.complete).nonzero()[:, 0]
            count *= 2
            if steps is not None or not len(left) or count > MAX_STEPS:
                return found


@torch.enable_grad()
def path_integral(
    model: nn.Module,
    start: Float[Tensor, "B C H W"],
    image: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"],
    steps: int,
) -> Float[Tensor, "B H W"]:
    """Channels summed. The integral is a sum at the points of Gauss and Legendre."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    mean = torch.zeros_like(image)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        between = torch.lerp(start, image, float(point)).requires_grad_()
        total, _ = sum_target_logits(model(between), target)
        (gradient,) = torch.autograd.grad(total, between)
        mean += float(weight) * gradient
    return ((image - start) * mean).sum(dim=1)
