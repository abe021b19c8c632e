"""Pixels against each origin's own processor, prepared as the passport that our loader derives,
and the fast way against the exact one."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from skimage import data as samples
from sklearn.datasets import load_sample_image
from timm.data.config import resolve_data_config
from timm.data.transforms_factory import create_transform
from timm.models import get_pretrained_cfg
from torch import Tensor
from torchvision import models as torchvision
from torchvision.transforms import v2

from tests.golden import golden
from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.preprocess import cover_size, prepare
from vitrail.data.reader import read_pixels
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects.timm import TIMM
from vitrail.weights.dialects.torchvision import TORCHVISION
from vitrail.weights.dialects.transformers_processor import PROCESSORS, read_preprocessing

Photo = NDArray[np.uint8]


def sample(name: str) -> Photo:
    pixels: Photo = getattr(samples, name)()
    return pixels


@cache
def photos() -> dict[str, Photo]:
    """Real ones, wide and tall, most of them cut to odd sides."""
    chelsea, coffee, astronaut = map(sample, ("chelsea", "coffee", "astronaut"))
    china, flower = load_sample_image("china.jpg"), load_sample_image("flower.jpg")
    return {
        "chelsea 451x300": chelsea,
        "chelsea 449x297": chelsea[:297, :449],
        "coffee 600x400": coffee,
        "coffee 231x399": coffee[:399, 150:381],
        "astronaut 512x512": astronaut,
        "astronaut 511x173": astronaut[:173, :511],
        "china 640x427": china,
        "china 333x427": china[:, 100:433],
        "flower 639x425": flower[:425, :639],
        "flower 97x101": flower[150:251, 250:347],  # smaller than what it is scaled to
    }


every_photo = pytest.mark.parametrize("photo", photos())


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def config(side: int, dim: int = 64, patch_size: int = 16) -> ViTConfig:
    return ViTConfig(
        image_size=(side, side), patch_size=patch_size, dim=dim, depth=1, heads=1, mlp_dim=4
    )


TIMM_NAMES = (
    "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_patch16_384.augreg_in21k_ft_in1k",
    "vit_base_patch32_224.sam_in1k",
    "deit_base_patch16_224.fb_in1k",
    "deit_base_distilled_patch16_384.fb_in1k",
    "deit3_base_patch16_224.fb_in22k_ft_in1k",
    "vit_base_patch16_clip_224.openai",
)


@cache
def of_timm(name: str) -> tuple[Any, Preprocessing]:
    """timm's own transform, and our passport's part, for weights that timm publishes."""
    found: Any = get_pretrained_cfg(name)
    published = found.to_dict()
    resolved: dict[str, Any] = resolve_data_config({}, pretrained_cfg=published)
    said = {"config.json": {"pretrained_cfg": published}}
    ours = TIMM.preprocessing(Foreign(name, {}, said), config(resolved["input_size"][-1]))
    return create_transform(**resolved), ours


@every_photo
@pytest.mark.parametrize("name", TIMM_NAMES)
def test_timm(name: str, photo: str) -> None:
    theirs, how = of_timm(name)
    picture = photos()[photo]
    assert_same(prepare(picture, how), theirs(Image.fromarray(picture)))


TORCHVISION_WEIGHTS = (
    torchvision.ViT_B_16_Weights.IMAGENET1K_V1,
    torchvision.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1,
    torchvision.ViT_L_16_Weights.IMAGENET1K_V1,
    torchvision.ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1,
)
SHAPES = {"B_16": (768, 16), "L_16": (1024, 16), "H_14": (1280, 14)}  # width and patch


@every_photo
@pytest.mark.parametrize("weights", TORCHVISION_WEIGHTS, ids=str)
def test_torchvision(weights: Any, photo: str) -> None:
    shape = next(shape for name, shape in SHAPES.items() if name in str(weights))
    ours = config(weights.meta["min_size"][0], *shape)
    how = TORCHVISION.preprocessing(Foreign("published", {}), ours)
    picture = photos()[photo]
    assert_same(prepare(picture, how), weights.transforms()(Image.fromarray(picture)))


def of_transformers(processor: Any) -> Preprocessing:
    """Our passport's part, from the file that the processor would write."""
    said = {"preprocessor_config.json": processor.to_dict()}
    return read_preprocessing(Foreign("published", {}, said), config(224), PROCESSORS["ViT"])


def seen_by(processor: Any, picture: Photo) -> Tensor:
    seen: Tensor = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"][0]
    return seen


# Each kind has two: one resizes by Pillow, as transformers 4 did, the other by torchvision.
@every_photo
@pytest.mark.parametrize("fast", [False, True])
def test_transformers_squeezes(photo: str, fast: bool) -> None:
    kind = "ViTImageProcessor" if fast else "ViTImageProcessorPil"
    processor, picture = getattr(transformers, kind)(), photos()[photo]
    how = of_transformers(processor)
    assert how.resize is None
    assert_same(prepare(picture, how, exact=not fast), seen_by(processor, picture))


@every_photo
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["CLIP", "Bit", "DeiT"])
def test_transformers_crops(kind: str, photo: str, fast: bool) -> None:
    name = f"{kind}ImageProcessor" + ("" if fast else "Pil")
    processor, picture = getattr(transformers, name)(), photos()[photo]
    how = of_transformers(processor)
    assert_same(prepare(picture, how, exact=not fast), seen_by(processor, picture))


def test_photos_from_files() -> None:
    """From a JPEG to the model, for every origin: the decoder gives what Pillow gives."""
    files = sorted(golden("pets/test").glob("*/*.jpg"))[::12]
    assert len(files) >= 10
    clip = transformers.CLIPImageProcessorPil()
    for file in files:
        pixels, picture = read_pixels(file), Image.open(file).convert("RGB")
        for name in TIMM_NAMES[:1]:
            theirs, how = of_timm(name)
            assert_same(prepare(pixels, how), theirs(picture))
        how = of_transformers(clip)
        seen = clip(picture, return_tensors="pt")["pixel_values"][0]
        assert_same(prepare(pixels, how), seen)


# The fast way, and pixels instead of pictures


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def plain(**changes: Any) -> Preprocessing:
    """Values stay in [0, 1]."""
    usual: dict[str, Any] = {"size": (224, 224), "resize": (256, 256), "interpolation": "bicubic"}
    return Preprocessing(**usual | {"mean": (0.0,) * 3, "std": (1.0,) * 3} | changes)


@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.sampled_from(["bilinear", "bicubic"]),
    st.sampled_from([None, (64, 64), (60, 90)]),
)
@settings(max_examples=100, deadline=None)
def test_fast_is_torchvisions_for_tensors(
    width: int, height: int, interpolation: str, resize: tuple[int, int] | None
) -> None:
    how = plain(size=(48, 56), resize=resize, interpolation=interpolation)
    pixels = np.array(noise(width, height))
    fast = prepare(pixels, how, exact=False)
    wide, tall = (56, 48) if resize is None else cover_size((width, height), resize)
    theirs = v2.functional.resize(
        torch.from_numpy(pixels).permute(2, 0, 1),
        [tall, wide],
        interpolation=v2.InterpolationMode(interpolation),
        antialias=True,
    )
    expected = v2.functional.center_crop(theirs, [48, 56]).float() / 255
    torch.testing.assert_close(fast, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@given(st.integers(60, 600), st.integers(60, 400), st.sampled_from(["bilinear", "bicubic"]))
@settings(max_examples=100, deadline=None)
def test_fast_is_close_to_exact(width: int, height: int, interpolation: str) -> None:
    """On a photo; on noise only the bilinear filter keeps that close."""
    how = plain(size=(112, 112), resize=(128, 128), interpolation=interpolation)
    pixels = sample("coffee")[:height, :width]
    difference = 255 * (prepare(pixels, how, exact=False) - prepare(pixels, how)).abs()
    # Both round after each pass, across and down, so each may be 1 from the unrounded value: on
    # 405x144 pixels one value is 182 and 184 for an unrounded 183.
    assert difference.max() < (2.01 if interpolation == "bilinear" else 12)
    assert difference.mean() < 0.3
    assert (difference > 2.01).sum() <= 10


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_pixels_and_pictures_are_the_same(fast: bool, interpolation: str) -> None:
    how, picture = plain(interpolation=interpolation), noise(451, 301)
    pixels = np.array(picture)
    from_picture = prepare(picture, how, exact=not fast)
    assert torch.equal(prepare(pixels, how, exact=not fast), from_picture)
    sealed = pixels.copy()
    sealed.flags.writeable = False  # torch warns of such, and here warnings are errors
    backwards = np.ascontiguousarray(pixels[::-1])[::-1]  # and refuses such
    columns = np.asfortranarray(pixels)
    for same in (sealed, backwards, columns):
        assert torch.equal(prepare(same, how, exact=not fast), from_picture)


@pytest.mark.parametrize("fast", [False, True])
def test_pixels_in_other_channels(fast: bool) -> None:
    how, grey = plain(), plain(mean=(0.0,), std=(1.0,))
    picture = noise(300, 200, "L")
    pixels = np.array(picture)
    expected = prepare(picture, how, exact=not fast)
    for same in (pixels, pixels[..., None], np.repeat(pixels[..., None], 3, axis=2)):
        assert torch.equal(prepare(same, how, exact=not fast), expected)
        assert torch.equal(prepare(same, grey, exact=not fast), expected[:1])
    swapped = prepare(noise(300, 200), plain(channel_order="bgr"), exact=not fast)
    assert torch.equal(swapped.flip(0), prepare(noise(300, 200), how, exact=not fast))


@pytest.mark.parametrize("fast", [False, True])
def test_clear_parts_are_white_as_from_a_file(fast: bool) -> None:
    clear = Image.new("RGBA", (300, 200), (0, 0, 0, 0))
    assert (prepare(clear, plain(), exact=not fast) == 1).all()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((8, 8, 3), dtype=np.float32),
        np.zeros((8, 8, 4), dtype=np.uint8),
        np.zeros((3, 8, 8), dtype=np.uint8),
        np.zeros(8, dtype=np.uint8),
    ],
)
def test_pixels_that_are_none(pixels: Any, fast: bool) -> None:
    with pytest.raises(UserError, match=r"expected uint8 of shape \(H, W\)"):
        prepare(pixels, plain(), exact=not fast)
