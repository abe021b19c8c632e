"""The recipes say what their papers say, for the data at hand."""

import json
from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.scheduler.cosine_lr import CosineLRScheduler

from vitrail import UserError
from vitrail.core.records import validate
from vitrail.models.catalogue import change, find
from vitrail.recipes import beit, paper, swin
from vitrail.recipes.catalogue import RECIPES, choose
from vitrail.recipes.choice import Choice, canonical
from vitrail.training.goal import Distil, Labels
from vitrail.training.recipe import Recipe
from vitrail.training.schedule import rate_at

IMAGENET, PETS, CIFAR, JFT = 1_281_167, 3_680, 50_000, 303_000_000


class Photos:
    """So many photos, none of which is ever opened."""

    labels: tuple[str, ...] = ("cat", "dog")
    targets: NDArray[Any] | None = None
    uniform = False

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        return b"\xff\xd8"

    def name(self, index: int) -> str:
        return f"{index}.jpg"


class Digits(Photos):
    def read(self, index: int) -> NDArray[np.uint8]:
        return np.zeros((8, 8), np.uint8)


def asked(count: int = IMAGENET, **said: Any) -> Choice:
    return Choice(data="photos", train=Photos(count), **said)


def recipe(name: str, count: int = IMAGENET, **said: Any) -> Recipe:
    return choose(name, asked(count, **{"start": "somewhere/best", **said}))


@pytest.mark.parametrize("count", [1, 100, PETS, IMAGENET])
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_printed_and_read_again(name: str, count: int) -> None:
    made = recipe(name, count)
    printed = json.loads(json.dumps(asdict(made)))
    again = validate(Recipe, printed, where="recipe.json")
    assert json.loads(json.dumps(asdict(again))) == printed
    assert made.schedule.warmup <= (made.schedule.steps or made.schedule.epochs * count)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_its_reasons_and_follows_what_was_said(name: str) -> None:
    made = recipe(name, batch_size=96, image_size=(192, 160))
    assert 2 <= len(made.reasons) <= 5
    assert all(10 < len(reason) < 240 for reason in made.reasons)
    assert f"{IMAGENET:,}" in " ".join(made.reasons)
    assert made.batch_size == 96
    assert made.fields["image_size"] == (192, 160)
    assert made.start == "somewhere/best"
    assert "vitrail train" in (RECIPES[name].__doc__ or "")


def test_what_is_taken_when_nothing_is_named() -> None:
    assert choose(None, asked()) == RECIPES["small"](asked())
    begun = asked(start="somewhere/best")
    assert choose(None, begun) == RECIPES["tune"](begun)


def test_an_unknown_recipe_is_told_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown recipe 'diet', did you mean deit\?"):
        choose("diet", asked())


@pytest.mark.parametrize("name", ["tune", "finetune", "beit", "beit_22k"])
def test_fine_tuning_needs_a_checkpoint(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} fine-tunes a checkpoint: give start=CHECKPOINT"):
        choose(name, asked())


def test_a_batch_has_an_image() -> None:
    with pytest.raises(UserError, match="batch_size must be at least 1, got 0"):
        asked(batch_size=0)


# lr, epochs, by model: table 3 of arXiv:2010.11929
TABLE = {
    "jft": {
        "vit_b_16": (8e-4, 7), "vit_b_32": (8e-4, 7), "vit_l_32": (6e-4, 7), "vit_l_16": (4e-4, 14),
        "vit_h_14": (3e-4, 14), "vit_r50_b_16": (8e-4, 7), "vit_r50_b_32": (8e-4, 7),
        "vit_r50_l_32": (2e-4, 7), "vit_r50_l_16": (4e-4, 14),
    },
    "imagenet21k": {
        "vit_b_16": (1e-3, 90), "vit_b_32": (1e-3, 90), "vit_l_16": (1e-3, 90),
        "vit_l_32": (1e-3, 90),
    },
    "imagenet1k": {
        "vit_b_16": (3e-3, 300), "vit_b_32": (3e-3, 300), "vit_l_16": (3e-3, 300),
        "vit_l_32": (3e-3, 300), "vit_h_14": (3e-3, 300),
    },
}  # fmt: skip
# decay, weight decay, dropout, clip, images, by data set
COMMON = {
    "jft": ("linear", 0.1, 0.0, None, JFT),
    "imagenet21k": ("linear", 0.03, 0.1, None, 14_197_122),
    "imagenet1k": ("cosine", 0.3, 0.1, 1.0, IMAGENET),
}


@pytest.mark.parametrize(("name", "model"), [(n, m) for n, rows in TABLE.items() for m in rows])
def test_pre_training_is_the_papers(name: str, model: str) -> None:
    decay, weight_decay, dropout, clip, count = COMMON[name]
    made = recipe(name, count, model=model, start=None)
    assert (made.optimiser.lr, made.schedule.epochs) == TABLE[name][model]
    assert made.optimiser.name == "adamw"
    assert made.optimiser.betas == (0.9, 0.999)
    assert made.optimiser.weight_decay == weight_decay
    assert made.optimiser.clip == clip
    assert made.schedule.kind == decay
    assert made.schedule.warmup == 10_000
    assert made.batch_size == 4096
    assert made.model == model
    config: Any = change(find(model), made.fields)
    assert config.head == "pretrain"
    assert config.dropout == dropout
    assert config.image_size == (224, 224)


def test_no_row_of_the_paper_is_left_out() -> None:
    for name, how in (
        ("jft", paper.JFT), ("imagenet21k", paper.IMAGENET_21K), ("imagenet1k", paper.IMAGENET_1K)
    ):  # fmt: skip
        assert how.rows.keys() == TABLE[name].keys()
    assert paper.JFT.rows["vit_l_16"].shorter == 7
    assert paper.IMAGENET_21K.rows["vit_l_16"].shorter == 30
    assert "too, of 30 epochs" in " ".join(recipe("imagenet21k", model="vit_l_16").reasons)


def test_a_model_without_a_row_is_told_the_rows() -> None:
    with pytest.raises(UserError, match=r"imagenet21k has no row for 'vit_h_14'.*vit_l_32"):
        recipe("imagenet21k", model="vit_h_14")
    with pytest.raises(UserError, match=r"swin has no row for 'swin_l'.*swin_b"):
        recipe("swin", model="swin_l")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("vit_large_patch16_224.augreg_in21k", "vit_l_16"),
        ("vit_large_patch16_384", "vit_l_16"),
        ("vit_base_r50_s16_224", "vit_r50_b_16"),
        ("vit_huge_patch14_224", "vit_h_14"),
    ],
)
def test_a_row_is_found_under_another_librarys_name(alias: str, name: str) -> None:
    assert canonical(alias) == name
    made, ours = recipe("jft", JFT, model=alias), recipe("jft", JFT, model=name)
    assert made.model == alias
    assert (made.optimiser, made.schedule) == (ours.optimiser, ours.schedule)


def test_the_warm_up_leaves_room_on_fewer_images() -> None:
    made = recipe("imagenet1k", PETS)
    assert made.schedule.warmup == 300 // 4
    assert "(paper: 10,000)" in made.reasons[1]


@pytest.mark.parametrize(
    ("count", "steps", "lr", "held_out"),
    [
        (IMAGENET, 20_000, 0.03, 0.01),
        (CIFAR, 10_000, 0.03, 0.02),
        (PETS, 500, 0.03, 0.1),
        (2_040, 500, 0.03, 0.1),
        (1_000, 2_500, 0.01, 0.1),
        (12_000, 2_500, 0.01, 0.1),
    ],
)
def test_fine_tuning_is_the_papers(count: int, steps: int, lr: float, held_out: float) -> None:
    made = recipe("finetune", count)
    assert made.schedule.steps == steps
    assert made.schedule.kind == "cosine"
    assert made.schedule.warmup == min(500, steps // 10)
    assert made.optimiser.name == "sgd"
    assert made.optimiser.lr == lr
    assert made.optimiser.momentum == 0.9
    assert made.optimiser.weight_decay == 0
    assert made.optimiser.clip == 1
    assert (made.batch_size, made.accumulate) == (512, 8)
    assert made.fields == {"image_size": (384, 384), "head": "linear"}
    assert made.augmentation.crop == (0.05, 1.0)
    assert made.augmentation.flip == 0.5
    assert made.ema_decay == 0.9999
    assert made.val_share == held_out


def test_fine_tuning_tells_the_rates_that_the_paper_tried() -> None:
    assert "0.003, 0.01, 0.03 and 0.06" in recipe("finetune", IMAGENET).reasons[1]
    for count in (CIFAR, PETS):
        assert "0.001, 0.003, 0.01 and 0.03" in recipe("finetune", count).reasons[1]


def test_fine_tuning_at_a_size_that_the_patches_divide() -> None:
    assert recipe("finetune", model="vit_h_14").fields["image_size"] == (518, 518)
    assert recipe("finetune", model="vit_huge_patch14_224").fields["image_size"] == (518, 518)
    assert recipe("finetune", batch_size=100).accumulate == 1


@pytest.mark.parametrize("name", ["deit", "deit_distilled", "swin"])
def test_the_rate_follows_the_batch(name: str) -> None:
    assert recipe(name).batch_size == 1024
    for batch in (64, 512, 1024, 4096):
        made = recipe(name, batch_size=batch)
        assert made.optimiser.lr == pytest.approx(5e-4 * batch / 512)
        assert made.schedule.warmup == (20 if name == "swin" else 5) * (IMAGENET // batch)


# the rate that each ends at, from the command lines and configs that their authors published
LAST_RATE = {"deit": 1e-5, "deit_distilled": 1e-5, "swin": 1e-5, "beit": 1e-6, "beit_22k": 1e-6}


@pytest.mark.parametrize("name", LAST_RATE)
def test_the_rate_of_every_step_is_timms(name: str) -> None:
    made = recipe(name)
    schedule, lr = made.schedule, made.optimiser.lr
    total = round(schedule.epochs * (IMAGENET // made.batch_size))
    theirs = CosineLRScheduler(
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr),
        t_initial=total - schedule.warmup,
        lr_min=LAST_RATE[name],
        warmup_t=schedule.warmup,
        warmup_prefix=True,
        t_in_epochs=False,
    )
    for step in (*range(schedule.warmup, total, total // 7), total - 1):
        (expected,) = theirs._get_lr(step)
        assert rate_at(step, total, schedule) * lr == pytest.approx(expected), step


def test_deit() -> None:
    """arXiv:2012.12877, table 9."""
    made = recipe("deit", start=None)
    assert made.model == "deit_s_16"
    assert made.schedule.epochs == 300
    assert made.optimiser.weight_decay == 0.05
    assert made.optimiser.clip is None
    assert isinstance(made.goal, Labels)
    assert made.goal.smoothing == 0.1
    assert made.ema_decay == 0.99996
    assert change(find(made.model or ""), made.fields).drop_path == 0.1
    augmentation = made.augmentation
    # crop, policy and erasing are compared with timm's in tests/data/test_augment_parity.py
    assert (augmentation.mixup, augmentation.cutmix) == (0.8, 1.0)
    assert augmentation.repeats == 3


def test_deit_with_a_teacher() -> None:
    made = recipe("deit_distilled", start=None)
    config: Any = find(made.model or "")
    assert config.distilled
    goal = made.goal
    assert isinstance(goal, Distil)
    assert (goal.distillation, goal.share, goal.temperature) == ("hard", 0.5, 1.0)
    assert goal.teacher is None  # a person's to give
    assert made.augmentation == recipe("deit").augmentation


def test_swin() -> None:
    """arXiv:2103.14030, 4.1, and the authors' config.py."""
    rates = {model: recipe("swin", model=model).fields["drop_path"] for model in swin.DROP_PATH}
    assert [rates[model] for model in ("swin_t", "swin_s", "swin_b")] == [0.2, 0.3, 0.5]
    made = recipe("swin")
    assert made.model == "swin_t"
    assert made.schedule.epochs == 300
    assert made.optimiser.clip == 5
    assert made.optimiser.weight_decay == 0.05
    assert made.augmentation.repeats == 1
    assert made.augmentation.mixup == 0.8
    assert made.ema_decay is None


@pytest.mark.parametrize(
    ("name", "model", "layer_decay", "lr", "batch"),
    [
        ("beit", "beit_b_16", 0.65, 4e-3, 1024),
        ("beit", "beit_l_16", 0.75, 1e-3, 1024),
        ("beit_22k", "beit_b_16", 0.85, 2e-5, 512),
        ("beit_22k", "beit_l_16", 0.9, 2e-5, 512),
    ],
)
def test_beit(name: str, model: str, layer_decay: float, lr: float, batch: int) -> None:
    made = recipe(name, model=model)
    assert made.optimiser.layer_decay == layer_decay
    assert made.optimiser.lr == lr
    assert made.batch_size == batch
    assert (made.augmentation.mixup > 0) == (name == "beit")
    rows = beit.MASKED.rows if name == "beit" else beit.LABELLED.rows
    assert made.schedule.warmup == rows[model].warmup * (IMAGENET // batch)


def test_mobilevit() -> None:
    """arXiv:2110.02178, and mobilevit.yaml of apple/ml-cvnets."""
    made = recipe("mobilevit", start=None)
    assert made.model == "mobilevit_s"
    assert made.optimiser.lr == 2e-3
    assert made.optimiser.weight_decay == 0.01
    assert made.optimiser.decay_all
    assert made.schedule.epochs == 300
    assert made.schedule.warmup == 20_000
    assert made.augmentation.sides == (160, 192, 256, 288, 320)
    assert made.ema_decay == pytest.approx(1 - 5e-4)
    assert made.batch_size == 1024
    assert isinstance(made.goal, Labels)
    assert made.goal.smoothing == 0.1
    assert made.fields["image_size"] == (256, 256)


def test_tune_fits_the_number_of_images() -> None:
    counts = (100, 1_000, 10_000, 100_000, 1_000_000)
    made = [recipe("tune", count) for count in counts]
    looks = [one.schedule.epochs * count for one, count in zip(made, counts, strict=True)]
    steps = [seen / one.batch_size for one, seen in zip(made, looks, strict=True)]
    assert looks == sorted(looks)
    assert steps == sorted(steps)
    assert 500 < steps[0] < steps[-1] < 20_000
    assert [one.batch_size for one in made] == [16, 32, 64, 128, 256]
    assert all(5e-5 <= one.optimiser.lr <= 5e-4 for one in made)
    assert all(one.optimiser.layer_decay < 1 for one in made)
    assert all(one.fields == {} for one in made)  # the checkpoint's own image size
    assert recipe("tune", batch_size=64).optimiser.lr == 2e-4


def test_what_has_one_channel_is_not_mirrored() -> None:
    choice = Choice(data="digits", train=Digits(1_000), start="somewhere/best")
    assert choose("tune", choice).augmentation.flip == 0
    assert choose("small", choice).augmentation.flip == 0


def test_small_leaves_a_named_model_its_shape() -> None:
    assert recipe("small", model="vit_s_16", start=None).fields == {}
    assert recipe("small").fields == {}
    fresh = recipe("small", start=None)
    assert change(find(fresh.model or ""), fresh.fields).channels == 3


class Files(Photos):
    """Image files of one size, of which the first is no image."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__(1_000)
        file = BytesIO()
        Image.new("RGB", (width, height)).save(file, "png")
        self.png = file.getvalue()

    def read(self, index: int) -> bytes:
        return self.png if index else b"no image"


@pytest.mark.parametrize(
    ("size", "side"), [((32, 32), 32), ((28, 40), 28), ((120, 100), 108), ((375, 500), 224)]
)
def test_small_follows_the_size_of_the_files(size: tuple[int, int], side: int) -> None:
    made = choose("small", Choice(data="photos", train=Files(*size)))
    assert made.fields["image_size"] == (side, side)
    change(find(made.model or ""), made.fields)  # which refuses what patches do not divide


@pytest.mark.parametrize("size", [(8, 8), (96, 96), (100, 60), (192, 672), (70, 70)])
def test_small_keeps_a_size_that_was_given(size: tuple[int, int]) -> None:
    made = recipe("small", start=None, image_size=size)
    config: Any = change(find(made.model or ""), made.fields)
    assert config.image_size == size
    patch = size[0] // config.grid[0]
    assert f"patches of {patch}x{patch}" in " ".join(made.reasons)


def test_small_refuses_a_size_without_patches() -> None:
    with pytest.raises(UserError, match="got 97x97: use 96x96"):
        recipe("small", start=None, image_size=(97, 97))


@pytest.mark.parametrize(
    ("model", "side", "given", "fields"),
    [
        ("resnet18", 8, None, {"image_size": (8, 8), "stem": "3x3"}),
        ("resnet50", 28, (32, 48), {"image_size": (32, 48), "stem": "3x3"}),
        ("resnet18", 96, None, {"image_size": (96, 96)}),
        ("resnet18", 28, (224, 224), {"image_size": (224, 224)}),
        ("bit_r50x1", 28, None, {"image_size": (64, 64)}),
        ("mobilenetv2_100", 96, None, {"image_size": (96, 96)}),
        ("vit_ti_16", 28, None, {}),
    ],
)
def test_small_gives_convolutional_networks_the_size_of_the_images(
    model: str, side: int, given: tuple[int, int] | None, fields: dict[str, Any]
) -> None:
    class Squares(Photos):
        def read(self, index: int) -> NDArray[np.uint8]:
            return np.zeros((side, side), np.uint8)

    made = choose(
        "small", Choice(data="squares", train=Squares(900), model=model, image_size=given)
    )
    assert made.fields == fields
    change(find(model), dict(made.fields))  # they are fields of the model
    assert any(reason.startswith(f"{model} defines the shape") for reason in made.reasons)
    assert all(10 < len(reason) < 240 for reason in made.reasons)
