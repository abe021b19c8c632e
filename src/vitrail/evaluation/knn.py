"""k nearest neighbours: cosine similarity, weighted votes, nothing is learnt.

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
QUERY_CHUNK, TRAIN_CHUNK = 1024, 16_384  # images compared at once


def knn_predict(
    train: Float[np.ndarray, "N D"],
    train_targets: Int[np.ndarray, " N"],
    test: Float[np.ndarray, "M D"],
    *,
    classes: int,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
    query_chunk: int = QUERY_CHUNK,
    train_chunk: int = TRAIN_CHUNK,
) -> dict[int, NDArray[np.int64]]:
    """The predicted class of each test image, by the number of neighbours, of those that there are
    training images for. Beside the features, memory is that of `query_chunk` x `train_chunk`."""
    fitting = sorted({count for count in neighbours if count <= len(train)})
    if not fitting or fitting[0] < 1:
        raise UserError(
            f"neighbours must be from 1 to {len(train)}, the number of training images, got "
            f"{', '.join(map(str, neighbours)) or 'none'}"
        )
    known = F.normalize(torch.from_numpy(train), dim=1)
    labels = torch.from_numpy(train_targets)
    predicted: dict[int, list[NDArray[np.int64]]] = {count: [] for count in fitting}
    for first in range(0, len(test), query_chunk):
        query = F.normalize(torch.from_numpy(test[first : first + query_chunk]), dim=1)
        similarity, nearest = nearest_neighbours(query, known, fitting[-1], train_chunk)
        weights = (similarity.double() / temperature).softmax(dim=1)
        for count in fitting:
            votes = torch.zeros(len(query), classes, dtype=torch.float64)
            votes.scatter_add_(1, labels[nearest[:, :count]], weights[:, :count])
            predicted[count].append(votes.argmax(dim=1).numpy())
    return {count: np.concatenate(parts) for count, parts in predicted.items()}


def nearest_neighbours(
    query: Float[Tensor, "Q D"], known: Float[Tensor, "N D"], count: int, chunk: int = TRAIN_CHUNK
) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """Similarity and index of the `count` nearest of each, the nearest first."""
    best = query.new_empty(len(query), 0)
    where = torch.empty(len(query), 0, dtype=torch.int64)
    for first in range(0, len(known), chunk):
        similarity = query @ known[first : first + chunk].T
        here = torch.arange(first, first + similarity.shape[1]).expand_as(similarity)
        best, where = torch.cat([best, similarity], dim=1), torch.cat([where, here], dim=1)
        best, chosen = best.topk(min(count, best.shape[1]), dim=1)
        where = where.gather(1, chosen)
    return best, where
