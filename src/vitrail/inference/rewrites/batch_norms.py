"""Batch norms folded into the convolutions beside them.

With fixed statistics a batch norm is a factor and a shift for each channel. After a convolution
both go into its kernels and bias; before a convolution that pads nothing they do too, through an
average pool as well, which both commute with.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import make_conv, replace_modules, with_children
from vitrail.layers.inverted import ConvNorm
from vitrail.layers.norm import BatchNorm
from vitrail.models.coatnet import Stem
from vitrail.models.mobilenetv2 import ConvNormAct
from vitrail.models.model import Model


def fold_batch_norms(model: Model) -> Model:
    """Without the batch norms that stand beside a convolution; in evaluation mode the same."""
    folded = replace_modules(model, fold_inside)
    assert isinstance(folded, Model)
    return folded


def fold_inside(module: nn.Module) -> nn.Module | None:
    if type(module) is ConvNorm and is_foldable(module.conv, module.norm):
        return fold_after(module.conv, module.norm)
    if type(module) is ConvNormAct and is_foldable(module.conv, module.norm):
        folded = fold_after(module.conv, module.norm)
        return with_children(module, {"conv": folded, "norm": nn.Identity()})
    if type(module) is Stem and is_foldable(module.conv1, module.norm):
        folded = fold_after(module.conv1, module.norm)
        return with_children(module, {"conv1": folded, "norm": nn.Identity()})
    if type(module) is nn.Sequential:
        return fold_sequence(module)
    return None


def fold_sequence(module: nn.Sequential) -> nn.Sequential | None:
    """The sequence without batch norms directly before or after a convolution."""
    layers = dict(module.named_children())
    names = [name for name, layer in layers.items() if type(layer) is not nn.Identity]
    for before, after in pairwise(names):
        first, second = layers[before], layers[after]
        if is_foldable(first, second):
            assert isinstance(first, nn.Conv2d)
            assert isinstance(second, BatchNorm)
            layers[before], layers[after] = fold_after(first, second), nn.Identity()
    kept = [name for name in names if type(layers[name]) is not nn.Identity]
    for place, name in enumerate(kept):
        norm, conv_name = layers[name], next_convolution(layers, kept[place + 1 :])
        conv = layers.get(conv_name)
        if type(norm) is BatchNorm and type(conv) is nn.Conv2d and not norm.training:
            layers[name], layers[conv_name] = nn.Identity(), fold_before(norm, conv)
    if all(module._modules[name] is layer for name, layer in layers.items()):
        return None
    remaining = {n: layer for n, layer in layers.items() if type(layer) is not nn.Identity}
    sequence = with_children(module, {})
    sequence._modules.clear()
    sequence._modules.update(remaining)
    return sequence


def next_convolution(layers: dict[str, nn.Module], names: list[str]) -> str:
    """The convolution that the output of a norm reaches through average pools alone, if it pads
    nothing: there the shift would stop at the edge. "" if there is none."""
    for name in names:
        layer = layers[name]
        if type(layer) is nn.AvgPool2d and layer.padding in (0, (0, 0)):
            continue
        if type(layer) is nn.Conv2d and layer.padding == (0, 0) and layer.groups == 1:
            return name
        break
    return ""


def is_foldable(conv: nn.Module, norm: nn.Module) -> bool:
    """Adapters and subclasses, which may compute something else, are left alone."""
    return type(conv) is nn.Conv2d and type(norm) is BatchNorm and not norm.training


def fold_after(conv: nn.Conv2d, norm: BatchNorm) -> nn.Conv2d:
    """norm(conv(x)) as one convolution."""
    factor, shift = factor_and_shift(norm)
    bias = shift if conv.bias is None else shift + factor * conv.bias
    return make_conv(conv, conv.weight * factor[:, None, None, None], bias)


def fold_before(norm: BatchNorm, conv: nn.Conv2d) -> nn.Conv2d:
    """conv(norm(x)) as one convolution; `conv` pads nothing."""
    factor, shift = factor_and_shift(norm)
    constant = torch.einsum("d c p q, c -> d", conv.weight, shift)
    bias = constant if conv.bias is None else constant + conv.bias
    return make_conv(conv, conv.weight * factor[None, :, None, None], bias)


def factor_and_shift(norm: BatchNorm) -> tuple[Float[Tensor, "C"], Float[Tensor, "C"]]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return factor, norm.bias - norm.running_mean * factor
