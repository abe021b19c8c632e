"""The 15 common corruptions of arXiv:1903.12261 at 5 severities, for pixels of a model's own size.

Their published programs do not run here: the library that keeps them, imagecorruptions 1.1.2 of
2021, asks for modules and arguments that setuptools, numpy 2 and scikit-image have dropped, and
draws from one global state. So they are written anew from the published definitions and constants,
those of ImageNet-C (224 pixels) or, for small images, of CIFAR-10-C (32 pixels). What differs from
the published images is in `DIFFERS`. Every draw comes from (seed, corruption, severity, image).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage, signal  # type: ignore[import-untyped]

from vitrail.core.errors import UserError, nearest
from vitrail.core.randomness import seed_of

Pixels: TypeAlias = "Float[np.ndarray, 'H W C']"  # from 0 to 1
Map: TypeAlias = "Float[np.ndarray, 'H W']"
Draw: TypeAlias = np.random.Generator

SEVERITIES = (1, 2, 3, 4, 5)
LARGE_SIDE, SMALL_SIDE = 224, 32
# as many times larger than the one as it is smaller than the other
BETWEEN = (LARGE_SIDE * SMALL_SIDE) ** 0.5

DIFFERS = (
    "images are corrupted at the size at which the model reads them, 224 or not, and are not "
    "compressed again afterwards (ImageNet-C was saved as JPEG of quality 85)",
    "motion blur, of images and of snow, follows ImageMagick's definition but is computed in "
    "numpy, and snow is not rounded to 8 bits on the way",
    "frost is drawn by a procedure, needles of ice in the tones and contrasts of the photographs "
    "that ImageNet-C uses, instead of cut from these photographs",
    "constants in pixels are the same for all sizes on one side of 85 pixels; those of the elastic "
    "transform are shares of the image's side",
    "random numbers are others",
)

# How strong an effect is at each severity, for 224 and for 32 pixels: constants of the authors'
# programs make_imagenet_c.py and make_cifar_c.py.
STRENGTHS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "gaussian noise": ((0.08, 0.12, 0.18, 0.26, 0.38), (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot noise": ((60, 25, 12, 5, 3), (500, 250, 100, 75, 50)),
    "impulse noise": ((0.03, 0.06, 0.09, 0.17, 0.27), (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus blur": (  # radius, smoothing of its edge
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    "glass blur": (  # sigma, reach, rounds
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ),
    "motion blur": (  # radius, sigma
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    ),
    "zoom blur": (  # below which factor, in which steps
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    ),
    "snow": (  # mean, deviation, size of flakes, threshold, radius and sigma of motion, light
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (  # share of the image, share of the frost, how much finer it is than photographed
        ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
        ((1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5)),
    ),
    "fog": (  # density, how fast details fade
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    ),
    "brightness": ((0.1, 0.2, 0.3, 0.4, 0.5), (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": ((0.4, 0.3, 0.2, 0.1, 0.05), (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic transform": (  # shift, smoothness, affine: in sides, of 244 for 224 as published
        tuple(
            tuple(244 / 224 * part for part in row)
            for row in (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            )
        ),
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": ((0.6, 0.5, 0.4, 0.3, 0.25), (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg compression": ((25, 18, 15, 10, 7), (80, 65, 58, 50, 40)),
}


@dataclass(frozen=True)
class Tone:
    """The mean and the standard deviation of a photograph of frost, each of red, green, blue."""

    mean: tuple[int, int, int]
    deviation: tuple[int, int, int]


# Of the five photographs that ImageNet-C draws from; two of them are the same.
TONES = (
    Tone((78, 149, 166), (27, 16, 15)),
    Tone((201, 205, 214), (21, 22, 23)),
    Tone((201, 205, 214), (21, 22, 23)),
    Tone((138, 153, 165), (28, 28, 30)),
    Tone((112, 123, 135), (44, 43, 42)),
)


def published_side(size: tuple[int, int]) -> int:
    """Whose constants fit images of this size: those for 224 or those for 32 pixels.

    >>> published_side((384, 384)), published_side((64, 64)), published_side((8, 8))
    (224, 32, 32)
    """
    return LARGE_SIDE if min(size) >= BETWEEN else SMALL_SIDE


def corrupt(
    pixels: UInt8[np.ndarray, "H W C"], name: str, severity: int, *, seed: int = 0, index: int = 0
) -> UInt8[np.ndarray, "H W C"]:
    """The image under one corruption; each `index` has its own noise.

    >>> corrupt(np.zeros((32, 32, 3), dtype=np.uint8), "brightness", 5)[0, 0].tolist()
    [76, 76, 76]
    """
    if name not in CORRUPTIONS:
        raise UserError(f"unknown corruption {name!r}, {nearest(name, CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise UserError(f"severity must be from 1 to 5, got {severity}")
    strengths = STRENGTHS[name][published_side(pixels.shape[:2]) == SMALL_SIDE]
    draw = np.random.default_rng(seed_of(name, seed, severity, index))
    changed = CORRUPTIONS[name](pixels / 255, strengths[severity - 1], draw)
    # truncated, not rounded, as published; 1e-9 keeps integers that lack the last bit
    return np.floor(np.clip(changed, 0, 1) * 255 + 1e-9).astype(np.uint8)


# Noise


def gaussian_noise(image: Pixels, deviation: float, draw: Draw) -> Pixels:
    return image + draw.normal(scale=deviation, size=image.shape)


def shot_noise(image: Pixels, photons: float, draw: Draw) -> Pixels:
    return draw.poisson(image * photons) / photons


def impulse_noise(image: Pixels, share: float, draw: Draw) -> Pixels:
    """Some values become 0 or 1."""
    hit = draw.random(image.shape) <= share
    return np.where(hit, draw.random(image.shape) <= 0.5, image)


# Blur


def defocus_blur(image: Pixels, strength: tuple[float, float], draw: Draw) -> Pixels:
    kernel = disk_kernel(*strength)
    reach = len(kernel) // 2
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return np.asarray(signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1)))


@cache
def disk_kernel(radius: float, smoothing: float) -> Map:
    """A lens out of focus, its edge smoothed; 17 pixels wide, or as wide as it must be."""
    reach = 8 if radius <= 8 else int(radius)
    place = np.arange(-reach, reach + 1)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).astype(np.float64)
    smooth = 1 if radius <= 8 else 2
    return np.asarray(
        ndimage.gaussian_filter(inside / inside.sum(), smoothing, radius=smooth, mode="mirror")
    )


def glass_blur(image: Pixels, strength: tuple[float, int, int], draw: Draw) -> Pixels:
    """Pixels take the place of neighbours, between two soft blurs."""
    sigma, reach, rounds = strength

    def blur(pixels: Pixels) -> Pixels:
        return np.asarray(ndimage.gaussian_filter(pixels, (sigma, sigma, 0), mode="nearest"))

    flat = np.floor(blur(image) * 255).reshape(-1, image.shape[2]) / 255
    for _ in range(rounds):
        flat = flat[displace_pixels(image.shape[:2], reach, draw)]
    return blur(flat.reshape(image.shape))


def displace_pixels(size: tuple[int, int], reach: int, draw: Draw) -> NDArray[np.int64]:
    """For each pixel the one that it shows: from the last pixel to the first, each takes what a
    random neighbour has by then.

    The published program means to swap the two, but as it assigns views of one array the neighbour
    keeps its own: what it made is what is made here. One pixel after another takes seconds, so the
    chains of pixels that were taken before are followed all at once, twice as far in each round.
    """
    height, width = size
    shown = np.arange(height * width)
    rows, columns = (np.arange(reach + 1, side - reach + 1) for side in size)
    visited = (rows[:, None] * width + columns).reshape(-1)
    down, across = draw.integers(-reach, reach, (2, len(visited)))
    shown[visited] += down * width + across
    is_visited = np.zeros(len(shown), dtype=np.bool_)
    is_visited[visited] = True
    places = np.arange(len(shown))
    chain = np.where(is_visited[shown] & (shown > places), shown, places)
    while not np.array_equal(further := chain[chain], chain):
        chain = further
    return shown[chain]


def motion_blur(image: Pixels, strength: tuple[int, float], draw: Draw) -> Pixels:
    return blur_along(image, *strength, angle=draw.uniform(-45, 45))


def blur_along(image: Pixels, radius: int, sigma: float, *, angle: float) -> Pixels:
    """A mean over steps in one direction, whose weights fall like half a bell; `angle` in degrees.
    Beyond its border the image goes on as it ends."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    turn = np.deg2rad(angle)
    down, across = (
        np.ceil(steps * part - 0.5).astype(int) for part in (np.sin(turn), np.cos(turn))
    )
    rows, columns = (np.arange(side) for side in image.shape[:2])
    result = np.zeros_like(image)
    for weight, dy, dx in zip(weights / weights.sum(), down, across, strict=True):
        row, column = (rows + dy).clip(0, rows[-1]), (columns + dx).clip(0, columns[-1])
        result += weight * image[row[:, None], column]
    return result


def zoom_blur(image: Pixels, strength: tuple[float, float], draw: Draw) -> Pixels:
    """The mean of the image and of itself nearer and nearer."""
    factors = np.arange(1, *strength)
    result = image.copy()
    for factor in factors.tolist():
        result += zoom_in(image, factor)
    return result / (len(factors) + 1)


def zoom_in(image: Pixels, factor: float) -> Pixels:
    """The middle of the image, enlarged to the size of all of it."""
    rows, columns = (zoom_matrix(side, factor) for side in image.shape[:2])
    return np.stack([rows @ band @ columns.T for band in np.moveaxis(image, 2, 0)], axis=2)


@cache
def zoom_matrix(side: int, factor: float) -> Float[np.ndarray, "side side"]:
    """Linear interpolation along one axis as the matrix that it is."""
    cropped = int(np.ceil(side / factor))
    top = (side - cropped) // 2
    matrix = ndimage.zoom(np.eye(side)[top : top + cropped], (factor, 1), order=1)
    spare = (len(matrix) - side) // 2
    return np.asarray(matrix[spare : spare + side])


# Weather


def snow(image: Pixels, strength: tuple[float, ...], draw: Draw) -> Pixels:
    """Flakes that fall from two sides, and a paler image behind."""
    mean, deviation, size, threshold, radius, sigma, light = strength
    flakes = zoom_in(draw.normal(mean, deviation, image.shape[:2])[..., None], size)
    flakes = np.where(flakes < threshold, 0, flakes.clip(0, 1))
    flakes = blur_along(flakes, int(radius), sigma, angle=draw.uniform(-135, -45))
    pale = np.maximum(image, to_grey(image) * 1.5 + 0.5)
    return light * image + (1 - light) * pale + flakes + np.rot90(flakes, 2)


def to_grey(image: Pixels) -> Pixels:
    if image.shape[2] != 3:
        return image.mean(axis=2, keepdims=True)
    return (image @ np.array([0.299, 0.587, 0.114]))[..., None]


def frost(image: Pixels, strength: tuple[float, float, int], draw: Draw) -> Pixels:
    of_image, of_frost, finer = strength
    height, width, channels = image.shape
    needles = draw_ice((height * finer, width * finer), draw)
    needles = needles.reshape(height, finer, width, finer).mean(axis=(1, 3))
    tone = TONES[draw.integers(len(TONES))]
    coloured = (np.array(tone.mean) + needles[..., None] * np.array(tone.deviation)) / 255
    if channels != 3:
        coloured = coloured.mean(axis=2, keepdims=True)
    return of_image * image + of_frost * coloured.clip(0, 1)


def draw_ice(size: tuple[int, int], draw: Draw) -> Map:
    """Needles in a few directions over soft patches, with mean 0 and standard deviation 1."""
    found = np.zeros(size)
    for angle in draw.uniform(0, np.pi, 6):
        seeds = np.where(draw.random(size) < 0.006, draw.uniform(0.4, 1, size), 0)
        length = int(draw.integers(7, 17))
        steps = np.arange(-length, length + 1)
        line = np.zeros((2 * length + 1, 2 * length + 1))
        down, across = (
            np.rint(length + steps * part).astype(int) for part in (np.sin(angle), np.cos(angle))
        )
        line[down, across] = 1 - abs(steps) / (length + 1)
        found = np.maximum(found, signal.fftconvolve(seeds, line, mode="same"))
    patches = draw_plasma(size, 2.2, draw)
    found = found.clip(0, 1.5) + 1.2 * patches
    return (found - found.mean()) / max(float(found.std()), 1e-9)


def fog(image: Pixels, strength: tuple[float, float], draw: Draw) -> Pixels:
    density, decay = strength
    brightest = image.max()
    thick = image + density * draw_plasma(image.shape[:2], decay, draw)[..., None]
    return thick * brightest / (brightest + density)


def draw_plasma(size: tuple[int, int], decay: float, draw: Draw) -> Map:
    """Clouds from 0 to 1 by the diamond-square way: the middle of every square, then of every
    edge, is the mean of its four neighbours and a random height, which shrinks with the square."""
    side = 2 ** max(int(max(size) - 1).bit_length(), 1)
    heights, step, rough = np.zeros((side, side)), side, 100.0

    def add_noise(around: Map) -> Map:
        return around / 4 + draw.uniform(-(rough**2), rough**2, around.shape)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        below = corners + np.roll(corners, -1, 0)
        middles = add_noise(below + np.roll(below, -1, 1))
        beside = corners + np.roll(corners, -1, 1)
        heights[half::step, half::step] = middles
        heights[::step, half::step] = add_noise(beside + middles + np.roll(middles, 1, 0))
        heights[half::step, ::step] = add_noise(below + middles + np.roll(middles, 1, 1))
        step, rough = half, rough / decay
    heights -= heights.min()
    return heights[: size[0], : size[1]] / heights.max()


def brightness(image: Pixels, more: float, draw: Draw) -> Pixels:
    """More value in hue, saturation and value; what is black becomes grey."""
    value = image.max(axis=2, keepdims=True)
    brighter = (value + more).clip(0, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(value > 0, image * (brighter / value), brighter)


# Digital


def contrast(image: Pixels, factor: float, draw: Draw) -> Pixels:
    mean = image.mean(axis=(0, 1), keepdims=True)
    return (image - mean) * factor + mean


def elastic_transform(image: Pixels, strength: tuple[float, float, float], draw: Draw) -> Pixels:
    """A random affine map, then every pixel a little aside, neighbours alike."""
    height, width = image.shape[:2]
    shift, smoothness, affine = (part * min(height, width) for part in strength)
    centre, third = np.array([width, height]) // 2, min(height, width) // 3
    before = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])
    after = before + draw.uniform(-affine, affine, (3, 2))
    down, across = np.mgrid[:height, :width].astype(np.float64)
    if np.linalg.matrix_rank(np.c_[after, np.ones(3)]) == 3:
        # where each pixel of the result comes from: (x, y) by the map that undoes the affine one
        x, y = np.linalg.solve(np.c_[after, np.ones(3)], before.astype(np.float64)).T
        sources = [p[0] * across + p[1] * down + p[2] for p in (y, x)]
        image = sample_at(image, sources, mode="mirror")
    aside, along = (smooth(draw.uniform(-1, 1, (height, width)), smoothness) for _ in range(2))
    return sample_at(image, [down + shift * along, across + shift * aside], mode="reflect")


def sample_at(image: Pixels, places: list[Map], *, mode: str) -> Pixels:
    """The image at rows and columns between its pixels."""
    bands = [
        ndimage.map_coordinates(band, places, order=1, mode=mode)
        for band in np.moveaxis(image, 2, 0)
    ]
    return np.stack(bands, axis=2)


def smooth(noise: Map, sigma: float) -> Map:
    if sigma == 0:
        return noise
    rows, columns = (smoothing_matrix(side, sigma) for side in noise.shape)
    return rows @ noise @ columns.T


@cache
def smoothing_matrix(side: int, sigma: float) -> Float[np.ndarray, "side side"]:
    """A bell along one axis as the matrix that it is: it may be wider than the image."""
    return np.asarray(
        ndimage.gaussian_filter1d(np.eye(side), sigma, axis=0, mode="reflect", truncate=3)
    )


def pixelate(image: Pixels, factor: float, draw: Draw) -> Pixels:
    height, width = image.shape[:2]
    small = max(int(width * factor), 1), max(int(height * factor), 1)
    small_image = to_pil(image).resize(small, Image.Resampling.BOX)
    return from_pil(small_image.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Pixels, quality: int, draw: Draw) -> Pixels:
    file = BytesIO()
    to_pil(image).save(file, "JPEG", quality=quality)
    return from_pil(Image.open(file))


def to_pil(image: Pixels) -> Image.Image:
    pixels = np.rint(image * 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def from_pil(image: Image.Image) -> Pixels:
    pixels = np.asarray(image)
    return (pixels[..., None] if pixels.ndim == 2 else pixels) / 255


CORRUPTIONS: dict[str, Callable[[Pixels, Any, Draw], Pixels]] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur),
        *(snow, frost, fog, brightness),
        *(contrast, elastic_transform, pixelate, jpeg_compression),
    )
}
