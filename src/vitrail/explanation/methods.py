"""Every method that explains an image, by its name."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError, nearest
from vitrail.core.passport import Passport
from vitrail.explanation.auto_method import MethodChoice, choose_method
from vitrail.explanation.capture import refuse_compiled
from vitrail.explanation.gradcam import gradcam, hirescam
from vitrail.explanation.gradients import attribution, relevance
from vitrail.explanation.integrated import integrated
from vitrail.explanation.occlusion import occlusion
from vitrail.explanation.readout import Relevance
from vitrail.explanation.rollout import attention, rollout
from vitrail.explanation.saliency import saliency, smoothgrad
from vitrail.layers.attention import Attend, SeparableAttend
from vitrail.weights.load import load

__all__ = [
    "AUTO",
    "METHODS",
    "Method",
    "MethodChoice",
    "Relevance",
    "bind_method",
    "choose_method",
    "explain_tensor",
]

# (model, images, target, options) -> Relevance
Method = Callable[..., Relevance]

METHODS: dict[str, Method] = {
    "attention": attention,
    "rollout": rollout,
    "relevance": relevance,
    "attribution": attribution,
    "gradcam": gradcam,
    "hirescam": hirescam,
    "saliency": saliency,
    "smoothgrad": smoothgrad,
    "integrated": integrated,
    "occlusion": occlusion,
}
AUTO = "auto"
# options for where a rough map will do, such as those of shuffled models
QUICK: dict[str, dict[str, Any]] = {"integrated": {"steps": 32}, "smoothgrad": {"samples": 2}}


def explain_tensor(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    method: str = AUTO,
    *,
    target: Int[Tensor, "B"] | int | str | None = None,
    **options: Any,
) -> Relevance:
    """Which parts of each image drive a prediction, by one of `METHODS`, or by the one that
    `choose_method` takes; `target` is a class for each image, or one for
    all by its number or its label, the most likely where none is given.

    A timm, transformers or torchvision module is read by `vitrail.load`, at every call anew: to
    explain many images, load it once.

    >>> explain_tensor(model, images, "rollout", fusion="max").map.shape
    torch.Size([1, 14, 14])
    """
    if method not in (AUTO, *METHODS):
        raise UserError(f"unknown method {method!r}, {nearest(method, METHODS)}")
    model = as_vitrail_model(model)
    if method == AUTO:
        method = choose_method(model).method
    chosen = METHODS[method]
    known = [p.name for p in signature(chosen).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if unknown := [name for name in options if name not in known]:
        has = f"has {', '.join(known)}" if known else "has none"
        raise UserError(f"{method} has no option {unknown[0]!r}: it {has}")
    if isinstance(target, str):
        target = class_index(model, target)
    if isinstance(target, int):
        target = torch.full((len(images),), target, device=images.device)
    return chosen(model, images, target, **options)


def class_index(model: nn.Module, label: str) -> int:
    """The number of a label in the model's answer."""
    passport = getattr(model, "passport", None)
    labels = passport.labels if isinstance(passport, Passport) else None
    if labels is None:
        raise UserError(
            f"target must be the number of a class, got {label!r}: this model has no labels"
        )
    if label not in labels:
        raise UserError(
            f"target must be a class of the model, got {label!r}: {nearest(label, labels)}"
        )
    return labels.index(label)


def bind_method(
    name: str, model: nn.Module, target: Int[Tensor, "B"], **options: Any
) -> Callable[[nn.Module, Tensor], Relevance]:
    """A method as the verdict on its maps of a model calls it: of other models, whose weights are
    shuffled, a rough map will do."""

    def maps_of(other: nn.Module, images: Tensor) -> Relevance:
        rough = {} if other is model else QUICK.get(name, {})
        return METHODS[name](other, images, target, **{**rough, **options})

    return maps_of


def as_vitrail_model(model: nn.Module) -> nn.Module:
    """The module itself where its attention can be seen, else a model of ours with its weights."""
    refuse_compiled(model)
    seen = any(isinstance(part, Attend | SeparableAttend) for part in model.modules())
    return model if seen else load(model)
