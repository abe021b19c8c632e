"""Every method that explains an image, by its name."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError, nearest
from vitrail.core.passport import Passport
from vitrail.explanation.auto_method import MethodChoice, choose_method
from vitrail.explanation.capture import (
    WITHOUT_ATTENTION,
    list_attentions,
    no_attention,
    refuse_compiled,
)
from vitrail.explanation.gradcam import gradcam, hirescam
from vitrail.explanation.gradients import attribution, relevance
from vitrail.explanation.hooks import named_blocks
from vitrail.explanation.integrated import integrated
from vitrail.explanation.occlusion import occlusion
from vitrail.explanation.readout import Relevance
from vitrail.explanation.rollout import attention, rollout
from vitrail.explanation.saliency import saliency, smoothgrad
from vitrail.explanation.verdict import CLASSLESS
from vitrail.weights.load import load

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
AUTO, ALL = "auto", "all"
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
    `choose_method` takes; `target` is a class for each image, or one for all by its number or its
    label, the most likely where none is given.

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
    known = options_of(method)
    if unknown := [name for name in options if name not in known]:
        has = f"has {', '.join(known)}" if known else "has none"
        raise UserError(f"{method} has no option {unknown[0]!r}: it {has}")
    if isinstance(target, int | str):
        target = class_index(model, target)
        target = torch.full((len(images),), target, device=images.device)
    return METHODS[method](model, images, target, **options)


def class_index(model: nn.Module, target: int | str) -> int:
    """The index of a class by its label, or by its number where no label is written so."""
    passport = getattr(model, "passport", None)
    labels = (passport.labels if isinstance(passport, Passport) else None) or ()
    if target in labels:
        return labels.index(target)
    classes = getattr(getattr(model, "config", None), "num_classes", None)
    is_number = isinstance(target, int) or target.isdecimal()
    if is_number and (classes is None or 0 <= int(target) < classes):
        return int(target)
    if labels:
        hint = nearest(str(target), labels)
    elif not is_number:
        hint = "this model has no labels, give the number of a class"
    else:
        hint = f"this model has classes 0 to {(classes or 1) - 1}"
    raise UserError(f"target must be a class of the model, got {target!r}: {hint}")


def select_methods(
    names: str | Sequence[str], model: nn.Module, options: Mapping[str, Any], called: str
) -> tuple[dict[str, dict[str, Any]], MethodChoice | None]:
    """Each method with those of the options that it has, and what auto chose if it was given
    for; an option that is None was not given. `called` names the model in messages.

    >>> select_methods("auto", model, {"residual": 0.9, "head": None}, "model")[0]
    {'attribution': {'residual': 0.9}}
    """
    every = check_names(names)
    attentive = bool(list_attentions(model))
    if not attentive and set(every) == set(METHODS):  # all that there are for such a model
        every = WITHOUT_ATTENTION
    if not attentive and any(name in METHODS and name not in WITHOUT_ATTENTION for name in every):
        raise UserError(no_attention())
    auto = choose_method(model) if AUTO in every else None
    every = tuple(dict.fromkeys(auto.method if auto and n == AUTO else n for n in every))
    has_head = getattr(getattr(model, "config", None), "num_classes", 1)
    if not has_head and not attentive:
        choose_method(model)  # raises: there is neither a class nor attention
    if not has_head and (wrong := [name for name in every if name not in CLASSLESS]):
        raise UserError(
            f"{called} has no head, and {wrong[0]} explains a class: choose method "
            f"{' or '.join(CLASSLESS)}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    chosen = {
        name: {option: value for option, value in given.items() if option in options_of(name)}
        for name in every
    }
    for option in given:
        if not any(option in own for own in chosen.values()):
            able = [name for name in METHODS if option in options_of(name)]
            raise UserError(f"{option} is for {' and '.join(able)}: choose method {able[0]} too")
    for name in ("gradcam", "hirescam"):  # these read the output of a block, not an attention
        if isinstance(chosen.get(name, {}).get("layer"), int):
            chosen[name]["layer"] = block_name(model, chosen[name]["layer"])
    return chosen, auto


def check_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Known methods, each once.

    >>> check_names(["rollout", "auto", "rollout"])
    ('rollout', 'auto')
    """
    requested = (names,) if isinstance(names, str) else tuple(names)
    for name in requested:
        if name not in (*METHODS, AUTO, ALL):
            raise UserError(f"unknown method {name!r}, {nearest(name, (*METHODS, AUTO, ALL))}")
    if not requested:
        raise UserError(f"method must name at least one of {', '.join((*METHODS, AUTO, ALL))}")
    return tuple(METHODS) if ALL in requested else tuple(dict.fromkeys(requested))


def options_of(method: str) -> list[str]:
    parameters = signature(METHODS[method]).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def block_name(model: nn.Module, number: int) -> str:
    blocks = list(named_blocks(model))
    if not -len(blocks) <= number < len(blocks):
        raise UserError(f"layer must be from 0 to {len(blocks) - 1}, got {number}")
    return blocks[number]


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
    """The module itself where its attention can be seen, or it is ours; else a model of ours with
    its weights."""
    refuse_compiled(model)
    return model if list_attentions(model) or hasattr(model, "blocks_by_depth") else load(model)
