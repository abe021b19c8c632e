"""Grad-CAM (arXiv:1610.02391) and HiResCAM (arXiv:2011.08891) on the tokens of a layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import list_attentions
from vitrail.explanation.readout import (
    Relevance,
    check_model,
    record_outputs,
    refuse_ambiguous,
    sum_target_logits,
    to_tokens,
)
from vitrail.layers.merged import membership


@dataclass(frozen=True)
class LayerPatches:
    """The patches of a layer, and the gradients of the logit with respect to them."""

    tokens: Float[Tensor, "B n D"]
    gradient: Float[Tensor, "B n D"]
    layout: TokenLayout
    target: Int[Tensor, "B"]

    def relevance(self, weights: Float[Tensor, "B #n D"], method: str) -> Relevance:
        """Channels by these weights, summed, where positive."""
        heat = (self.tokens * weights).sum(dim=-1).clamp(min=0).unflatten(1, self.layout.grid)
        return Relevance(heat, self.layout, method, self.target)


def gradcam(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    layer: str | None = None,
) -> Relevance:
    """Each channel weighed by its mean gradient over all patches, summed, where positive.

    `layer` is the name of a module whose output is tokens, a grid or a map. Without one it is the
    deepest place where patches still stand for themselves: what the last attention reads, or, of a
    convolutional network and of a model that unfolds and convolves its map after attention, what
    the head reads.

    >>> gradcam(model, images, torch.tensor([2]), layer="blocks.11.norm1").map.shape
    torch.Size([1, 14, 14])
    """
    found = layer_patches(model, images, target, layer)
    return found.relevance(found.gradient.mean(dim=1, keepdim=True), "gradcam")


def hirescam(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    layer: str | None = None,
) -> Relevance:
    """Each channel of each patch weighed by its own gradient there, summed, where positive. What
    mixes patches after the layer makes gradients differ between them, and the mean of Grad-CAM
    loses that. `layer` is as for `gradcam`.

    >>> hirescam(model, images, torch.tensor([2]), layer="blocks.11.norm1").map.shape
    torch.Size([1, 14, 14])
    """
    found = layer_patches(model, images, target, layer)
    return found.relevance(found.gradient, "hirescam")


def layer_patches(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None,
    layer: str | None,
) -> LayerPatches:
    check_model(model)
    if layer:
        refuse_ambiguous(model, layer)
    attentions = list_attentions(model)
    layouts = [attend.layout for attend in attentions.values()]
    last = list(attentions)[-1] if attentions else None
    names = [name for name in (layer or last,) if name]
    with torch.inference_mode(False), torch.enable_grad():
        image = images.clone().requires_grad_()
        with record_outputs(model, *names) as seen, merge_record(model, last) as merges:
            logits = model(image)
        total, target = sum_target_logits(logits, target)
        unnamed = seen.last
        if last is not None and layouts[-1].fold is None:
            unnamed = seen.inputs.get(last)
        place = seen.outputs.get(layer) if layer else unnamed
        known = isinstance(place, Tensor) and place.requires_grad and len(place) == len(image)
        if not known:
            raise UserError("the layer gives no tensor that depends on the image: choose another")
        assert isinstance(place, Tensor)
        (found,) = torch.autograd.grad(total, place, allow_unused=True, materialize_grads=True)
    size, place = (image.shape[2], image.shape[3]), place.detach()
    if merges:
        place, found = unmerge(place, found, merges[-1], layer)
    tokens, layout = to_tokens(place, layouts, size)
    gradient, _ = to_tokens(found, layouts, size)
    patches = slice(layout.prefix, None)
    return LayerPatches(tokens[:, patches], gradient[:, patches], layout, target)


@contextmanager
def merge_record(model: nn.Module, name: str | None) -> Iterator[list[Int[Tensor, "B N"]]]:
    """Which merged token each token is a part of where an attention of this name ran; nothing of a
    model that merges none (`layers/merged.py`)."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> None:
        if kwargs.get("group") is not None:
            found.append(kwargs["group"])

    attentions = [attend for each, attend in list_attentions(model).items() if each == name]
    handles = [attend.register_forward_hook(keep, with_kwargs=True) for attend in attentions]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def unmerge(
    tokens: Float[Tensor, "B M D"],
    gradient: Float[Tensor, "B M D"],
    group: Int[Tensor, "B N"],
    layer: str | None,
) -> tuple[Float[Tensor, "B N D"], Float[Tensor, "B N D"]]:
    """Merged tokens as the tokens that they were merged from, each with an even part of the
    gradient: a merged token is the mean of its parts."""
    if tokens.ndim != 3 or tokens.shape[1] > group.shape[1] or int(group.max()) >= tokens.shape[1]:
        raise UserError(
            f"the tokens of {layer or 'this layer'} are merged otherwise: leave out layer"
        )
    each = group[:, :, None].expand(-1, -1, tokens.shape[2])
    sizes = membership(group, tokens.shape[1]).sum(dim=2).to(gradient)
    return tokens.gather(1, each), (gradient / sizes.clamp(min=1)[:, :, None]).gather(1, each)
