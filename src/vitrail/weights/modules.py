"""Reading a model that is in memory already: a timm, transformers or torchvision module, or ours.

Its weights and its own config go the way that files go, and what comes out is held against it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.weights.checkpoint import Checkpoint, materialise, understand
from vitrail.weights.dialect import Foreign, Sidecars
from vitrail.weights.dialects import recognise
from vitrail.weights.native import weights_of
from vitrail.weights.rows import Coverage

# How far apart two code bases come out by rounding alone, as a share of the largest logit.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-3}


def open_module(module: nn.Module, *, dialect: str | None, said: dict[str, Any]) -> Checkpoint:
    """What a module holds, as `load` reads a file; one of ours holds what it says.

    `said` answers what neither tensors nor config tell. Theirs and ours are shown one picture of
    noise: a module that ours does not agree with is refused.
    """
    module = uncompiled(module)
    if isinstance(module, Model):
        state, passport = weights_of(module), module.passport
        return Checkpoint(state, module.config, passport, "vitrail", Coverage(), ())
    name = f"the {type(module).__name__} that you gave"
    tensors = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    foreign = Foreign(name, tensors, sidecars_of(module))
    origin = f"{type(module).__module__}.{type(module).__qualname__}"
    speaks = recognise(foreign, dialect, proven=True)
    checkpoint = understand(foreign, speaks, origin=origin, said=said_by(module) | said)
    prove(materialise(checkpoint, checkpoint.config), module, checkpoint)
    return checkpoint


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that was compiled."""
    inside = module._orig_mod if isinstance(module, torch._dynamo.OptimizedModule) else module
    assert isinstance(inside, nn.Module)
    return inside


def sidecars_of(module: nn.Module) -> Sidecars:
    """The config.json that its library would write beside the weights."""
    config, pretrained = getattr(module, "config", None), getattr(module, "pretrained_cfg", None)
    if config is not None and hasattr(config, "to_json_string"):  # transformers
        written = json.loads(config.to_json_string(use_diff=False))
        return {"config.json": {**written, "architectures": [type(module).__name__]}}
    if isinstance(pretrained, Mapping):  # timm
        facts = {name: as_json(value) for name, value in pretrained.items() if value is not None}
        written = {
            "architecture": facts.pop("architecture", None),
            "global_pool": getattr(module, "global_pool", None),
            "model_args": arguments_of(module),
            "pretrained_cfg": facts,
        }
        return {"config.json": {name: value for name, value in written.items() if value}}
    return {}


def as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def arguments_of(module: nn.Module) -> dict[str, Any]:
    """What timm was told when it made the module, as far as its parts remember it."""
    told: dict[str, Any] = {}
    for name, theirs in (("image_size", "img_size"), ("heads", "num_heads")):
        value = said_by(module).get(name)
        if value is not None:
            told[theirs] = as_json(value)
    window = next(remembered(module, "window_size"), None)
    if isinstance(window, tuple):
        told["window_size"] = list(window)
    return told


def said_by(module: nn.Module) -> dict[str, Any]:
    """What no tensor tells and parts of the module remember."""
    said: dict[str, Any] = {}
    size = next(remembered(module, "img_size", "image_size"), None)
    if size is not None:
        said["image_size"] = (size, size) if isinstance(size, int) else tuple(size)
    heads = set(remembered(module, "num_heads", "num_attention_heads"))
    if len(heads) == 1:
        said["heads"] = heads.pop()
    return said


def remembered(module: nn.Module, *names: str) -> Iterator[Any]:
    for part in module.modules():
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, int | tuple) and not isinstance(value, bool):
                yield value


@torch.no_grad()
def prove(ours: Model, module: nn.Module, checkpoint: Checkpoint) -> None:
    """Both say the same of one picture, or the module is refused."""
    config, first = checkpoint.config, next(module.parameters())
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, config.channels, *config.image_size, generator=generator)
    image = image.to(next(ours.parameters()).dtype)
    training = {part: part.training for part in module.modules()}  # some may be frozen by eval()
    module.eval()
    try:
        theirs = said_of(module(image.to(first)))
    finally:
        for part, mode in training.items():
            part.training = mode
    name = type(module).__name__
    tokens = isinstance(theirs, Tensor) and theirs.ndim == 3  # a model without a head
    mine = ours.encode(image) if tokens else ours(image)
    mine = mine.flatten(1, -2) if tokens else mine  # a grid of them may be a sequence there
    if theirs is None or theirs.shape != mine.shape:
        shape = "no logits" if theirs is None else f"{tuple(theirs.shape)}"
        raise UserError(
            f"the {name} that you gave says {shape}, ours {tuple(mine.shape)}: give a model with "
            "the head that it classifies with"
        )
    theirs = theirs.to(mine)
    apart, largest = float((mine - theirs).abs().max()), float(theirs.abs().max())
    if not apart <= NEAR.get(first.dtype, 0.05) * max(largest, 1e-6):
        raise UserError(
            f"the {name} that you gave reads as {checkpoint.dialect}, but computes something that "
            f"no tensor tells: what it says is {apart:.1e} apart from ours; name its dialect, or "
            "what is different about it (image_size=, heads=)"
        )


def said_of(answer: Any) -> Tensor | None:
    """Logits or features, or the tokens of a model without a head."""
    for name in ("logits", "last_hidden_state"):
        answer = getattr(answer, name, answer)
    return answer if isinstance(answer, Tensor) else None
