"""What a model's first layer looks for: its kernels, and their principal components."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.explanation.capture import at_least_float32

MAX_COMPONENTS = 28  # arXiv:2010.11929, figure 7, left


@dataclass(frozen=True)
class Filters:
    """The kernels that meet the pixels, and whether each of them reads one patch and no other."""

    name: str
    kernels: Float[Tensor, "D C p q"]
    stride: int
    patches: bool


@torch.no_grad()
def first_filters(model: nn.Module) -> Filters:
    """The kernels of a model's first convolution, as pixels meet them.

    Where the layer standardises its kernels, or a norm scales the pixels before them, that is
    done here too: a stored kernel that the model never uses would be no image of it.

    >>> first_filters(model).kernels.shape
    torch.Size([192, 3, 16, 16])
    """
    found = ((name, part) for name, part in model.named_modules() if isinstance(part, nn.Conv2d))
    name, module = next(found, ("", None))
    if module is None:
        raise UserError("this model has no convolution, so it has no filters to show")
    standardized = getattr(module, "standardized", None)
    kernels = at_least_float32((module.weight if standardized is None else standardized()).detach())
    norm = getattr(model.get_submodule(name.rpartition(".")[0]), "pixel_norm", None)
    if norm is not None:
        kernels = kernels * norm.weight.view(kernels.shape[1:])
    one_each = module.stride == module.kernel_size and not any(padding_of(module))
    return Filters(name, kernels, module.stride[0], patches=one_each)


def padding_of(layer: nn.Conv2d) -> tuple[int, ...]:
    return layer.padding if isinstance(layer.padding, tuple) else (1,)


def principal_components(
    kernels: Float[Tensor, "D C p q"], most: int = MAX_COMPONENTS
) -> tuple[Float[Tensor, "K C p q"], Float[Tensor, " K"]]:
    """The directions in which kernels differ most, orthonormal, the largest first, and the share
    of all variance that each one holds.

    Every kernel is a sample and its pixels are the variables. A direction has no sign of its own:
    the one is taken in which its largest entry is positive.
    """
    if not kernels.isfinite().all():
        raise UserError("the weights are NaN or infinite, as after a run that diverged")
    samples = kernels.flatten(1).double()
    samples = samples - samples.mean(dim=0)
    _, strengths, directions = torch.linalg.svd(samples, full_matrices=False)
    count = max(min(most, len(samples) - 1, samples.shape[1]), 1)
    largest = directions.abs().argmax(dim=1, keepdim=True)
    directions = directions * directions.gather(1, largest).sign()
    variances = strengths.square()
    shares = variances / variances.sum().clamp(min=torch.finfo(variances.dtype).tiny)
    return directions[:count].unflatten(1, kernels.shape[1:]), shares[:count]


def kernels_to_rgb(
    kernels: Float[Tensor, "K C p q"], *, flipped: bool = False
) -> tuple[Float[Tensor, "K p q 3"], str]:
    """Kernels as colours between 0 and 1, and what they show: zero is grey, and each kernel is
    scaled by its largest entry. `flipped` where the model reads blue first."""
    reach = kernels.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-12)
    levels = 0.5 + 0.5 * kernels / reach
    channels = kernels.shape[1]
    if channels == 3:
        levels = levels.flip(1) if flipped else levels
        return levels.movedim(1, -1), "shown as RGB"
    if channels == 1:
        return levels.movedim(1, -1).expand(-1, -1, -1, 3), "bright where it wants brightness"
    mean = kernels.mean(dim=1, keepdim=True)
    mean = 0.5 + 0.5 * mean / mean.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-12)
    return mean.movedim(1, -1).expand(-1, -1, -1, 3), f"the mean of its {channels} channels"


def largest_kernels(kernels: Float[Tensor, "D C p q"], most: int) -> Float[Tensor, "K C p q"]:
    """The kernels of the largest norm, the largest first."""
    order = kernels.flatten(1).norm(dim=1).argsort(descending=True, stable=True)
    return kernels[order[:most]]
