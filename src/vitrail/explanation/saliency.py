"""Gradients of pixels: how much the logit moves when a patch changes a little.

Saliency (arXiv:1312.6034) is the absolute gradient, SmoothGrad (arXiv:1706.03825) its mean over
copies of the image with noise.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.randomness import seed_of
from vitrail.explanation.blur import gaussian_blur
from vitrail.explanation.propagation import sum_over_cells
from vitrail.explanation.readout import Relevance, check_model, finest_layout, sum_target_logits


def saliency(
    model: nn.Module, images: Float[Tensor, "B C H W"], target: Int[Tensor, "B"] | None = None
) -> Relevance:
    """The absolute gradient of each pixel, summed over channels and patches: one pass forwards and
    one back.

    >>> saliency(model, images, torch.tensor([2])).map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    gradient, target = pixel_gradient(model, images, target)
    finest = finest_layout(model)
    return Relevance(sum_over_cells(gradient.abs().sum(dim=1), finest), finest, "saliency", target)


def pixel_gradient(
    model: nn.Module, images: Float[Tensor, "B C H W"], target: Int[Tensor, "B"] | None
) -> tuple[Float[Tensor, "B C H W"], Int[Tensor, "B"]]:
    with torch.inference_mode(False), torch.enable_grad():
        image = images.detach().clone().requires_grad_()
        total, target = sum_target_logits(model(image), target)
        (gradient,) = torch.autograd.grad(total, image)
    return gradient, target


def smoothgrad(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    samples: int = 8,
    noise: float = 0.1,
    blur: float = 0.1,
    seed: int = 0,
) -> Relevance:
    """The mean saliency of `samples` copies of the image, with Gaussian noise whose deviation is
    `noise` of the range of the image's values, smoothed by a Gaussian whose deviation is `blur` of
    each side: what many neighbouring pixels agree on counts for more than one high pixel.

    >>> smoothgrad(model, images, torch.tensor([2]), samples=2).map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    if samples < 1:
        raise UserError(f"samples must be at least 1, got {samples}")
    for name, value in (("noise", noise), ("blur", blur)):
        if not 0 <= value <= 1:
            raise UserError(f"{name} must be from 0 to 1, got {value}")
    if target is None:
        with torch.no_grad():
            _, target = sum_target_logits(model(images), None)
    total = torch.zeros_like(images)
    for noisy in noisy_copies(images, samples, noise, seed):
        gradient, target = pixel_gradient(model, noisy, target)
        total += gradient.abs()
    pixels = gaussian_blur((total / samples).sum(dim=1, keepdim=True), blur, beyond="zeros")[:, 0]
    finest = finest_layout(model)
    return Relevance(sum_over_cells(pixels, finest), finest, "smoothgrad", target)


def noisy_copies(
    images: Float[Tensor, "B C H W"], samples: int, noise: float, seed: int
) -> Iterator[Float[Tensor, "B C H W"]]:
    """All images with the same noise, so that a map does not depend on what else is in a batch."""
    generator = torch.Generator().manual_seed(seed_of("smoothgrad", seed))
    span = images.amax(dim=(1, 2, 3), keepdim=True) - images.amin(dim=(1, 2, 3), keepdim=True)
    for _ in range(samples):
        draw = torch.randn(images.shape[1:], generator=generator, dtype=torch.float64)
        yield images + noise * span * draw.to(images)
