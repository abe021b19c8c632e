"""Linear layers, by the library that multiplies float32 matrices fastest on this processor.

PyTorch takes MKL, which has no AVX-512 code for AMD's processors. oneDNN, with which PyTorch
computes its convolutions, has: there it is about twice as fast, forwards and backwards
(`docs/log.md`).
"""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from vitrail.core.processor import is_amd

MIN_PRODUCTS = 4_000_000  # multiplications from which the call of oneDNN pays


class Linear(nn.Linear):
    """nn.Linear through `linear`."""

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B E"]:
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*B D"], weight: Float[Tensor, "E D"], bias: Float[Tensor, "E"] | None = None
) -> Float[Tensor, "*B E"]:
    """F.linear, to rounding.

    >>> linear(torch.ones(4, 2), torch.ones(3, 2)).shape
    torch.Size([4, 3])
    """
    if not prefers_onednn(x, weight, bias):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return multiply(x, weight, bias)
    product: Tensor = OneDnnLinear.apply(  # type: ignore[no-untyped-call]
        x.flatten(0, -2), weight, bias
    )
    # as F.linear: FSDP2 warns of a block whose output is a view, such as Swin's patch merging
    shaped: Tensor = torch.ops.aten._unsafe_view(product, (*x.shape[:-1], weight.shape[0]))
    return shaped


def prefers_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether oneDNN multiplies these faster, and may."""
    if torch.compiler.is_compiling():
        return False
    return is_onednn_faster() and can_use_onednn(x, weight, bias)


@cache
def is_onednn_faster() -> bool:
    """Whether MKL would multiply with half of what this processor has."""
    is_there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return is_there and is_amd() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def can_use_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are large float32 matrices in memory, and nobody watches PyTorch's operators:
    a trace, a counter, a transform of functions, forward gradients and autocast must see
    F.linear."""
    return (
        all(is_plain(one) for one in (x, weight, bias) if one is not None)
        and x.ndim >= 2
        and x.shape[-1:] == weight.shape[1:]  # else F.linear says what is wrong
        and x.numel() * weight.shape[0] >= MIN_PRODUCTS
        # oneDNN would read as many numbers from where the bias begins, whatever its shape
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch._C._get_tracing_state() is None
        and not is_in_torch_dispatch_mode()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
    )


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: tuple[str, str] = ("none", "")
) -> Tensor:
    """x Wᵀ + b by oneDNN, without gradients, and an activation by its name and variant. Inductor
    calls the same operator."""
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        weight = weight.contiguous()  # oneDNN takes 1,000 times as long for one with gaps
    name, variant = activation
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], variant)
    return product


class OneDnnLinear(torch.autograd.Function):
    """(M, D), (E, D), (E) -> (M, E). Its gradients are such products again, so that they have
    gradients too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        # no activations for a frozen weight, as of LoRA
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            linear(gradient, weight.T) if of_x else None,
            linear(gradient.T, x.T) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
