"""Deletion and insertion curves (arXiv:1806.07421): the model's score while cells of a map are
replaced, or put back, in an order.

Axes: B images · C channels · H W pixels · N cells of a map · S points of a curve
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.core.randomness import permutation, uniform
from vitrail.explanation.blur import gaussian_blur
from vitrail.explanation.propagation import on_pixels
from vitrail.explanation.readout import Relevance

Images: TypeAlias = Float[Tensor, "B C H W"]
Orders: TypeAlias = Int[Tensor, "B N"]
Score: TypeAlias = Callable[[Images], Float[Tensor, "B"]]
Filling = Literal["blur", "mean"]

BATCH_SIZE = 16  # images that a model reads at once
SMOOTH = 0.1  # of a side: the deviation of the Gaussian that smooths random maps


@dataclass(frozen=True)
class Curves:
    """The score of each image while a growing share of its cells is replaced, or put back."""

    shares: Float[Tensor, "S"]
    deletion: Float[Tensor, "B S"]
    insertion: Float[Tensor, "B S"]

    @property
    def deletion_area(self) -> Float[Tensor, "B"]:
        """Small where the first cells to go are those that matter."""
        return torch.trapezoid(self.deletion, self.shares)

    @property
    def insertion_area(self) -> Float[Tensor, "B"]:
        """Large where the first cells to come are those that matter."""
        return torch.trapezoid(self.insertion, self.shares)


def class_probability(
    model: nn.Module, target: Int[Tensor, "B"], *, multi_label: bool = False
) -> Score:
    """The model's probability of a class of its own for each image; images may come several times,
    round after round."""

    @torch.no_grad()
    def score(images: Images) -> Float[Tensor, "B"]:
        logits = torch.cat([model(part) for part in images.split(BATCH_SIZE)]).float()
        chances = logits.sigmoid() if multi_label else logits.softmax(dim=1)
        wanted = target.to(chances.device).repeat(len(images) // len(target))
        return chances.gather(1, wanted[:, None])[:, 0].cpu()

    return score


def compute_curves(
    score: Score,
    images: Images,
    order: Orders,
    layout: TokenLayout,
    shares: Sequence[float],
    *,
    filling: Filling = "blur",
) -> Curves:
    """Both curves of an order, at shares from 0 to 1, both included."""
    assert (shares[0], shares[-1]) == (0, 1), "a curve goes from nothing to all"
    filled = FILLINGS[filling](images)
    rank = order.argsort(dim=1).view(-1, *layout.grid)
    counts = [round(share * order.shape[1]) for share in shares]
    steps = [pixel_mask(rank < count, layout, images) for count in counts[1:-1]]
    parts = [images, filled]
    for gone in steps:
        parts += [torch.where(gone, filled, images), torch.where(gone, images, filled)]
    (whole, empty), *inner = score(torch.cat(parts)).view(-1, 2, len(images))
    deletion = torch.stack([whole, *(pair[0] for pair in inner), empty], dim=1)
    insertion = torch.stack([empty, *(pair[1] for pair in inner), whole], dim=1)
    return Curves(torch.tensor(counts) / order.shape[1], deletion, insertion)


def scores_without(
    score: Score,
    images: Images,
    order: Orders,
    layout: TokenLayout,
    shares: Sequence[float],
    *,
    filling: Filling = "blur",
) -> Float[Tensor, "2 S B"]:
    """The scores without the first cells of an order, so large a share of them, and without the
    last ones."""
    filled, cells = FILLINGS[filling](images), order.shape[1]
    rank = order.argsort(dim=1).view(-1, *layout.grid)
    counts = [round(share * cells) for share in shares]
    ends = [*(rank < count for count in counts), *(rank >= cells - count for count in counts)]
    parts = [torch.where(pixel_mask(gone, layout, images), filled, images) for gone in ends]
    return score(torch.cat(parts)).view(2, len(shares), len(images))


def pixel_mask(
    cells: Int[Tensor, "B rows columns"], layout: TokenLayout, images: Images
) -> Float[Tensor, "B 1 H W"]:
    """Which pixels these cells have, as overlays show them."""
    size = (images.shape[2], images.shape[3])
    pixels = on_pixels(cells.float(), size, layout=layout, mode="nearest")
    return pixels[:, None].to(images.device) > 0


def relevance_order(found: Relevance, *, seed: int = 0) -> Orders:
    """Cells, counted in reading order, the most relevant first; equal ones in a random order."""
    flat = found.map.detach().flatten(1).float().cpu().nan_to_num(nan=-math.inf)
    rows = [permutation("equal cells", flat.shape[1], seed, image) for image in range(len(flat))]
    shuffled = torch.from_numpy(np.stack(rows))
    order = flat.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    return shuffled.gather(1, order)


def random_order(images: int, grid: tuple[int, int], seed: int, turn: int) -> Orders:
    """The order of a random map, another one for every image and turn. It is about as smooth as
    maps are: single cells here and there change an answer less than as many in one place."""
    cells = np.arange(grid[0] * grid[1])
    noise = uniform("random map", seed, turn, np.arange(images)[:, None], cells) - 0.5
    fields = torch.from_numpy(noise).view(images, 1, *grid)
    return gaussian_blur(fields, SMOOTH).flatten(1).argsort(dim=1, descending=True)


def fill_blur(images: Images) -> Images:
    """Images of which only the rough brightness is left: a Gaussian, an eighth of a side wide."""
    return gaussian_blur(images, 1 / 8)


def fill_mean(images: Images) -> Images:
    """Images of one colour each, their mean."""
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


FILLINGS: dict[Filling, Callable[[Images], Images]] = {"blur": fill_blur, "mean": fill_mean}
