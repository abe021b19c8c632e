"""The corruptions are the published ones: by other libraries' operations, or by the plain loop."""

import itertools
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage  # type: ignore[import-untyped]
from skimage import color, data, filters

from vitrail.core.errors import UserError
from vitrail.evaluation import corruptions
from vitrail.evaluation.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    STRENGTHS,
    blur_along,
    corrupt,
    disk_kernel,
    displace_pixels,
    draw_plasma,
    published_side,
    zoom_in,
)

# scikit-image has no types
astronaut: Any = data.astronaut
gaussian: Any = filters.gaussian

EVERY = list(itertools.product(CORRUPTIONS, SEVERITIES))


def photo(side: int = 64) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(astronaut()).resize((side, side)))


def test_there_are_the_fifteen_of_the_paper_each_with_five_severities() -> None:
    assert list(STRENGTHS) == list(CORRUPTIONS)
    assert len(CORRUPTIONS) == 15
    assert all(len(part) == 5 for parts in STRENGTHS.values() for part in parts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(8, 8, 1), (7, 13, 3), (32, 32, 3), (2, 3, 1), (96, 128, 3)])
def test_every_corruption_takes_every_size(size: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    for name, severity in EVERY:
        before = pixels.copy()
        result = corrupt(pixels, name, severity)
        assert result.shape == size
        assert result.dtype == np.uint8
        assert np.array_equal(pixels, before)


@pytest.mark.slow
@pytest.mark.parametrize("side", [32, 224])
def test_harder_is_farther_from_the_image(side: int) -> None:
    image = photo(side)
    for name in CORRUPTIONS:
        away = [
            abs(corrupt(image, name, severity, index=index).astype(int) - image).mean()
            for severity in (1, 5)
            for index in range(3)
        ]
        if name == "elastic transform":  # whose published constants trade one motion for another
            assert min(away) > 1
        else:
            assert np.mean(away[3:]) > np.mean(away[:3]) > 0.1


def test_draws_come_from_seed_severity_and_image_alone() -> None:
    image = photo(32)
    for name in ("gaussian noise", "glass blur", "snow", "frost", "fog", "elastic transform"):
        first = corrupt(image, name, 3, seed=1, index=5)
        assert np.array_equal(corrupt(image, name, 3, seed=1, index=5), first)
        assert not np.array_equal(corrupt(image, name, 3, seed=2, index=5), first)
        assert not np.array_equal(corrupt(image, name, 3, seed=1, index=6), first)


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="did you mean fog"):
        corrupt(photo(32), "fogg", 1)
    with pytest.raises(UserError, match="severity must be from 1 to 5, got 6"):
        corrupt(photo(32), "fog", 6)


def test_small_images_have_the_constants_of_small_images() -> None:
    assert [published_side((side, side)) for side in (8, 32, 84, 85, 224, 512)] == [
        *(32, 32, 32),
        *(224, 224, 224),
    ]
    flat_grey = np.full((84, 84, 3), 100, dtype=np.uint8)
    assert corrupt(flat_grey, "brightness", 5)[0, 0, 0] == 176  # + 0.3 of 255
    assert (
        corrupt(np.pad(flat_grey, ((0, 1), (0, 1), (0, 0)), "edge"), "brightness", 5)[0, 0, 0]
        == 227
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_published_strength(severity: int) -> None:
    flat_grey = np.full((224, 224, 3), 128, dtype=np.uint8)
    photons = STRENGTHS["shot noise"][0][severity - 1]
    values = corrupt(flat_grey, "shot noise", severity) / 255 * photons
    assert abs(values - values.round()).max() < 0.02 * photons, "whole photons"
    flat = corrupt(flat_grey, "impulse noise", severity)
    changed = flat != 128
    assert changed.mean() == pytest.approx(STRENGTHS["impulse noise"][0][severity - 1], rel=0.03)
    assert set(np.unique(flat[changed])) == {0, 255}
    assert (flat[changed] == 255).mean() == pytest.approx(0.5, abs=0.02)
    if severity <= 2:  # later the ends cut it off
        noisy = corrupt(flat_grey, "gaussian noise", severity) / 255
        assert noisy.std() == pytest.approx(STRENGTHS["gaussian noise"][0][severity - 1], rel=0.02)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("radius", "smoothing"), STRENGTHS["defocus blur"][0])
def test_defocus_is_opencvs(radius: float, smoothing: float) -> None:
    cv2 = pytest.importorskip("cv2")
    kernel, image = disk_kernel(radius, smoothing), photo(224) / 255
    assert kernel.sum() == pytest.approx(1, abs=0.02)
    ours = corruptions.defocus_blur(image, (radius, smoothing), np.random.default_rng(0))
    theirs = np.dstack([cv2.filter2D(image[..., k].copy(), -1, kernel) for k in range(3)])
    assert abs(ours - theirs).max() < 1e-6
    flat = np.zeros_like(kernel)
    place = np.arange(len(kernel)) - len(kernel) // 2
    flat[place[:, None] ** 2 + place**2 <= radius**2] = 1
    side = 3 if radius <= 8 else 5
    smooth = cv2.GaussianBlur(flat / flat.sum(), (side, side), smoothing)
    assert abs(kernel - smooth).max() < 1e-6


def test_brightness_is_that_of_hue_saturation_and_value() -> None:
    image = photo(96) / 255
    image[:4] = 0
    hsv = color.rgb2hsv(image)
    hsv[..., 2] = (hsv[..., 2] + 0.3).clip(0, 1)
    ours = corruptions.brightness(image, 0.3, np.random.default_rng(0))
    assert abs(ours - color.hsv2rgb(hsv)).max() < 1e-9


def one_after_another(
    size: tuple[int, int], reach: int, moves: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The published loop: from the last pixel to the first, each takes what a neighbour has."""
    shown = np.arange(size[0] * size[1]).reshape(size)
    rows, columns = (range(reach + 1, side - reach + 1) for side in size)
    for row in reversed(rows):
        for column in reversed(columns):
            down, across = moves[:, row - reach - 1, column - reach - 1]
            shown[row, column] = shown[row + down, column + across]
    return shown.reshape(-1)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_follows_the_published_loop(reach: int) -> None:
    size = (23, 31)
    moves = np.random.default_rng(7).integers(
        -reach, reach, (2, (23 - 2 * reach) * (31 - 2 * reach))
    )
    table = moves.reshape(2, 23 - 2 * reach, 31 - 2 * reach)
    expected = one_after_another(size, reach, table)
    assert np.array_equal(displace_pixels(size, reach, np.random.default_rng(7)), expected)
    assert (expected != np.arange(len(expected))).mean() > 0.3


def test_glass_blurs_as_scikit_image_does() -> None:
    image, draw = photo(48) / 255, np.random.default_rng(3)
    ours = corruptions.glass_blur(image, (0.9, 2, 1), np.random.default_rng(3))
    soft = np.floor(gaussian(image, 0.9, channel_axis=-1) * 255) / 255
    mixed = soft.reshape(-1, 3)[displace_pixels((48, 48), 2, draw)].reshape(48, 48, 3)
    assert abs(ours - gaussian(mixed, 0.9, channel_axis=-1)).max() < 1e-9


def test_zoom_is_scipys() -> None:
    image = photo(60) / 255
    for factor in (1.0, 1.05, 1.31, 2.5):
        kept = int(np.ceil(60 / factor))
        top = (60 - kept) // 2
        near = ndimage.zoom(image[top : top + kept, top : top + kept], (factor, factor, 1), order=1)
        spare = (len(near) - 60) // 2
        theirs = near[spare : spare + 60, spare : spare + 60]
        assert abs(zoom_in(image, factor) - theirs).max() < 1e-9


def test_motion_is_a_mean_along_a_line() -> None:
    dot = np.zeros((41, 41, 1))
    dot[20, 20] = 1
    right = blur_along(dot, 5, 2.0, angle=0)[..., 0]
    weights = np.exp(-(np.arange(11) ** 2) / 8)
    assert right[20, 10:21][::-1] == pytest.approx(weights / weights.sum())
    assert np.count_nonzero(right.sum(axis=1)) == 1
    down = blur_along(dot, 5, 2.0, angle=90)[..., 0]
    assert np.array_equal(down, right.T)
    slanted = blur_along(dot, 5, 2.0, angle=45)[..., 0]
    rows, columns = np.nonzero(slanted)
    assert np.array_equal(rows, columns)
    flat = np.full((9, 9, 3), 0.4)
    assert blur_along(flat, 15, 8.0, angle=30) == pytest.approx(flat)


def clouds(side: int, decay: float, draw: Iterator[float]) -> NDArray[np.float64]:
    """Diamond-square point by point, every neighbour found across the border."""
    heights, step, rough = np.zeros((side, side)), side, 100.0

    def fill(rows: range, columns: range, around: list[tuple[int, int]]) -> None:
        for row, column in itertools.product(rows, columns):
            near = [heights[(row + a) % side, (column + b) % side] for a, b in around]
            heights[row, column] = sum(near) / 4 + rough**2 * next(draw)

    while step >= 2:
        half = step // 2
        cross = [(half, 0), (-half, 0), (0, half), (0, -half)]
        corners = list(itertools.product((half, -half), (half, -half)))
        fill(range(half, side, step), range(half, side, step), corners)
        fill(range(0, side, step), range(half, side, step), cross)
        fill(range(half, side, step), range(0, side, step), cross)
        step, rough = half, rough / decay
    heights -= heights.min()
    return heights / heights.max()


class Fixed:
    """Draws numbers of a fixed list, in its order, as `uniform` would."""

    def __init__(self) -> None:
        self.numbers = np.random.default_rng(11).uniform(-1, 1, 4096)
        self.used = 0

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        count = int(np.prod(shape))
        self.used += count
        return high * self.numbers[self.used - count : self.used].reshape(shape)


def test_fog_is_diamonds_and_squares() -> None:
    fixed: Any = Fixed()
    expected = clouds(16, 1.7, iter(fixed.numbers.tolist()))
    assert draw_plasma((16, 16), 1.7, fixed) == pytest.approx(expected)
    assert draw_plasma((11, 13), 2, np.random.default_rng(0)).shape == (11, 13)


def test_the_affine_part_of_elastic_is_opencvs() -> None:
    cv2 = pytest.importorskip("cv2")
    side, strength = 96, (0.0, 0.0, 0.1)
    image = gaussian(photo(side) / 255, 2, channel_axis=-1)
    ours = corruptions.elastic_transform(image, strength, np.random.default_rng(5))
    third, centre = side // 3, np.full(2, side // 2)
    before = (centre + third * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    shift = np.random.default_rng(5).uniform(-0.1 * side, 0.1 * side, (3, 2))
    matrix = cv2.getAffineTransform(before, (before + shift).astype(np.float32))
    border = cv2.BORDER_REFLECT_101
    theirs = cv2.warpAffine(image.astype(np.float32), matrix, (side, side), borderMode=border)
    # opencv places pixels to 1/32 only
    assert abs(ours - theirs).max() < 0.02
    assert abs(ours - image).mean() > 0.02


def test_the_displacement_of_elastic_is_smooth_as_scikit_images() -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (40, 50))
    for sigma in (1.5, 12, 60):
        theirs = gaussian(noise, sigma, mode="reflect", truncate=3)
        assert corruptions.smooth(noise, sigma) == pytest.approx(theirs, abs=1e-9)


def test_digital_ones_are_pillows() -> None:
    image = photo(100)
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=15)
    assert np.array_equal(corrupt(image, "jpeg compression", 3), np.asarray(Image.open(file)))
    box = Image.Resampling.BOX
    small = Image.fromarray(image).resize((40, 40), box).resize((100, 100), box)
    assert np.array_equal(corrupt(image, "pixelate", 3), np.asarray(small))
    means = image.mean(axis=(0, 1))
    left = corrupt(image, "contrast", 5)
    assert left.mean(axis=(0, 1)) == pytest.approx(means, abs=0.6)
    assert left.std() < image.std() / 3


def test_frost_has_the_tones_of_the_photographs() -> None:
    black = np.zeros((160, 160, 3), dtype=np.uint8)
    seen = np.array([corrupt(black, "frost", 1, index=index).mean() for index in range(40)]) / 0.4
    tones = np.array([np.mean(tone.mean) for tone in corruptions.TONES])
    assert abs(seen[:, None] - tones).min(axis=1).max() < 4
    assert len(np.unique(abs(seen[:, None] - tones).argmin(axis=1))) == 4
