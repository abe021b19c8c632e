"""Balanced layer norms: channels of very different size made alike before int8 sees them.

One scale for all channels of an activation wastes its 256 steps on the few largest ones. As in
SmoothQuant (arXiv:2211.10438), each output channel of a layer norm is divided by a factor, and the
columns of the linear layers that read it are multiplied by the same. Here factors are powers of
two: floating point multiplies by these without rounding, so the model computes what it did.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.eval_mode import eval_mode
from vitrail.inference.rewrites.sharing import share_weights
from vitrail.models.model import Model

STRENGTH = 0.5  # 0 leaves all size in the activations, 1 moves all of it into the weights
TOLERANCE = 1e-6  # of the largest output; where a norm is read by anything else it is far above


@dataclass
class NormReaders:
    """A layer norm, the linear layers that read its output, and the largest value of each of its
    channels."""

    norm: nn.LayerNorm
    largest: Tensor
    linears: list[nn.Linear] = field(default_factory=list)


@torch.no_grad()
def balance_norms(
    model: Model, images: Float[Tensor, "B C H W"], *, strength: float = STRENGTH
) -> Model | None:
    """The same function with balanced channels, measured on real images; None where the model has
    no layer norm that linear layers alone read. The given model stays as it is.

    >>> balanced = balance_norms(model, images)
    >>> torch.allclose(balanced(images), model(images))
    True
    """
    balanced = share_weights(model).eval()
    found = [one for one in find_readers(balanced, images) if one.linears]
    if not found:
        return None
    for one in found:
        fold(one, factors(one, strength))
    with eval_mode(model):
        expected, got = model(images[:1]), balanced(images[:1])
    close = (expected - got).abs().max() <= TOLERANCE * expected.abs().max()
    return balanced if close else None


def find_readers(model: Model, images: Float[Tensor, "B C H W"]) -> list[NormReaders]:
    """Every layer norm with an affine part, and the linear layers that are given its very output;
    found by running the model, so that no family needs a rule of its own."""
    found: dict[nn.LayerNorm, NormReaders] = {}
    outputs: dict[int, tuple[Tensor, NormReaders]] = {}  # tensors are kept, so ids stay theirs

    def see_norm(norm: nn.LayerNorm, args: Any, output: Tensor) -> None:
        largest = output.abs().flatten(0, -2).amax(dim=0)
        one = found.setdefault(norm, NormReaders(norm, largest))
        one.largest = torch.maximum(one.largest, largest)
        outputs[id(output)] = output, one

    def see_linear(linear: nn.Linear, args: tuple[Tensor, ...]) -> None:
        if id(args[0]) in outputs:
            readers = outputs[id(args[0])][1].linears
            if not any(linear is one for one in readers):
                readers.append(linear)

    handles: list[Any] = []
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            handles.append(module.register_forward_hook(see_norm))
        elif isinstance(module, nn.Linear):
            handles.append(module.register_forward_pre_hook(see_linear))
    try:
        for image in images.split(1):  # one at a time: outputs of all norms are in memory
            model(image)
            outputs.clear()
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def factors(one: NormReaders, strength: float) -> Tensor:
    """What each channel is divided by: a power of two, 1 for channels that are always zero."""
    weights = torch.stack([linear.weight.abs().amax(dim=0) for linear in one.linears]).amax(dim=0)
    size = one.largest.pow(strength) / weights.pow(1 - strength)
    size = torch.where((one.largest > 0) & (weights > 0), size, 1.0)
    return torch.exp2(torch.log2(size).round())


def fold(one: NormReaders, size: Tensor) -> None:
    """Divide the norm's channels, and multiply the columns that read them."""
    norm = one.norm
    norm.weight = nn.Parameter(norm.weight / size, requires_grad=False)
    if norm.bias is not None:
        norm.bias = nn.Parameter(norm.bias / size, requires_grad=False)
    for linear in one.linears:
        linear.weight = nn.Parameter(linear.weight * size, requires_grad=False)
