"""RandAugment (arXiv:1909.13719) as DeiT, Swin and BEiT trained with it: timm's operators, all of
which grow stronger with their magnitude, on Pillow's images."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

STRONGEST = 10.0  # the magnitude at which an operator is at its end

# What an operator gets: the image, its level in [0, 1], its sign, how to resample and fill.
Operator = Callable[[Image.Image, float, int, "Canvas"], Image.Image]


@dataclass(frozen=True)
class Canvas:
    """How moved images are resampled, and what is beyond their border."""

    resample: Image.Resampling
    fill: tuple[int, ...]

    def affine(self, image: Image.Image, *rows: float) -> Image.Image:
        """Pixels from where the six numbers say, a row for x and a row for y."""
        return image.transform(
            image.size, Image.Transform.AFFINE, rows, self.resample, fillcolor=self.colour(image)
        )

    def colour(self, image: Image.Image) -> tuple[int, ...] | int:
        return self.fill if image.mode == "RGB" else self.fill[0]


def rotate(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return image.rotate(sign * 30 * level, resample=canvas.resample, fillcolor=canvas.colour(image))


def shear_x(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return canvas.affine(image, 1, sign * 0.3 * level, 0, 0, 1, 0)


def shear_y(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return canvas.affine(image, 1, 0, 0, sign * 0.3 * level, 1, 0)


def translate_x(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return canvas.affine(image, 1, 0, sign * 0.45 * level * image.width, 0, 1, 0)


def translate_y(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return canvas.affine(image, 1, 0, 0, 0, 1, sign * 0.45 * level * image.height)


def auto_contrast(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageOps.autocontrast(image)


def equalize(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageOps.equalize(image)


def invert(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageOps.invert(image)


def posterize(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    bits = 4 - int(level * 4)
    if not bits:  # which Pillow refuses of late; before that all was black
        return image.point([0] * 256 * len(image.getbands()))
    return ImageOps.posterize(image, bits)


def solarize(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageOps.solarize(image, 256 - min(256, int(level * 256)))


def solarize_add(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    """Dark pixels become lighter."""
    added = min(128, int(level * 110))
    table = [min(255, value + added) if value < 128 else value for value in range(256)]
    return image.point(table * len(image.getbands()))


def strength(level: float, sign: int) -> float:
    """Pillow's factor, of which 1 changes nothing."""
    return max(0.1, 1 + sign * 0.9 * level)


def color(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageEnhance.Color(image).enhance(strength(level, sign))


def contrast(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageEnhance.Contrast(image).enhance(strength(level, sign))


def brightness(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(strength(level, sign))


def sharpness(image: Image.Image, level: float, sign: int, canvas: Canvas) -> Image.Image:
    return ImageEnhance.Sharpness(image).enhance(strength(level, sign))


# By timm's names of the set that its option inc1 chooses.
OPERATORS: dict[str, Operator] = {
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": invert,
    "Rotate": rotate,
    "PosterizeIncreasing": posterize,
    "SolarizeIncreasing": solarize,
    "SolarizeAdd": solarize_add,
    "ColorIncreasing": color,
    "ContrastIncreasing": contrast,
    "BrightnessIncreasing": brightness,
    "SharpnessIncreasing": sharpness,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateXRel": translate_x,
    "TranslateYRel": translate_y,
}


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """`operations` times an operator, each applied with `probability` at a magnitude of 0 to 10
    around `magnitude`; timm writes it rand-m9-n2-p0.5-mstd0.5-inc1."""

    operations: int
    magnitude: float
    magnitude_std: float
    probability: float
    canvas: Canvas

    def __call__(self, image: Image.Image, seed: int) -> Image.Image:
        draw = np.random.default_rng(seed)
        for _ in range(self.operations):
            operator = list(OPERATORS.values())[draw.integers(len(OPERATORS))]
            applied, sign = draw.random() < self.probability, 1 if draw.random() < 0.5 else -1
            magnitude = self.magnitude + self.magnitude_std * draw.standard_normal()
            if applied:
                level = min(max(magnitude, 0.0), STRONGEST) / STRONGEST
                image = operator(image, level, sign, self.canvas)
        return image
