"""Integrated gradients (arXiv:1703.01365), summed over patches."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explain.capture import attentions_of
from vitrail.explain.readout import Relevance, check_model, score
from vitrail.explain.spread import Cells, regrid


def integrated(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    steps: int = 32,
    baseline: Float[Tensor, "#B C H W"] | float = 0.0,
) -> Relevance:
    """How much each patch adds to the logit, on the straight way from `baseline` to the image; what
    speaks against the class is negative. All patches together make the difference of the logits at
    both ends. 0 is the grey or the mean colour that preprocessing subtracts.

    >>> integrated(model, images, torch.tensor([2]), steps=4).map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    finest = min((a.layout for a in attentions_of(model).values()), key=lambda one: one.stride)
    pixels, target = on_every_pixel(model, images, target, steps=steps, baseline=baseline)
    height, width = pixels.shape[1:]
    fine = TokenLayout(grid=(height, width), stride=1)
    cells = regrid(Cells(pixels.new_zeros(len(pixels), 0), pixels), fine, finest)
    return Relevance(cells.grid, finest, "integrated", target)


def on_every_pixel(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None,
    *,
    steps: int,
    baseline: Float[Tensor, "#B C H W"] | float,
) -> tuple[Float[Tensor, "B H W"], Int[Tensor, "B"]]:
    """Channels summed. The integral is a sum at the points of Gauss and Legendre."""
    if steps < 1:
        raise UserError(f"steps is {steps}, expected 1 or more")
    points, weights = np.polynomial.legendre.leggauss(steps)
    with torch.inference_mode(False), torch.enable_grad():
        image = images.detach().clone()
        start = torch.as_tensor(baseline, dtype=image.dtype, device=image.device)
        if target is None:
            with torch.no_grad():
                target = score(model(image), None)[1]
        mean = torch.zeros_like(image)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            between = torch.lerp(start.expand_as(image), image, float(point)).requires_grad_()
            total, target = score(model(between), target)
            (gradient,) = torch.autograd.grad(total, between)
            mean += float(weight) * gradient
        return ((image - start) * mean).sum(dim=1), target
