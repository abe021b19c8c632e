"""Nearest neighbours: equal to scikit-learn's, in as little memory as one asks for."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail import UserError
from vitrail.evaluation import knn
from vitrail.evaluation.knn import knn_predict, nearest_neighbours

CLASSES = 7


def data(images: int, seed: int, width: int = 16) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, CLASSES, images)
    centres = np.random.default_rng(99).normal(size=(CLASSES, width))
    lengths = generator.uniform(0.1, 10, (images, 1))  # which a cosine does not see
    return (centres[targets] + generator.normal(size=(images, width))) * lengths, targets


def peer_says(
    train: NDArray[np.float64], targets: NDArray[np.int64], test: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    def weights(distances: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp((1 - distances) / 0.07)

    peer = KNeighborsClassifier(count, metric="cosine", weights=weights, algorithm="brute")
    said: NDArray[np.int64] = peer.fit(train, targets).predict(test)
    return said


def test_the_constants_are_those_of_dinov2() -> None:
    assert knn.NEIGHBOURS == (10, 20, 100, 200)
    assert knn.TEMPERATURE == 0.07


def test_the_votes_are_those_of_scikit_learn() -> None:
    (train, targets), (test, truth) = data(700, 0), data(300, 1)
    said = knn_predict(train, targets, test, classes=CLASSES)
    assert list(said) == [10, 20, 100, 200]
    for count, guess in said.items():
        np.testing.assert_array_equal(guess, peer_says(train, targets, test, count))
        assert 0.6 < (guess == truth).mean() < 1  # neither chance nor beyond doubt


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_neighbours_too(count: int) -> None:
    (train, targets), (test, _) = data(60, 2), data(50, 3)
    said = knn_predict(train, targets, test, classes=CLASSES, neighbours=[count])
    np.testing.assert_array_equal(said[count], peer_says(train, targets, test, count))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 90), st.integers(1, 130))
def test_parts_of_any_size_give_the_same(queries: int, places: int) -> None:
    (train, targets), (test, _) = data(120, 4), data(80, 5)
    whole = knn_predict(train, targets, test, classes=CLASSES, neighbours=[3, 20])
    parts = knn_predict(
        train,
        targets,
        test,
        classes=CLASSES,
        neighbours=[3, 20],
        query_chunk=queries,
        train_chunk=places,
    )
    for count in (3, 20):
        np.testing.assert_array_equal(parts[count], whole[count])


class Largest(TorchDispatchMode):
    """The most numbers that any operation gave."""

    numbers = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple) else (result,):
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return result


@pytest.mark.parametrize("images", [500, 4000])
def test_memory_does_not_grow_with_the_images(images: int) -> None:
    (train, _), (test, _) = data(images, 6, width=4), data(20, 7, width=4)
    asked, known = torch.from_numpy(test), torch.from_numpy(train)
    with Largest() as largest:  # type: ignore[no-untyped-call]  # torch's own __init__
        nearest_neighbours(asked, known, 10, chunk=100)
    assert largest.numbers == 20 * (100 + 10)


def test_the_nearest_come_first() -> None:
    (train, _), (test, _) = data(200, 8), data(10, 9)
    known = torch.nn.functional.normalize(torch.from_numpy(train), dim=1)
    asked = torch.nn.functional.normalize(torch.from_numpy(test), dim=1)
    likeness, where = nearest_neighbours(asked, known, 12, chunk=50)
    every = asked @ known.T
    torch.testing.assert_close(likeness, every.sort(dim=1, descending=True).values[:, :12])
    torch.testing.assert_close(every.gather(1, where), likeness)


def test_only_as_many_neighbours_as_there_are_images() -> None:
    (train, targets), (test, _) = data(25, 10), data(5, 11)
    assert list(knn_predict(train, targets, test, classes=CLASSES)) == [10, 20]
    with pytest.raises(UserError, match="from 1 to 5, the number of training images"):
        knn_predict(test, targets[:5], test, classes=CLASSES)
    with pytest.raises(UserError, match="got 0"):
        knn_predict(train, targets, test, classes=CLASSES, neighbours=[0])
