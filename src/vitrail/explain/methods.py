"""Every method that explains a picture, by its name."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError, nearest
from vitrail.explain.capture import refuse_compiled
from vitrail.explain.gradcam import gradcam
from vitrail.explain.gradients import attribution, relevance
from vitrail.explain.integrated import integrated
from vitrail.explain.occlusion import occlusion
from vitrail.explain.readout import Relevance
from vitrail.explain.rollout import attention, rollout
from vitrail.layers.attention import Attend, SeparableAttend
from vitrail.weights.load import load

__all__ = ["METHODS", "Method", "Relevance", "explain"]

# (model, images, target, options) -> Relevance
Method = Callable[..., Relevance]

METHODS: dict[str, Method] = {
    "attention": attention,
    "rollout": rollout,
    "relevance": relevance,
    "attribution": attribution,
    "gradcam": gradcam,
    "integrated": integrated,
    "occlusion": occlusion,
}


def explain(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    method: str = "attribution",
    *,
    target: Int[Tensor, "B"] | int | None = None,
    **options: Any,
) -> Relevance:
    """Where in each picture a model finds what it says, by one of `METHODS`; `target` is a class
    for each picture or one for all, the most likely where none is given.

    A timm, transformers or torchvision module is read by `vitrail.load`, at every call anew: to
    explain many pictures, load it once.

    >>> explain(model, images, "rollout", fusion="max").map.shape
    torch.Size([1, 14, 14])
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}, {nearest(method, METHODS)}")
    chosen = METHODS[method]
    known = [p.name for p in signature(chosen).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if unknown := [name for name in options if name not in known]:
        has = f"has {', '.join(known)}" if known else "has none"
        raise UserError(f"{method} has no option {unknown[0]!r}: it {has}")
    if isinstance(target, int):
        target = torch.full((len(images),), target, device=images.device)
    return chosen(ours(model), images, target, **options)


def ours(model: nn.Module) -> nn.Module:
    """The module itself where its attention can be seen, else a model of ours with its weights."""
    refuse_compiled(model)
    seen = any(isinstance(part, Attend | SeparableAttend) for part in model.modules())
    return model if seen else load(model)
