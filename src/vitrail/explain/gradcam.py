"""Grad-CAM (arXiv:1610.02391) on the tokens of a layer."""

from collections.abc import Sequence

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
    deepest place where patches still matter: what the head reads, or, where it reads a class token
    alone, what the last attention reads.

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
        places = [seen.given.get(layer)] if layer else [seen.last, seen.entered[last]]
        found = gradients(total, places, layouts, image)
    tokens, gradient, layout = next((one for one in found if one[1].any()), found[-1])
    weights: Float[Tensor, "B 1 D"] = gradient.mean(dim=1, keepdim=True)
    heat = (tokens * weights).sum(dim=-1).clamp(min=0).unflatten(1, layout.grid)
    return Relevance(heat, layout, "gradcam", target)


def gradients(
    total: Float[Tensor, ""],
    places: Sequence[object],
    layouts: list[TokenLayout],
    image: Float[Tensor, "B C H W"],
) -> list[tuple[Float[Tensor, "B n D"], Float[Tensor, "B n D"], TokenLayout]]:
    """Patches and their gradients at each place."""
    known = [place for place in places if isinstance(place, Tensor) and place.requires_grad]
    if len(known) < len(places) or any(len(place) != len(image) for place in known):
        raise UserError("the layer gives no tensor that depends on the image: choose another")
    size = image.shape[2], image.shape[3]
    found = torch.autograd.grad(total, known, allow_unused=True, materialize_grads=True)
    cut = []
    for place, gradient in zip(known, found, strict=True):
        tokens, layout = as_tokens(place.detach(), layouts, size)
        gradient, _ = as_tokens(gradient, layouts, size)
        cut.append((tokens[:, layout.prefix :], gradient[:, layout.prefix :], layout))
    return cut
