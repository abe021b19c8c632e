"""Queries, keys and values by one linear layer with one constant bias, and scales computed once."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.merging import MergingAttention
from vitrail.inference.rewrites.sharing import (
    Constant,
    make_linear,
    replace_modules,
    with_children,
)
from vitrail.layers.attention import QkvLinear, SelfAttention, without_key_bias
from vitrail.layers.norm import scale_to
from vitrail.layers.window import join_heads, split_heads, window_partition, window_reverse
from vitrail.models.model import Model
from vitrail.models.swinv2 import CosineAttention


class FusedCosineAttention(nn.Module):
    """Swin V2's attention with the bias of its projection and its logit scale as constants."""

    def __init__(self, attention: CosineAttention) -> None:
        super().__init__()
        self.heads = attention.heads
        self.qkv = fuse_bias(attention.qkv, attention.qv_bias)
        self.scale = Constant(attention.logit_scale.clamp(max=math.log(100)).exp())
        self.bias, self.mask = attention.bias, attention.mask
        self.attend, self.out = attention.attend, attention.out

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        qkv = self.qkv(window_partition(x, self.attend.layout)).chunk(3, dim=-1)
        q, k, v = (split_heads(part, self.heads) for part in qkv)
        q, k = scale_to(q, self.scale()), scale_to(k, 1.0)
        y = self.attend(q, k, v, self.mask(self.bias()), scale=1.0)
        return window_reverse(self.out(join_heads(y)), self.attend.layout)


def fuse_projections(model: Model) -> Model:
    """The model without biases that are put together at every call."""
    fused = replace_modules(model, fuse)
    assert isinstance(fused, Model)
    return fused


def fuse(module: nn.Module) -> nn.Module | None:
    if type(module) is CosineAttention and type(module.qkv) is QkvLinear:
        return FusedCosineAttention(module).eval()
    if isinstance(module, SelfAttention) and type(module) in (SelfAttention, MergingAttention):
        if type(module.qkv) is not QkvLinear:
            return None
        assert module.qv_bias is not None
        fused = with_children(module, {"qkv": fuse_bias(module.qkv, module.qv_bias)})
        fused._parameters["qv_bias"] = None
        return fused
    return None


@torch.no_grad()
def fuse_bias(qkv: QkvLinear, qv_bias: Float[Tensor, "2 E"]) -> nn.Linear:
    return make_linear(qkv.weight, without_key_bias(qv_bias))
