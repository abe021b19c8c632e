"""Augmentation against timm's at equal draws, and our two engines against each other."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from timm.data import create_transform
from timm.data.auto_augment import AugmentOp, rand_augment_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation

from tests.recipes.test_recipes import recipe
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import NOTHING, Augmentation, Transform, make_policy, to_tensor
from vitrail.data.draws import draws_for
from vitrail.data.finish import erase_
from vitrail.data.geometry import draw_crop
from vitrail.data.preprocess import normalise
from vitrail.data.randaugment import OPERATORS, STRONGEST, Canvas, RandAugment
from vitrail.data.warp import warp

MEAN = (0.485, 0.456, 0.406)
HOW = Preprocessing(size=(32, 32), mean=MEAN, std=(0.2, 0.25, 0.3), interpolation="bicubic")
FILL = tuple(round(255 * mean) for mean in MEAN)
PUBLISHED = "rand-m9-mstd0.5-inc1"


def photo(mode: str = "RGB", size: tuple[int, int] = (37, 29)) -> Image.Image:
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)


@pytest.fixture(autouse=True)
def posterize_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm asks for 0 bits at its strongest, which recent versions of Pillow refuse."""
    recent = ImageOps.posterize

    def posterize(image: Image.Image, bits: int) -> Image.Image:
        return recent(image, bits) if bits else image.point(lambda _: 0)

    monkeypatch.setattr(ImageOps, "posterize", posterize)


def theirs(magnitude: float = 9) -> dict[str, AugmentOp]:
    """timm's operators of the published policy."""
    known = {"img_mean": FILL, "interpolation": Image.Resampling.BICUBIC}
    made = rand_augment_transform(PUBLISHED, known)
    for op in made.ops:
        op.prob, op.magnitude, op.magnitude_std = 1.0, magnitude, 0
    return {op.name: op for op in made.ops}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_timms(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image, canvas = photo(mode), Canvas(Image.Resampling.BICUBIC, FILL)
    for magnitude in (0, 0.3, 2.5, 7, 9, 9.99, 10):
        for sign in (1, -1):
            op = theirs(magnitude)[name]
            if mode == "L":
                op.kwargs["fillcolor"] = FILL[0]
            monkeypatch.setattr(random, "random", lambda sign=sign: 0.4 if sign > 0 else 0.6)
            expected = np.asarray(op(image))
            ours = OPERATORS[name](image, magnitude / STRONGEST, sign, canvas)
            np.testing.assert_array_equal(np.asarray(ours), expected)


@pytest.mark.parametrize("name", ["deit", "deit_distilled", "swin", "beit", "beit_22k"])
def test_a_recipe_augments_as_published(name: str) -> None:
    """By what timm makes of the authors' command, not by our reading of it."""
    asked = recipe(name).augmentation
    published = create_transform(
        32, is_training=True, auto_augment=PUBLISHED, interpolation="bicubic",
        re_prob=0.25, re_mode="pixel", re_count=1, mean=MEAN,
    )  # fmt: skip
    crop, flip, policy, *_, erase = published.transforms
    ours = make_policy(asked, HOW)
    assert isinstance(ours, RandAugment)
    assert sorted(OPERATORS) == sorted(op.name for op in policy.ops)
    assert ours.operations == policy.num_layers
    for op in policy.ops:
        assert (op.prob, op.magnitude) == (ours.probability, ours.magnitude)
        assert (op.magnitude_std, op.magnitude_max) == (ours.magnitude_std, None)
        assert op.kwargs == {"fillcolor": ours.canvas.fill, "resample": ours.canvas.resample}
    assert asked.crop == tuple(crop.scale)
    assert asked.aspect == pytest.approx(tuple(crop.ratio))
    assert asked.flip == flip.p
    assert (asked.erase, asked.erase_fill == "noise") == (erase.probability, erase.per_pixel)


@pytest.mark.slow
def test_the_policy_changes_images_as_much_as_timms() -> None:
    """The mean change over many draws: at a third of the strength it is far less."""
    asked = recipe("deit").augmentation
    ours = make_policy(asked, HOW)
    assert isinstance(ours, RandAugment)
    known = {"img_mean": FILL, "interpolation": Image.Resampling.BICUBIC}
    peer, image = rand_augment_transform(PUBLISHED, known), photo(size=(32, 32))
    before = np.asarray(image).astype(float)

    def change(other: Image.Image) -> float:
        return float(np.abs(np.asarray(other) - before).mean())

    random.seed(0)
    np.random.seed(0)
    mine = [change(ours(image, seed)) for seed in range(4000)]
    other = [change(peer(image)) for _ in range(4000)]
    error = math.hypot(*(np.std(one) / len(one) ** 0.5 for one in (mine, other)))
    assert abs(np.mean(mine) - np.mean(other)) < 4 * error
    assert error < 0.03 * np.mean(other)
    untouched = [np.mean(np.array(one) == 0) for one in (mine, other)]
    assert abs(untouched[0] - untouched[1]) < 0.05


def feed(monkeypatch: pytest.MonkeyPatch, uniforms: Iterator[float], places: Any) -> None:
    """Let Python's generator, from which timm draws, give these numbers."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * next(uniforms)

    def randint(low: int, high: int) -> int:
        return low + int(next(places) * (high - low + 1))

    monkeypatch.setattr(random, "uniform", uniform)
    monkeypatch.setattr(random, "randint", randint)


@pytest.mark.parametrize("size", [(30, 50), (64, 64), (200, 20), (20, 200)])
def test_crops_are_timms_at_equal_draws(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    height, width = size
    peer = RandomResizedCropAndInterpolation(32, (0.08, 1.0), (3 / 4, 4 / 3))
    samples = np.stack([np.arange(60), np.zeros(60, dtype=int)], axis=1)
    draw = draws_for(0, 0, samples)
    crop = draw_crop(Augmentation(), height, width, draw)
    assert crop is not None
    numbers = np.stack([draw("area", 10), draw("aspect", 10)], axis=2).reshape(60, 20)
    rows, columns = draw("row", 1)[:, 0], draw("column", 1)[:, 0]
    for i, box in enumerate(crop.pixels(height, width)):
        feed(monkeypatch, iter(numbers[i]), iter((rows[i], columns[i])))
        expected = peer.get_params(Image.new("RGB", (width, height)), peer.scale, peer.ratio)
        np.testing.assert_allclose(box, expected, atol=1)  # the middle may be half a pixel off
        if expected[2:] != (height, width):
            assert tuple(box[2:]) == tuple(expected[2:])


def test_erasing_is_timms_at_equal_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.stack([np.arange(300), np.zeros(300, dtype=int)], axis=1)
    asked = Augmentation(erase=0.25, erase_fill="noise")
    images = torch.full((300, 3, 24, 40), 100.0)
    erase_(images, samples, asked, seed=1, epoch=2)
    draw = draws_for(1, 2, samples)
    numbers = np.stack([draw("erased area", 10), draw("erased aspect", 10)], axis=2)
    peer = RandomErasing(0.25, mode="pixel", device="cpu")
    for i, mine in enumerate(images):
        feed(
            monkeypatch, iter(numbers[i].reshape(20)),
            iter((draw("erased row", 1)[i, 0], draw("erased column", 1)[i, 0])),
        )  # fmt: skip
        monkeypatch.setattr(random, "random", lambda i=i: draw("erase", 1)[i, 0])
        other = peer(torch.full((3, 24, 40), 100.0))
        assert torch.equal(mine == 100, other == 100)
    noise = images[images != 100]
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    boxes = [image[image != 100] for image in images]
    assert 0.15 < np.mean([len(box) > 0 for box in boxes]) < 0.35
    plain = torch.full((300, 3, 24, 40), 100.0)
    erase_(plain, samples, replace(asked, erase_fill="mean"), seed=1, epoch=2)
    assert torch.equal(plain == 0, images != 100)


GEOMETRY: dict[str, dict[str, Any]] = {
    "flip": {"flip": 0.5},
    "crop": {"crop": (0.3, 1.0)},
    "rotate": {"rotate": 30},
    "shift": {"shift": 0.2},
    "zoom": {"zoom": 0.3},
    "motion": {"rotate": 25, "shift": 0.1, "zoom": 0.2, "flip": 0.5},
    "erase": {"erase": 0.8, "erase_fill": "noise"},
    "crop and flip": {"crop": (0.3, 1.0), "flip": 0.5},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("order", ["rgb", "bgr"])
@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("kind", GEOMETRY)
def test_the_two_engines_agree(kind: str, size: tuple[int, int], order: Any) -> None:
    """On smooth images, of which a pixel more or less and another filter change little."""
    how = replace(HOW, size=size, channel_order=order)
    asked = replace(NOTHING, **GEOMETRY[kind])
    down, right = torch.meshgrid(*(torch.linspace(0, 1, side) for side in size), indexing="ij")
    channels = [60 + 120 * down, 60 + 120 * right, 180 - 60 * down - 60 * right]
    images = torch.stack(channels).round().byte().repeat(40, 1, 1, 1)
    samples = np.stack([np.arange(40), np.arange(40) % 3], axis=1)
    batch = warp(images, samples, asked, how, seed=5, epoch=1)
    transform = Transform(asked, how)
    singles = torch.stack([
        transform(image, seed=5, epoch=1, index=int(index), view=int(view))
        for image, (index, view) in zip(images, samples, strict=True)
    ])  # fmt: skip
    alone = normalise(singles, how)
    erase_(alone, samples, asked, seed=5, epoch=1)
    # where a corner is black in one and interpolated in the other, they may differ
    apart = (alone - batch).abs().amax(dim=1)
    inside = apart < 12 / 255 / min(how.std)
    assert inside.float().mean() > 0.93
    assert (apart.flatten(1).median(dim=1).values < 5 / 255 / min(how.std)).all()


def test_colours_are_changed_before_channels_are_reordered() -> None:
    """A model that reads BGR sees what one that reads RGB sees, in another order."""
    image = to_tensor(np.array(photo(size=(40, 40))))
    asked = Augmentation(policy="randaugment", operation_prob=1.0)
    back = replace(HOW, mean=HOW.mean[::-1], std=HOW.std[::-1], channel_order="bgr")
    for index in range(20):
        one, other = (
            normalise(Transform(asked, how)(image, seed=0, epoch=0, index=index, view=0)[None], how)
            for how in (HOW, back)
        )
        torch.testing.assert_close(one, other.flip(1))
