"""Copies of a model over the same weights, and submodules replaced in a copy of it."""

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitrail.layers.linear import Linear

M = TypeVar("M", bound=nn.Module)
Rule = Callable[[nn.Module], nn.Module | None]  # a module's replacement, None to keep it


def share_weights(model: M) -> M:
    """A copy of all modules over the same memory: hooking, moving or rewriting the copy leaves the
    model alone, and no weight is copied."""
    memo: dict[int, object] = {
        id(one): nn.Parameter(one.detach(), requires_grad=one.requires_grad)
        for one in model.parameters()
    }
    memo |= {id(one): one.detach() for one in model.buffers()}
    return copy.deepcopy(model, memo)


@torch.no_grad()
def replace_modules(model: nn.Module, rule: Rule) -> nn.Module:
    """The model with every submodule replaced for which `rule` has a replacement, inner ones first.

    The given model stays as it is. What did not change is shared: modules without a replaced
    submodule are the same objects. A module that is used twice is replaced once.
    """
    done: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> nn.Module:
        if id(module) not in done:
            children = {name: visit(child) for name, child in module.named_children()}
            rebuilt = module
            if any(module._modules[name] is not child for name, child in children.items()):
                rebuilt = with_children(module, children)
            replacement = rule(rebuilt)
            done[id(module)] = rebuilt if replacement is None else replacement
        return done[id(module)]

    return visit(model)


def with_children(module: M, children: Mapping[str, nn.Module | None]) -> M:
    """A shallow copy with other submodules; its tables of parameters and hooks are its own."""
    changed = copy.copy(module)
    tables = {name: copy.copy(value) for name, value in vars(module).items() if is_table(value)}
    vars(changed).update(tables)
    changed._modules.update(children)
    return changed


def is_table(value: object) -> bool:
    return isinstance(value, dict | set)


class Constant(nn.Module):
    """A tensor that was computed once, in the place of a module that computed it at every call."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value.detach().contiguous(), persistent=False)

    def forward(self) -> Tensor:
        return self.value


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer over given tensors, which it does not copy."""
    layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return with_tensors(layer, weight, bias)


def make_conv(like: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """A convolution as `like`, over given tensors."""
    layer = nn.Conv2d(
        like.in_channels,
        like.out_channels,
        like.kernel_size,  # type: ignore[arg-type]  # torch types its pairs as open tuples
        like.stride,  # type: ignore[arg-type]
        like.padding,  # type: ignore[arg-type]
        like.dilation,  # type: ignore[arg-type]
        like.groups,
        bias=bias is not None,
        padding_mode=like.padding_mode,
        device="meta",
    )
    return with_tensors(layer, weight, bias)


L = TypeVar("L", nn.Linear, nn.Conv2d)


def with_tensors(layer: L, weight: Tensor, bias: Tensor | None) -> L:
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer.eval()
