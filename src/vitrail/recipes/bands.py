"""What a recipe has to know of images that are no photos: bits, and the values of each band."""

from dataclasses import replace
from typing import Any

import numpy as np

from vitrail.core.errors import UserError
from vitrail.data.bands import format_of
from vitrail.data.images import BadImage
from vitrail.data.reader import Sample, read_pixels
from vitrail.data.source import Source
from vitrail.training.recipe import Bands, Recipe

MEASURED = 64  # images, spread over the data set


def with_measured_bands(recipe: Recipe, train: Source, chosen: dict[str, Any]) -> Recipe:
    """The recipe for images of many bands or 16 bits: with their values measured, as many channels
    and without operators that know colours alone, unless these were `chosen` by a person. That of
    photos stays as it is."""
    if recipe.bands is not None or (recipe.start is not None and "channels" not in recipe.fields):
        return recipe  # a checkpoint knows what it reads
    bands = measure_bands(train)
    if bands is None:
        return recipe
    count = len(bands.mean)
    reasons = [
        f"{count} bands of {bands.bits} bits: mean and std of each, of "
        f"{min(MEASURED, len(train))} training images",
    ]
    augmentation = recipe.augmentation
    colours: dict[str, Any] = {"policy": "none", "jitter": 0.0}
    off = [name for name in colours if f"augmentation.{name}" not in chosen]
    off = [name for name in off if getattr(augmentation, name) != colours[name]]
    if off:
        augmentation = replace(augmentation, **{name: colours[name] for name in off})
        reasons.append(f"no augmentation.{' or '.join(off)}, which knows grey and RGB of 8 bits")
    return replace(
        recipe,
        bands=bands,
        fields={"channels": count, **recipe.fields},
        augmentation=augmentation,
        reasons=(*recipe.reasons, *reasons),
    )


def measure_bands(train: Source) -> Bands | None:
    """Bits, mean and standard deviation of each band; None for photos, and where no image can be
    read."""
    sums, squares, pixels, bits = 0.0, 0.0, 0, 8
    for index in np.unique(np.linspace(0, max(len(train) - 1, 0), MEASURED).astype(int)).tolist():
        try:
            found = values_of(train, index)
        except BadImage:  # training names it
            continue
        if found is None:
            return None
        values, bits = found
        if np.ndim(sums) and len(np.atleast_1d(sums)) != values.shape[2]:
            raise UserError(
                f"{train.name(index)} has {values.shape[2]} bands, others have "
                f"{len(np.atleast_1d(sums))}: expected as many in every image"
            )
        shares = values.astype(np.float64) / (2**bits - 1)
        sums = sums + shares.sum(axis=(0, 1))
        squares = squares + (shares**2).sum(axis=(0, 1))
        pixels += values.shape[0] * values.shape[1]
    if not pixels:
        return None
    mean = sums / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    std = np.maximum(std, 1 / (2**bits - 1))  # a band that never changes
    return Bands(bits=16 if bits == 16 else 8, mean=rounded(mean), std=rounded(std))


def values_of(train: Source, index: int) -> tuple[Any, int] | None:
    """The values of an image and their bits; None for a photo."""
    raw, name = train.read(index), train.name(index)
    if isinstance(raw, bytes):
        found = format_of(raw, name)
        if found is None or found.is_photo:
            return None
        bands, bits = found.bands, found.bits
    else:
        bands, bits = (raw.shape[2] if raw.ndim == 3 else 1), raw.itemsize * 8
        if bits == 8 and bands in (1, 3, 4):
            return None
    return read_pixels(Sample(train, index), channels=bands, bits=bits), bits


def rounded(values: Any) -> tuple[float, ...]:
    """Six digits, as a person reads them in a recipe."""
    return tuple(float(f"{value:.6g}") for value in np.atleast_1d(values))
