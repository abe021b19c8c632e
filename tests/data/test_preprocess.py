"""The evaluation transform against torchvision's, pixel for pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from vitrail import UserError
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocessing
from vitrail.data.preprocess import cover_size, prepare


def photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


@pytest.mark.parametrize("size", [(500, 375), (300, 700), (64, 64), (225, 1000)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resize_and_crop_are_torchvisions(
    size: tuple[int, int], interpolation: Interpolation
) -> None:
    how = Preprocessing(
        size=(224, 224),
        resize=(256, 256),
        interpolation=interpolation,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )
    theirs = transforms.Compose(
        [
            transforms.Resize(256, transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    torch.testing.assert_close(prepare(photo(*size), how), theirs(photo(*size)), rtol=0, atol=1e-6)


def test_without_resize_the_whole_picture_is_squeezed() -> None:
    how = Preprocessing(size=(96, 160))
    theirs = transforms.Compose([transforms.Resize((96, 160)), transforms.ToTensor()])
    expected = theirs(photo(500, 375)) * 2 - 1
    torch.testing.assert_close(prepare(photo(500, 375), how), expected, rtol=0, atol=1e-6)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=200)
def test_cover_covers_and_meets_one_side(width: int, height: int, rows: int, columns: int) -> None:
    new_width, new_height = cover_size((width, height), (rows, columns))
    assert new_width >= columns
    assert new_height >= rows
    assert new_width == columns or new_height == rows


def test_channels() -> None:
    how = Preprocessing(size=(8, 8), mean=(0.0,) * 3, std=(1.0,) * 3, channel_order="bgr")
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    assert prepare(red, how)[:, 0, 0].tolist() == [0, 0, 1]
    grey = Preprocessing(size=(8, 8), mean=(0.5,), std=(0.5,))
    assert prepare(red, grey).shape == (1, 8, 8)
    with pytest.raises(UserError, match="reads 4 channels"):
        prepare(red, Preprocessing(size=(8, 8), mean=(0.5,) * 4, std=(0.5,) * 4))


@pytest.mark.parametrize(
    ("mean", "std", "sentence"),
    [
        ((0.5,), (0.5, 0.5), "mean and std must have the same number of channels, got 1 and 2"),
        ((0.5,), (0.0,), "std must not be 0"),
    ],
)
def test_a_preprocessing_that_cannot_be(
    mean: tuple[float, ...], std: tuple[float, ...], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Preprocessing(size=(8, 8), mean=mean, std=std)
