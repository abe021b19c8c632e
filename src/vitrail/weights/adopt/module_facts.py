"""What the parts of a hand-written module show that its tensors do not: heads, eps, …"""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn import functional as F

HEADS = ("num_heads", "heads", "n_heads", "nhead", "n_head", "h", "num_attention_heads", "head_num")
SIZES = ("image_size", "img_size", "resolution", "input_size", "input_resolution")
PATCHES = ("patch_size", "patch", "patch_dim", "p")
FUNCTIONS = {F.relu: "relu", F.gelu: "gelu"}
MODULES = {"QuickGELU": "quick_gelu", "GELUTanh": "gelu_tanh", "NewGELU": "gelu_tanh"}


def facts_of(module: nn.Module, block: nn.Module | None) -> dict[str, Any]:
    """Config fields from the attributes of a module's parts, where they leave no doubt; `block` is
    one of its blocks, if that is a module."""
    inside = block or module
    found: dict[str, Any] = {
        "heads": only(numbers(inside, HEADS)),
        "norm_eps": only(norm_eps(module)),
        "activation": only(activations(inside)),
        "norm_placement": only(placements(inside)),
        "image_size": image_size(module),
    }
    rate = only(dropout_rates(inside)) or 0.0
    if rate:
        outside = dropouts_outside(module, inside)
        found |= {"dropout": rate, "embed_dropout": only(iter(outside)) if outside else 0.0}
    pool = getattr(module, "pool", None)
    if pool in ("mean", "cls"):
        found["pool"] = pool
    return {name: value for name, value in found.items() if value is not None}


def only(values: Iterator[Any]) -> Any:
    """The value that all of them are, or None."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def numbers(module: nn.Module, names: tuple[str, ...]) -> Iterator[int]:
    for part in module.modules():
        for name in names:
            value = part.__dict__.get(name)
            if type(value) is int and value > 0:
                yield value


def norm_eps(module: nn.Module) -> Iterator[float]:
    for part in module.modules():
        eps = part.__dict__.get("eps")
        if isinstance(eps, float) and "norm" in type(part).__name__.lower():
            yield eps


def activations(module: nn.Module) -> Iterator[str]:
    for part in module.modules():
        if isinstance(part, nn.GELU):
            yield "gelu_tanh" if part.approximate == "tanh" else "gelu"
        elif isinstance(part, nn.ReLU):
            yield "relu"
        elif type(part).__name__ in MODULES:
            yield MODULES[type(part).__name__]
        for name in ("activation", "act", "act_fn"):
            function = part.__dict__.get(name)
            # by identity: what is called so may be unhashable
            yield from (word for one, word in FUNCTIONS.items() if one is function)


def placements(module: nn.Module) -> Iterator[str]:
    for part in module.modules():
        first = part.__dict__.get("norm_first")
        if isinstance(first, bool):
            yield "pre" if first else "post"


def image_size(module: nn.Module) -> tuple[int, int] | None:
    """The first attribute that is called like an image size."""
    for part in module.modules():
        for name in SIZES:
            value = part.__dict__.get(name)
            if type(value) is int and value > 0:
                return value, value
            if not isinstance(value, tuple | list) or [type(one) for one in value] != [int, int]:
                continue
            if min(value) > 0:
                return int(value[0]), int(value[1])
    return None


def dropouts_outside(module: nn.Module, block: nn.Module) -> list[float]:
    """The rates of dropout layers that are in no module of the block's kind."""
    inside = {
        id(part) for one in module.modules() if type(one) is type(block) for part in one.modules()
    }
    return [
        part.p
        for part in module.modules()
        if isinstance(part, nn.Dropout) and id(part) not in inside
    ]


def dropout_rates(module: nn.Module) -> Iterator[float]:
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            yield part.p
