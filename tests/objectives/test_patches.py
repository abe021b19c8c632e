"""Patches and pixels, as every objective handles them."""

import pytest
import torch

from vitrail.core.passport import Preprocessing
from vitrail.objectives.patches import (
    at_least_float32,
    cut,
    gather_patches,
    paste,
    pixels,
    places_of,
    prepared,
    scatter_patches,
)

IMAGES = torch.arange(2 * 3 * 4 * 6, dtype=torch.float64).view(2, 3, 4, 6)


def test_patches_are_cut_in_reading_order_and_pasted_back() -> None:
    patches = cut(IMAGES, 2)
    assert patches.shape == (2, 6, 3, 2, 2)
    assert torch.equal(patches[1, 4], IMAGES[1, :, 2:4, 2:4])  # the second row's second
    assert torch.equal(paste(patches, (2, 3)), IMAGES)


def test_what_is_taken_and_put_has_the_places_of_its_own_sample() -> None:
    mask = torch.tensor([[True, False, False, True], [False, True, True, False]])
    places = places_of(mask, 2)
    assert places.tolist() == [[0, 3], [1, 2]]
    x = torch.arange(16.0).view(2, 4, 2)
    taken = gather_patches(x, places)
    assert torch.equal(taken, x[mask].view(2, 2, 2))
    changed = scatter_patches(x, places, -taken.double())
    assert changed.dtype == x.dtype
    assert torch.equal(changed, torch.where(mask[..., None], -x, x))


def test_pixels_are_what_they_were_before_preprocessing() -> None:
    before = Preprocessing(size=(4, 6), mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    seen = pixels(IMAGES, before)
    torch.testing.assert_close(seen[:, 2], IMAGES[:, 2] * 2 + 0.3)
    torch.testing.assert_close(prepared(seen, before), IMAGES)


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_losses_are_no_place_for_half_precision(given: torch.dtype, computed: torch.dtype) -> None:
    assert at_least_float32(torch.zeros(1, dtype=given)).dtype == computed
