"""The images of a step, and what is drawn for them, do not depend on the number of processes."""

from dataclasses import replace

import numpy as np
import pytest

from tests.training.world import RECIPE, Stripes
from vitrail.core.passport import Preprocessing
from vitrail.data.loader import Stream
from vitrail.data.sampler import places_of


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [1, 16, 1024, 1500])
def test_every_place_of_a_batch_is_in_one_process(batch: int) -> None:
    for world in (*range(1, 10), 64, 100, 256, 1000, 1023, 1024):
        shares = [places_of(batch, rank=rank, world=world) for rank in range(world)]
        assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(batch)), world


@pytest.mark.parametrize("world", [2, 3, 8])
def test_every_image_of_a_step_is_in_one_process(world: int) -> None:
    """To the bit: the same images at the same places of the batch, whatever the world."""
    stream = Stream(
        source=Stripes(100),
        how=Preprocessing(size=(8, 8), mean=(0.5,), std=(0.5,)),
        augmentation=RECIPE.augmentation,
        batch_size=18,
        seed=5,
    )
    ranks = [replace(stream, rank=rank, world=world).shares(0, 12) for rank in range(world)]
    for whole, *shares in zip(stream.shares(0, 12), *ranks, strict=True):
        found = np.full_like(whole.rows, -1)
        for share in shares:
            found[share.places] = share.rows
        assert np.array_equal(found, whole.rows)
