"""Classes of the nearest training images: cosine likeness, weighted votes, nothing is learnt.

As DINO and DINOv2 measure features (arXiv:2304.07193): features of length one, and each of the k
nearest votes for its class with exp(cosine / 0.07).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import UserError

NEIGHBOURS = (10, 20, 100, 200)
TEMPERATURE = 0.07
QUERIES, PLACES = 1024, 16_384  # images compared at once: so many with so many


def vote(
    train: Float[np.ndarray, "N D"],
    train_targets: Int[np.ndarray, " N"],
    test: Float[np.ndarray, "M D"],
    *,
    classes: int,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
    queries: int = QUERIES,
    places: int = PLACES,
) -> dict[int, NDArray[np.int64]]:
    """The class that each test image is said to be, for each number of neighbours that there are
    training images for. Beside the features, memory is that of `queries` times `places`."""
    fitting = sorted({count for count in neighbours if count <= len(train)})
    if not fitting or fitting[0] < 1:
        raise UserError(
            f"neighbours are {', '.join(map(str, neighbours)) or 'none'}, expected numbers from 1 "
            f"to the {len(train)} training images"
        )
    known = F.normalize(torch.from_numpy(train), dim=1)
    labels = torch.from_numpy(train_targets)
    said: dict[int, list[NDArray[np.int64]]] = {count: [] for count in fitting}
    for first in range(0, len(test), queries):
        asked = F.normalize(torch.from_numpy(test[first : first + queries]), dim=1)
        likeness, nearest = nearest_of(asked, known, fitting[-1], places)
        weights = (likeness.double() / temperature).softmax(dim=1)
        for count in fitting:
            votes = torch.zeros(len(asked), classes, dtype=torch.float64)
            votes.scatter_add_(1, labels[nearest[:, :count]], weights[:, :count])
            said[count].append(votes.argmax(dim=1).numpy())
    return {count: np.concatenate(guesses) for count, guesses in said.items()}


def nearest_of(
    asked: Float[Tensor, "Q D"], known: Float[Tensor, "N D"], count: int, places: int = PLACES
) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """Likeness and places of the `count` that are most like each, the most like first."""
    best = asked.new_empty(len(asked), 0)
    where = torch.empty(len(asked), 0, dtype=torch.int64)
    for first in range(0, len(known), places):
        likeness = asked @ known[first : first + places].T
        here = torch.arange(first, first + likeness.shape[1]).expand_as(likeness)
        best, where = torch.cat([best, likeness], dim=1), torch.cat([where, here], dim=1)
        best, chosen = best.topk(min(count, best.shape[1]), dim=1)
        where = where.gather(1, chosen)
    return best, where
