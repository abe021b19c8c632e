"""An image that cannot be read has one form in the JSON of every verb: {"image", "reason"}."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of images in train and test, one file in each split broken."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for split in ("train", "test"):
        for label in ("dark", "bright"):
            (folder / split / label).mkdir(parents=True)
            for seed in range(4):
                pixels = np.random.default_rng(seed).integers(0, 256, (16, 16), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{seed}.png")
        (folder / split / "dark" / "9.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def model() -> Any:
    fields = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2, "channels": 1}
    return vitrail.create("vit_ti_16", num_classes=2, **fields)


TASKS: dict[str, Callable[[Any, Path, Path], Any]] = {
    "evaluate": lambda model, photos, out: vitrail.evaluate(model, photos, by_index=True),
    "probe": lambda model, photos, out: vitrail.probe(model, photos, shots=1, cache=None),
    "figures": lambda model, photos, out: vitrail.figures(model, photos, ablated=0),
    "explain": lambda model, photos, out: vitrail.explain(
        model, photos / "test/dark", method="attention", checks=0
    ),
    "predict": lambda model, photos, out: vitrail.predict(
        model, photos / "test/dark", out=out / "labels.csv"
    ),
    "embed": lambda model, photos, out: vitrail.embed(
        model, photos / "test/dark", out=out / "vectors"
    ),
    "doctor": lambda model, photos, out: vitrail.doctor(photos),
    "train": lambda model, photos, out: vitrail.train(
        photos,
        out=out / "run",
        steps=1,
        batch_size=4,
        image_size=16,
        set={"fields.depth": 1, "max_broken": 1.0},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", TASKS)
def test_broken_images_have_one_form(verb: str, model: Any, photos: Path, tmp_path: Path) -> None:
    record = TASKS[verb](model, photos, tmp_path)
    broken = record.facts()["broken"]
    assert len(broken) == len(record.broken) >= 1
    assert f"{photos}/test/dark/9.png" in [one["image"] for one in broken] or verb == "train"
    for one in broken:
        assert {"image", "reason"} <= one.keys()
        assert Path(one["image"]).name == "9.png"
        assert "not a readable image" in one["reason"]
