"""Grad-CAM (arXiv:1610.02391) on the tokens of a layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explain.capture import attentions_of
from vitrail.explain.readout import (
    Relevance,
    as_tokens,
    check_model,
    refuse_ambiguous,
    score,
    watch,
)


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
    model that unfolds and convolves its map after it, what the head reads.

    >>> gradcam(model, images, torch.tensor([2]), layer="blocks.11.norm1").map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    if layer:
        refuse_ambiguous(model, layer)
    layouts = [attend.layout for attend in attentions_of(model).values()]
    last = list(attentions_of(model))[-1]
    with torch.inference_mode(False), torch.enable_grad():
        image = images.clone().requires_grad_()
        with watch(model, layer or last) as seen:
            logits = model(image)
        total, target = score(logits, target)
        unnamed = seen.entered.get(last) if layouts[-1].fold is None else seen.last
        place = seen.given.get(layer) if layer else unnamed
        tokens, gradient, layout = patches_at(place, total, layouts, image)
    weights: Float[Tensor, "B 1 D"] = gradient.mean(dim=1, keepdim=True)
    heat = (tokens * weights).sum(dim=-1).clamp(min=0).unflatten(1, layout.grid)
    return Relevance(heat, layout, "gradcam", target)


def patches_at(
    place: object,
    total: Float[Tensor, ""],
    layouts: list[TokenLayout],
    image: Float[Tensor, "B C H W"],
) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n D"], TokenLayout]:
    """The patches there and their gradients."""
    known = isinstance(place, Tensor) and place.requires_grad and len(place) == len(image)
    if not known:
        raise UserError("the layer gives no tensor that depends on the image: choose another")
    assert isinstance(place, Tensor)
    (found,) = torch.autograd.grad(total, place, allow_unused=True, materialize_grads=True)
    size = image.shape[2], image.shape[3]
    tokens, layout = as_tokens(place.detach(), layouts, size)
    gradient, _ = as_tokens(found, layouts, size)
    return tokens[:, layout.prefix :], gradient[:, layout.prefix :], layout
