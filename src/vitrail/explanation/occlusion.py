"""Occlusion (arXiv:1311.2901): what a model loses when a part of the image is covered."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.explanation.capture import at_least_float32
from vitrail.explanation.propagation import on_pixels
from vitrail.explanation.readout import Relevance, check_model, finest_layout, sum_target_logits


@torch.no_grad()
def occlusion(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    window: float = 0.25,
    step: float = 0.125,
    baseline: float = 0.0,
) -> Relevance:
    """By how much the logit falls, on average over the windows that cover a patch.

    A window is a share of each side, in whole patches, and moves by `step`: by default there are
    seven by seven of them, and the model runs once for each. 0 is the grey or the mean colour that
    preprocessing subtracts.

    >>> occlusion(model, images, torch.tensor([2]), window=0.5, step=0.5).map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    for name, share in (("window", window), ("step", step)):
        if not 0 < share <= 1:
            raise UserError(f"{name} must be a share of the side in (0, 1], got {share}")
    finest = finest_layout(model)
    logits = model(images)
    _, target = sum_target_logits(logits, target)
    before = logits.gather(1, target[:, None])[:, 0]
    covers = sliding_windows(finest.grid, window, step).to(images.device)
    size = (images.shape[2], images.shape[3])
    pixels = on_pixels(covers.float(), size, layout=finest, mode="nearest")
    falls = []
    for covered in pixels > 0:
        after = model(images.masked_fill(covered, baseline)).gather(1, target[:, None])[:, 0]
        falls.append(before - after)
    fallen = at_least_float32(torch.stack(falls))
    weights = covers.to(fallen) / covers.sum(dim=0)
    heat = torch.einsum("wb,wrc->brc", fallen, weights)
    return Relevance(heat, finest, "occlusion", target)


def sliding_windows(
    grid: tuple[int, int], window: float, step: float
) -> Bool[Tensor, "w rows columns"]:
    """Which patches each window covers: the last ones may reach beyond the border.

    >>> sliding_windows((1, 4), 0.5, 0.25).int().tolist()
    [[[1, 1, 0, 0]], [[0, 1, 1, 0]], [[0, 0, 1, 1]]]
    """
    sides = []
    for count in grid:
        length, apart = (max(round(share * count), 1) for share in (window, step))
        starts = torch.arange(0, max(count - length, 0) + apart, min(apart, length))
        place = torch.arange(count)
        sides.append((place >= starts[:, None]) & (place < starts[:, None] + length))
    down, across = sides
    return (down[:, None, :, None] & across[None, :, None, :]).flatten(0, 1)
