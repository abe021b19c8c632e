"""What workers hand over, and what the main thread still does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.world import Stripes
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import NOTHING, Augmentation
from vitrail.data.batch import Loaded, dense_targets, targets_of
from vitrail.data.loader import EvalLoader, Stream
from vitrail.data.samples import Key, SampleDataset, load
from vitrail.data.sources import open_data

HOW = Preprocessing(size=(16, 16))
CPU = torch.device("cpu")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / "photos" / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (24, 20, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def test_workers_hand_over_bytes_in_shared_memory(photos: Path) -> None:
    """Pixels are a quarter of floats, and the batch is stacked where this process sees it."""
    source = open_data(photos, val_share=0)["train"]
    dataset = SampleDataset(source, HOW, Augmentation(), seed=0)
    keys: list[list[Key]] = [[(0, n, 0, None) for n in range(4)], [(0, n, 0, None) for n in (4, 5)]]
    batches = list(load(dataset, iter(keys), 1, CPU))
    for loaded, asked in zip(batches, keys, strict=True):
        assert loaded.images.dtype == torch.uint8
        assert loaded.images.is_shared()  # type: ignore[no-untyped-call]
        assert torch.equal(loaded.images, dataset.__getitems__(asked).images)


def test_evaluation_keeps_its_workers_and_its_bits(photos: Path) -> None:
    source = open_data(photos, val_share=0)["train"]
    loader = EvalLoader(source, HOW, 5, workers=2)
    alone = list(EvalLoader(source, HOW, 5))
    pids = set()
    for _ in range(2):
        for batch, other in zip(loader, alone, strict=True):
            assert torch.equal(batch.images, other.images)
            assert torch.equal(batch.targets, other.targets)
        assert loader.reader.loader is not None
        workers = loader.reader.loader._iterator._workers  # type: ignore[union-attr]
        pids.add(tuple(worker.pid for worker in workers))
    assert len(pids) == 1


def test_targets_are_numbers_until_they_are_mixed(photos: Path) -> None:
    source = open_data(photos, val_share=0)["train"]
    stream = Stream(source=source, how=HOW, augmentation=Augmentation(), batch_size=6)
    batch = next(stream.batches(0, 1))
    assert batch.targets.dtype == torch.int64
    assert batch.targets.tolist() == np.asarray(source.targets)[batch.indices].tolist()
    dense = dense_targets(batch.targets, 3)
    assert torch.equal(dense, torch.nn.functional.one_hot(batch.targets, 3).float())
    several = Stripes(4)
    several.targets = np.array([[1, 0], [1, 1], [0, 0], [0, 1]], dtype=np.uint8)
    rows = targets_of(several, np.array([1, 3]))
    assert rows.dtype == torch.uint8
    assert torch.equal(dense_targets(rows, 2), torch.tensor([[1.0, 1.0], [0.0, 1.0]]))


def test_a_batch_goes_to_the_device_as_bytes(photos: Path) -> None:
    """Floats are made on the device, here one that computes nothing."""
    meta = torch.device("meta")
    source = open_data(photos, val_share=0)["train"]
    moved = Loaded(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [0, 1]).to(meta)
    assert moved.images.is_meta
    assert moved.images.dtype == torch.uint8
    stream = Stream(
        source=source,
        how=HOW,
        augmentation=replace(NOTHING, erase=1.0),
        batch_size=4,
        device=meta,
    )
    batch = next(stream.batches(0, 1))
    assert batch.images.is_meta
    assert batch.images.dtype == torch.float32
    assert batch.targets.is_meta
