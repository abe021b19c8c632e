"""Inference that computes no more than the head reads.

Where a ViT's head reads the class token alone, the last block need not compute the
patches: they are still attended to, but need no query and no MLP. In ViT-S/16 that is a fifteenth
of all work. Whoever observes the model, by a hook of any kind, gets the whole computation.
"""

from typing import TypeGuard

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from vitrail.models.model import Model
from vitrail.models.vit import Block, PostNormBlock, ViT


def pruned_logits(model: Model, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
    """model(images), to rounding."""
    if not can_prune_last_block(model):
        return model(images)
    return model.logits_of(model.encode(images, queries=model.config.prefix))


def pruned_features(model: Model, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
    """model.features(images), to rounding."""
    if not can_prune_last_block(model):
        return model.features(images)
    return model.features_of(model.encode(images, queries=model.config.prefix))


def can_prune_last_block(model: Model) -> TypeGuard[ViT]:
    """Whether nobody reads or sees the patches that leave the last block. Asked at every call,
    because hooks come and go. A subclass may read more."""
    if type(model) is not ViT or model.config.pool != "cls":
        return False
    last = model.blocks[-1]
    if not isinstance(last, Block) or type(last) not in (Block, PostNormBlock):
        return False
    return last.attention.can_split_queries and not is_observed(model)


def is_observed(model: nn.Module) -> bool:
    """Whether some module has a hook, or a compiled or replaced forward."""
    if _has_any_global_hook():
        return True
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in vars(module)
        for module in model.modules()
    )
