"""Resizing trained kernels: to other patches or channels."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.layout import Sides, height_and_width
from vitrail.core.passport import ResizeMethod


def resize_patches(
    kernel: Float[Tensor, "D C p q"], size: Sides, *, method: ResizeMethod
) -> Float[Tensor, "D C P Q"]:
    """Patch kernels for another patch size (arXiv:2212.08013, 3.4): the new kernel answers a
    resized patch as nearly as can be like the old one answered the original, by the pseudo-inverse
    of resizing."""
    old, new = tuple(kernel.shape[2:]), height_and_width(size)
    if old == new:
        return kernel
    # resizing is linear and works on each axis by itself, so its pseudo-inverse does too
    down, across = (
        torch.linalg.pinv(_resize_matrix(before, after, antialias=method == "timm").T)
        for before, after in zip(old, new, strict=True)
    )
    return (down @ kernel.double() @ across.T).to(kernel.dtype)


def _resize_matrix(old: int, new: int, *, antialias: bool) -> Float[Tensor, "new old"]:
    """The linear map that resizes one axis, from what it does to every single pixel."""
    pixels = torch.eye(old, dtype=torch.float64)[None, None]
    mode = "bicubic" if antialias else "bilinear"
    size = (new, old)
    return F.interpolate(pixels, size=size, mode=mode, antialias=antialias, align_corners=False)[
        0, 0
    ]


def resize_channels(
    kernel: Float[Tensor, "D C p p"], channels: int
) -> Float[Tensor, "D channels p p"]:
    """Kernels for other input channels: one grey channel gets the sum, more bands repeat what is
    known and share its weight, so that an image with equal channels gives the same output."""
    old = kernel.shape[1]
    if old == channels:
        return kernel
    if channels < old:
        share = kernel.sum(dim=1, keepdim=True) / channels
        return share.expand(-1, channels, -1, -1).contiguous()
    source = torch.arange(channels) % old
    times = source.bincount(minlength=old)
    return kernel[:, source] / times[source].view(1, -1, 1, 1)
