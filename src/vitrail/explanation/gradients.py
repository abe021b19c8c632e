"""Attention weighed by what it does to a class: relevance and attribution (arXiv:2103.15679).

Both take from every layer (∇A ⊙ A)⁺, the mean over heads: attention that counts for the class.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap, capture
from vitrail.explanation.propagation import Cells, check_weights, normalise_rows, propagate, regrid
from vitrail.explanation.readout import (
    Relevance,
    check_model,
    readout_by_gradient,
    record_outputs,
    sum_target_logits,
    to_tokens,
)
from vitrail.explanation.rollout import Fused, propagate_back


@dataclass(frozen=True)
class Evidence:
    """What counts for a class: in each layer, in the order of running, and in the tokens that the
    head reads."""

    layers: list[Fused]
    start: Cells
    layout: TokenLayout  # of the start
    target: Int[Tensor, "B"]


def relevance(
    model: nn.Module, images: Float[Tensor, "B C H W"], target: Int[Tensor, "B"] | None = None
) -> Relevance:
    """The rule of Chefer, Gur and Wolf for self-attention: R = R + (∇A ⊙ A)⁺ R, layer by layer, and
    of that the rows that are read out.

    They read the class token. Where a model reads patches, each counts by what it says for the
    class.

    >>> relevance(model, images, torch.tensor([2])).map.shape
    torch.Size([1, 14, 14])
    """
    found = class_evidence(model, images, target)
    cells, layout = found.start, found.layout
    for weights, at in reversed(found.layers):
        cells, layout = regrid(cells, layout, at), at
        more = propagate(weights, at, cells)
        cells = Cells(cells.prefix + more.prefix, cells.grid + more.grid)
    return Relevance(cells.grid, layout, "relevance", found.target)


def attribution(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    residual: float = 0.5,
) -> Relevance:
    """A rollout of (∇A ⊙ A)⁺ in the place of A (after arXiv:2012.09838, with attention for its own
    relevance, as the same authors do later): rows are normalised, so that every layer counts the
    same however small its gradients are.

    >>> attribution(model, images, torch.tensor([2])).map.shape
    torch.Size([1, 14, 14])
    """
    found = class_evidence(model, images, target)
    layers = [(normalise_rows(weights, at), at) for weights, at in found.layers]
    cells, layout = propagate_back(layers, found.start, found.layout, residual=residual)
    return Relevance(cells.grid, layout, "attribution", found.target)


def class_evidence(
    model: nn.Module, images: Float[Tensor, "B C H W"], target: Int[Tensor, "B"] | None
) -> Evidence:
    """One pass forwards and one back. Of gradients, no more is kept than one head for each map."""
    check_model(model)
    found: dict[str, Tensor] = {}
    with torch.inference_mode(False), torch.enable_grad():
        image = images.clone().requires_grad_()
        with capture(model, differentiable=True) as maps, record_outputs(model) as seen:
            logits = model(image)
        total, target = sum_target_logits(logits, target)
        for name, one in maps.items():
            check_weights(one.weights, one.layout)
            one.weights.register_hook(gradient_hook(name, one, found))
        if seen.last is None:
            raise UserError("no layer returned tokens: the model cannot be explained by attention")
        # the gradient of the image too, so that the backward pass goes through every attention
        gradient, _ = torch.autograd.grad(total, [seen.last, image])
    layouts, size = [one.layout for one in maps.values()], (images.shape[2], images.shape[3])
    tokens, layout = to_tokens(seen.last.detach(), layouts, size)
    gradient, _ = to_tokens(gradient, layouts, size)
    start = readout_by_gradient(tokens, gradient, layout)
    layers = [(found[name], one.layout) for name, one in maps.items()]
    return Evidence(layers, start, layout, target)


def gradient_hook(
    name: str, one: AttentionMap, found: dict[str, Tensor]
) -> Callable[[Tensor], None]:
    """Keeps (∇A ⊙ A)⁺ as soon as the gradient is known. A row that all tokens share has the sum of
    their gradients, of which each has its part."""
    sharing = one.layout.tokens if one.layout.separable else 1

    def keep(gradient: Tensor) -> None:
        positive = (gradient * one.weights.detach()).clamp_(min=0)
        found[name] = positive.mean(dim=-3).div_(sharing)

    return keep
