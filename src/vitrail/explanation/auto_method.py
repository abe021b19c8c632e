"""The method that points best at what a model's answer depends on, by how the model is built.

Which one that is was measured on models whose evidence is known (docs/benchmarks.md, "Pointing at
planted evidence").
"""

from dataclasses import dataclass

import torch
from torch import nn

from vitrail.core.errors import UserError
from vitrail.explanation.capture import list_attentions, no_attention
from vitrail.explanation.readout import readout


@dataclass(frozen=True)
class MethodChoice:
    """A method, and in a few words why it was chosen."""

    method: str
    reason: str


def choose_method(model: nn.Module) -> MethodChoice:
    """`attribution` where attention is the only way by which a patch reaches the answer: the head
    reads the class token alone, attention is over all patches, and no convolution mixes them;
    `smoothgrad` where one of these is not so; `rollout` without a head.

    >>> choose_method(model).method
    'attribution'
    """
    attentions = list_attentions(model)
    if not getattr(getattr(model, "config", None), "num_classes", 1):
        if not attentions:
            raise UserError(
                f"{type(model).__name__} has no head and no attention, so that there is no class "
                "to explain and nothing to roll out: give a model with classes"
            )
        return MethodChoice("rollout", "the model has no head, so there is no class to explain")
    layouts = [attend.layout for attend in attentions.values()]
    if any(layout.window is not None for layout in layouts):
        return MethodChoice("smoothgrad", "attention is within windows")
    if any(layout.fold is not None for layout in layouts):
        return MethodChoice("smoothgrad", "attention is across folds")
    if any(has_overlapping_windows(module) for module in model.modules()):
        return MethodChoice("smoothgrad", "convolutions mix neighbouring patches")
    if not layouts:
        raise UserError(no_attention())
    if bool((readout(model, layouts[-1], torch.zeros(1)).grid > 0).any()):
        return MethodChoice("smoothgrad", "the head reads the patches themselves")
    return MethodChoice("attribution", "the head reads the class token, which only attention feeds")


def has_overlapping_windows(module: nn.Module) -> bool:
    """Whether it is a convolution whose windows overlap, as those that cut patches do not."""
    return isinstance(module, nn.Conv2d) and any(
        size > stride for size, stride in zip(module.kernel_size, module.stride, strict=True)
    )
