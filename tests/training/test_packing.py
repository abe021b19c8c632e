"""Training at native resolution: what a step learns, to the bit whoever reads and whenever it
stopped; what cannot be combined is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import vitrail
from tests.training.test_resume import Death, die_at, fingerprint
from tests.training.world import RECIPE, Stripes, accuracy
from vitrail import UserError, load
from vitrail.cli.app import main
from vitrail.core.image_list import ImageList
from vitrail.core.native_size import NativeSize
from vitrail.data.images import BadImage
from vitrail.data.loader import Stream, iterate_batches, needed_size
from vitrail.data.source import Splits
from vitrail.objectives.packed import PackedSupervised
from vitrail.training.goal import Distil, Masked
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Schedule
from vitrail.training.recipe_file import read_recipe

PLAIN = replace(RECIPE.augmentation, mixup=0, cutmix=0, policy="trivialaugment")
NATIVE: dict[str, Any] = {"native_resolution": True, "augmentation": PLAIN, "max_broken": 1.0}


class MixedStripes(Stripes):
    """Stripes in images of many sizes; one of ten cannot be decoded."""

    uniform = False

    def read(self, index: int) -> NDArray[np.uint8]:
        if index % 10 == 9:
            raise BadImage(self.name(index), "the file is damaged")
        high, wide = 1 + index % 3, 1 + index % 2
        return np.tile(self.images[index], (high, wide))[: 8 * high - index % 5]


def trainer(out: Path, **changes: Any) -> Trainer:
    recipe = replace(RECIPE, **{**NATIVE, **changes})
    splits = Splits({"train": MixedStripes(100), "val": MixedStripes(40, seed=1)})
    return Trainer(prepare_task(recipe, splits, accuracy), out)


def test_a_loss_is_the_mean_of_images_computed_alone() -> None:
    """And the gradient, of the position table too, is that of the model at each image's size."""
    torch.manual_seed(0)
    model: Any = vitrail.create("vit_ti_16", num_classes=3, **RECIPE.fields).double().eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    objective = PackedSupervised(model, smoothing=0.1, max_tokens=40)
    images = ImageList(torch.randn(1, *size).double() for size in [(8, 8), (12, 4), (16, 20)])
    targets = torch.eye(3).double()
    losses = objective(images, targets)
    losses["loss"].backward()
    alone = list[torch.Tensor]()
    gradient = torch.zeros_like(model.get_parameter("blocks.0.mlp.fc1.weight"))
    for image, target in zip(images, targets, strict=True):
        at_size: Any = load(model, image_size=tuple(image.shape[1:])).eval()
        loss = objective.cost(at_size(image[None]), target[None])
        loss.backward()
        alone.append(loss.detach())
        gradient += at_size.get_parameter("blocks.0.mlp.fc1.weight").grad / 3
    assert torch.allclose(losses["loss"].double(), torch.stack(alone).double().mean(), atol=1e-6)
    found = model.get_parameter("blocks.0.mlp.fc1.weight").grad
    assert torch.allclose(found, gradient, atol=1e-6)
    assert model.get_parameter("positions.table").grad.abs().sum(dim=-1).gt(0).all()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"accumulate": 4, "max_tokens": 10}])
def test_a_run_that_died_ends_as_if_it_had_not(changes: dict[str, Any], tmp_path: Path) -> None:
    trainer(tmp_path / "whole", **changes).run()
    run = trainer(tmp_path / "died", **changes)
    die_at(7, run)
    with pytest.raises(Death):
        run.run(resume=True)
    trainer(tmp_path / "died", **changes).run(resume=True)
    assert fingerprint(tmp_path / "died") == fingerprint(tmp_path / "whole")


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    for workers in (0, 2):
        trainer(tmp_path / str(workers), workers=workers).run()
    assert fingerprint(tmp_path / "0") == fingerprint(tmp_path / "2")


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    fields = {**RECIPE.fields, "dropout": 0.0, "drop_path": 0.0}
    mild = replace(PLAIN, policy="none", rotate=0.0, erase=0.0)
    schedule = Schedule(steps=60, warmup=4)
    outcome = trainer(tmp_path, fields=fields, augmentation=mild, schedule=schedule).run()
    assert (outcome.run_state.best or 0) > 0.9


def test_batches_have_images_of_their_own_sizes() -> None:
    native, how = NativeSize(4, 12), load_model().passport.preprocessing
    stream = Stream(source=MixedStripes(100), how=how, augmentation=PLAIN, batch_size=16,
                    native=native)  # fmt: skip
    [batch] = stream.batches(0, 1)
    assert isinstance(batch.images, ImageList)
    assert len(batch.images) == len(batch.targets) == 16 - len(batch.broken)
    sizes = {tuple(image.shape[1:]) for image in batch.images}
    assert len(sizes) > 2
    assert all(high % 4 == wide % 4 == 0 and high * wide <= 12 * 16 for high, wide in sizes)
    read = list(iterate_batches(MixedStripes(40), how, 8, native=native))
    assert sum(len(batch.images) for batch in read) == 36
    for batch in read:
        for image, index in zip(batch.images, batch.indices, strict=True):
            assert tuple(image.shape[1:]) == native.size(*MixedStripes(40).read(index).shape)


def load_model() -> Any:
    return vitrail.create("vit_ti_16", num_classes=2, **RECIPE.fields)


def test_images_are_decoded_large_enough_for_every_crop() -> None:
    how = load_model().passport.preprocessing
    high, wide = needed_size(replace(PLAIN, crop=(0.25, 1.0)), how, NativeSize(4, 25))
    assert (high, wide) == (40, 40)
    assert needed_size(replace(PLAIN, crop=None), how, NativeSize(4, 26)) == (24, 24)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augmentation": replace(PLAIN, mixup=0.2)}, "mixup must be 0"),
        ({"augmentation": replace(PLAIN, cutmix=0.2)}, "cutmix must be 0"),
        ({"augmentation": replace(PLAIN, sides=(8, 16))}, "sides must be empty"),
        ({"compile": True}, "compile must be off"),
        ({"checkpointing": True}, "checkpointing must be off"),
        ({"parallel": "fsdp"}, "parallel must be ddp"),
        ({"goal": Masked()}, "objective must be labels"),
        ({"goal": Distil()}, "objective must be labels"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"native_resolution": False, "max_tokens": 9}, "max_tokens must be left out"),
    ],
)
def test_what_cannot_be_combined_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(RECIPE, **{**NATIVE, **changes})


@pytest.mark.slow
def test_other_families_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="need a ViT, DeiT or DINOv2 model"):
        trainer(tmp_path, model="swin_t", fields={"image_size": (224, 224), "channels": 1})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Red and blue images of several sizes, with a test part."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 4), ("test", 3)):
        for channel, name in ((0, "red"), (2, "blue")):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                high, wide = draw.integers(12, 48, 2)
                pixels = draw.integers(0, 120, (high, wide, 3), dtype=np.uint8)
                pixels[..., channel] += 130
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.slow
def test_the_verb_trains_and_its_model_predicts(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell chooses a model without a stem; the test score is that of native resolution."""
    out = tmp_path / "run"
    line = f"train {photos} --out {out} --native-resolution --max-tokens 30 --epochs 2 --json"
    assert main(line.split()) == 0
    facts = json.loads(capsys.readouterr().out)
    recipe = read_recipe(out / "recipe.yaml")
    assert recipe.native_resolution
    assert recipe.max_tokens == 30
    assert "stem" not in recipe.fields
    files = sorted((photos / "test").glob("*/*.png"))
    found = vitrail.predict(out / "best", files, native_resolution=True, max_tokens=30)
    right = [one.label == file.parent.name for one, file in zip(found, files, strict=True)]
    assert facts["test"]["value"] == pytest.approx(np.mean(right))
    with pytest.raises(UserError, match="max_tokens cannot change in a run that is resumed"):
        vitrail.train(photos, out=out, resume=True, native_resolution=True, max_tokens=31)


def test_a_recipe_that_blends_gives_way_and_says_so(photos: Path) -> None:
    run = vitrail.train(
        photos, recipe="deit", model="deit_ti_16", steps=1, native_resolution=True, dry_run=True,
        set={"fields.depth": 1, "batch_size": 2},
    )  # fmt: skip
    assert run.recipe.augmentation.mixup == run.recipe.augmentation.cutmix == 0
    assert any("no mixup, cutmix" in reason for reason in run.recipe.reasons)
    with pytest.raises(UserError, match="mixup must be 0"):
        vitrail.train(photos, native_resolution=True, set={"augmentation.mixup": 0.5}, dry_run=True)


@pytest.mark.slow  # starts two processes
def test_two_processes_train_as_one_does(photos: Path, tmp_path: Path) -> None:
    still = {"policy": "none", "erase": 0.0, "flip": 0.0}
    changes = {f"augmentation.{name}": value for name, value in still.items()}
    runs = [
        vitrail.train(
            photos, out=tmp_path / str(processes), steps=4, native_resolution=True, seed=1,
            processes=processes, threads=1, device="cpu", set=changes,
        )
        for processes in (1, 2)
    ]  # fmt: skip
    one, two = (load(run.last).state_dict() for run in runs if run.last)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-5, msg=name)
