"""CKA against the sum over quadruples that defines it, and what must not change it."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.explanation.cka import CKA, gram, hsic


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def by_definition(k: np.ndarray, other: np.ndarray) -> float:
    """The U-statistic of HSIC (Song et al. 2012, eq. 3 and 4): every four different samples."""
    total, count = 0.0, 0
    for i, j, q, r in permutations(range(len(k)), 4):
        total += k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q])
        count += 1
    return total / count


@given(st.integers(4, 7), st.integers(0, 100))
@settings(max_examples=15, deadline=None)
def test_independence_is_the_mean_over_quadruples(n: int, seed: int) -> None:
    k, other = gram(drawn(n, 3, seed=seed)), gram(drawn(n, 5, seed=seed + 1) + 2)
    expected = by_definition(k.numpy(), other.numpy())
    assert hsic(k, other).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_layer_is_like_itself_rotated_scaled_and_moved() -> None:
    x, noise = drawn(12, 8), drawn(12, 6, seed=3)
    rotation = torch.linalg.qr(drawn(8, 8, seed=1)).Q
    found = CKA()
    found.add({"x": x, "rotated": 3 * x @ rotation, "moved": x + 5, "other": noise})
    matrix = found.matrix()
    assert matrix is not None
    torch.testing.assert_close(matrix[:3, :3], torch.ones(3, 3, dtype=torch.float64))
    torch.testing.assert_close(matrix, matrix.mT)
    assert matrix[0, 3] < 0.5


def test_the_axes_of_a_layer_do_not_matter() -> None:
    x, other = drawn(6, 4, 3, 5), drawn(6, 7, seed=2)
    whole, flat = CKA(), CKA()
    whole.add({"x": x, "other": other})
    flat.add({"x": x.flatten(1), "other": other})
    assert torch.equal(whole.matrix(), flat.matrix())  # type: ignore[arg-type]


def test_few_pictures_do_not_make_strangers_alike() -> None:
    found, biased = CKA(), []
    for seed in range(200):
        x, y = drawn(8, 500, seed=2 * seed), drawn(8, 500, seed=2 * seed + 1)
        found.add({"x": x, "y": y})
        centre = torch.eye(8, dtype=torch.float64) - 1 / 8
        k, other = (centre @ gram(each) @ centre for each in (x, y))
        biased.append(((k * other).sum() / (k.norm() * other.norm())).item())
    matrix = found.matrix()
    assert matrix is not None
    assert abs(matrix[0, 1]) < 0.1
    assert np.mean(biased) > 0.9  # what the plain estimate would say


def test_batches_that_are_too_small_are_left_out() -> None:
    found = CKA()
    found.add({"x": drawn(3, 4)})
    assert found.matrix() is None
    assert (found.images, found.left_out) == (0, 3)
