"""From recipe and data to a task: caching, sizes of images, heads, what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.test_resume import fingerprint
from tests.training.world import RECIPE, Stripes, accuracy, trainer
from vitrail import UserError, create, load
from vitrail.data.augment import Augmentation
from vitrail.data.cache import Cached
from vitrail.data.loader import Stream
from vitrail.data.source import Splits
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Subset
from vitrail.training.goal import Labels
from vitrail.training.loop import Trainer
from vitrail.training.prepare import make_objective, prepare_task, with_cache
from vitrail.training.recipe import Schedule
from vitrail.training.world import World


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for label in ("across", "down"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(30):
            pixels = draw.integers(0, 255, (int(draw.integers(9, 30)), 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    (tmp_path / "photos" / "down" / "broken.png").write_bytes(b"no picture")
    return tmp_path / "photos"


@pytest.mark.slow
def test_images_decoded_once_train_the_same(photos: Path, tmp_path: Path) -> None:
    fields = {**RECIPE.fields, "channels": 3}
    augmentation = replace(RECIPE.augmentation, policy="trivialaugment")
    recipe = replace(RECIPE, data=str(photos), fields=fields, augmentation=augmentation)
    splits = open_data(photos, val_share=0.2)
    for cache in (False, True):
        task = prepare_task(replace(recipe, cache=cache), splits, accuracy)
        task, room = with_cache(task, tmp_path / "pixels", World())
        assert isinstance(task.train, Subset)
        assert isinstance(task.train.whole, Cached) == cache == (room > 0)
        Trainer(task, tmp_path / str(cache)).run()
    assert fingerprint(tmp_path / "True") == fingerprint(tmp_path / "False")
    assert len(list((tmp_path / "pixels").iterdir())) == 1


def test_batches_of_several_sizes(photos: Path) -> None:
    splits = open_data(photos, val_share=0)
    how = trainer(photos.parent, fields={**RECIPE.fields, "channels": 3}).stream.how
    augmentation = Augmentation(crop=(0.5, 1.0), sides=(4, 8, 16))
    stream = Stream(
        source=splits["train"], how=how, augmentation=augmentation, batch_size=8, seed=1
    )
    sizes = [tuple(batch.images.shape) for batch in stream.batches(0, stream.steps)]
    assert {size[2] for size in sizes} <= {4, 8, 16}
    assert len({size[2] for size in sizes}) > 1
    for count, _, height, width in sizes:
        assert height == width
        assert count in (32, 31, 8, 7, 2, 1)  # one image is broken
    again = [batch.images for batch in stream.batches(0, stream.steps)]
    for one, other in zip(again, stream.batches(0, stream.steps), strict=True):
        assert torch.equal(one, other.images)


def test_a_model_of_one_size_refuses_several() -> None:
    recipe = replace(RECIPE, augmentation=Augmentation(sides=(8, 16)))
    splits = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    with pytest.raises(UserError, match="vit models read one image size"):
        prepare_task(recipe, splits, accuracy)


def test_other_labels_mean_a_new_head(tmp_path: Path) -> None:
    trainer(tmp_path / "first").run()
    start = str(tmp_path / "first" / "best")
    same = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    other = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    other["train"].labels = ("cat", "dog")
    recipe = replace(RECIPE, start=start, fields={}, model=None)
    trained = load(start).state_dict()["head.classes.weight"]
    for splits, kept in ((same, True), (other, False)):
        model = prepare_task(recipe, splits, accuracy).objective.model
        weight = model.state_dict()["head.classes.weight"]
        assert torch.equal(weight, trained) == kept
        assert weight.any() == kept
        assert model.passport.labels == splits["train"].labels


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(tmp_path: Path) -> None:
    fields = {**RECIPE.fields, "dropout": 0.0, "drop_path": 0.0}
    schedule = Schedule(steps=12, warmup=2)
    runs = [
        trainer(tmp_path / str(compiled), compile=compiled, fields=fields, schedule=schedule)
        for compiled in (False, True)
    ]
    for run in runs:
        run.run()
    for one, other in zip(*(run.model.state_dict().values() for run in runs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_several_labels_are_not_learnt_by_softmax() -> None:
    """What it learns would be read by sigmoid, whose offset it leaves free."""
    one = open_data("digits")["train"]
    one.targets = np.eye(10, dtype=np.float32)[np.asarray(one.targets)]
    model = create("vit_ti_16", num_classes=10, image_size=32, dim=16, heads=2, depth=1)
    with pytest.raises(UserError, match=r"goal\.loss must be sigmoid, asymmetric or auto"):
        make_objective(model, replace(RECIPE, goal=Labels(loss="softmax")), one)
    assert make_objective(model, replace(RECIPE, goal=Labels()), one).loss == "sigmoid"
