"""Biases of attention, relative ones and the masks of shifted windows, computed once."""

import torch
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import Constant, replace_modules, with_children
from vitrail.layers.relative import ComputedBias, RelativeBias
from vitrail.layers.window import ShiftMask
from vitrail.models import beit
from vitrail.models.model import Model
from vitrail.models.swin import WindowAttention
from vitrail.models.swinv2 import ContinuousBias, CosineAttention

# A bias for every pair of tokens can be larger than all weights (BEiT-L at 512 pixels: 1.6 GB
# beside 1.2 GB): what is computed once may take this share of the weights' memory.
MOST_MEMORY = 0.5
BIASES = (RelativeBias, ComputedBias, ContinuousBias, beit.RelativeBias)


def bake_biases(model: Model) -> Model:
    """The model with its biases of attention as constants, masks included, the first ones first as
    long as memory allows."""
    left = MOST_MEMORY * sum(one.numel() for one in model.parameters())

    def bake(module: nn.Module) -> nn.Module | None:
        nonlocal left
        bias = compute_bias(module)
        if bias is None or bias.numel() > left:
            return None
        left -= bias.numel()
        if isinstance(module, WindowAttention | CosineAttention):
            return with_children(module, {"bias": Constant(bias), "mask": nn.Identity()})
        return Constant(bias)

    baked = replace_modules(model, bake)
    assert isinstance(baked, Model)
    return baked


@torch.no_grad()
def compute_bias(module: nn.Module) -> Tensor | None:
    """What a module adds to attention's logits, whatever the image; None for any other module."""
    if type(module) in BIASES and not module.training:
        bias: Tensor = module()
        return bias
    if type(module) in (WindowAttention, CosineAttention):
        mask = module.get_submodule("mask")
        if type(mask) is ShiftMask and mask.regions is not None:
            masked: Tensor = mask(module.get_submodule("bias")())
            return masked
    return None
