"""Adopting a model that is in memory already: a timm, transformers or torchvision module.

Its weights and its own config go the way that files go, and what comes out is held against it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.passport import Origin, Passport
from vitrail.models.catalogue import skeleton
from vitrail.models.model import Model
from vitrail.weights.dialect import Dialect, Foreign, Sidecars
from vitrail.weights.dialects import recognise
from vitrail.weights.load import Checkpoint, materialise
from vitrail.weights.rows import read
from vitrail.weights.settle import settle

# How far apart two code bases come out by rounding alone, as a share of the largest logit.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-3}


def adopt(module: nn.Module, *, dialect: str | None = None, **said: Any) -> Model:
    """The same model as one of ours, with a copy of its weights; one of ours as it is.

    `said` answers what neither tensors nor config tell, as `load` does. Both are shown one picture
    of noise: a model that says something else is refused, never returned.

    >>> adopt(model) is model
    True
    """
    if isinstance(module, torch._dynamo.OptimizedModule):  # compiled
        module = module._orig_mod
    if isinstance(module, Model):
        return module
    with torch.device("cpu"), torch.inference_mode(False):
        checkpoint = understand(module, dialect, said)
        ours = materialise(checkpoint, checkpoint.config)
    prove(ours, module, checkpoint)
    first = next(module.parameters(), None)
    return ours if first is None else ours.to(first.device)


def understand(module: nn.Module, dialect: str | None, said: dict[str, Any]) -> Checkpoint:
    """What the module holds, by the dialect that its tensors are named in."""
    source = f"the {type(module).__name__} that you gave"
    tensors = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    foreign = Foreign(source, tensors, sidecars_of(module))
    speaks: Dialect = recognise(foreign, dialect)
    told = {name: value for name, value in said_by(module).items() if name not in said}
    config, notes = settle(foreign, speaks, named=None, grid=None, said={**told, **said})
    shapes = {name: tensor.shape for name, tensor in skeleton(config).state_dict().items()}
    state, coverage = read(speaks.rows(config), tensors, shapes, where=source)
    origin = Origin(
        source=f"{type(module).__module__}.{type(module).__qualname__}",
        dialect=speaks.name,
        licence=speaks.licence(foreign),
        changes=tuple(notes),
    )
    passport = Passport(
        family=speaks.family,
        config=asdict(config),
        preprocessing=speaks.preprocessing(foreign, config),
        labels=speaks.labels(foreign),
        resize=speaks.resizes(config),
        origin=origin,
    )
    return Checkpoint(state, config, passport, speaks.name, coverage, tuple(notes))


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
    was_training = module.training
    module.eval()
    try:
        theirs = logits_of(module(image.to(first)))
    finally:
        module.train(was_training)
    mine = ours(image)
    name = type(module).__name__
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
            f"no tensor tells: logits are {apart:.1e} apart from ours; name its dialect, or what "
            "is different about it (image_size=, heads=)"
        )


def logits_of(answer: Any) -> Tensor | None:
    answer = getattr(answer, "logits", answer)
    return answer if isinstance(answer, Tensor) and answer.ndim == 2 else None
