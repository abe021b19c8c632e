"""Images that are no photos: 1 to 16 bands of 8 or 16 bits, from TIFF and NumPy files.

A model that reads such images has as many means as there are bands, and `bits` in its passport.
Values stay whole numbers as they are in the file until they are normalised: no band is a colour,
nothing is turned or laid on white. Limits are those of photos. Nothing here needs torch.
"""

from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.images import (
    BOMB_PIXELS,
    BOMB_PIXELS_PER_BYTE,
    FORMATS,
    MOST_BYTES,
    MOST_PIXELS,
    BadImage,
    check_bytes,
    decode,
)
from vitrail.data.silence import silence
from vitrail.data.source import Raw

MOST_BANDS = 16
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two are BigTIFF
NUMPY = b"\x93NUMPY"
KINDS: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint8), 16: np.dtype(np.uint16)}

Values: TypeAlias = "NDArray[Any]"  # of one of these


@dataclass(frozen=True)
class BandFormat:
    """What an image holds: sides in pixels, bands, and bits of a value."""

    height: int
    width: int
    bands: int
    bits: int

    @property
    def is_photo(self) -> bool:
        """Whether grey or RGB of 8 bits, with or without alpha."""
        return self.bits == 8 and self.bands in (1, 3, 4)


def is_array_file(data: bytes) -> bool:
    return data.startswith(NUMPY)


def format_of(data: bytes, name: str) -> BandFormat | None:
    """What the header of a TIFF or NumPy file claims; None for every other file, and for a TIFF
    where tifffile is not installed."""
    if data.startswith(NUMPY):
        return _array_format(*_array_header(data, name), name)
    if data.startswith(TIFF) and find_spec("tifffile"):
        with suppress(BadImage):  # of 1 bit, of 32, of several images: Pillow knows more of these
            return _read_tiff(data, name, pixels=False)[0]
    return None


def array_format(array: NDArray[Any], name: str) -> BandFormat:
    """What pixels (H, W) or (H, W, C) of a data set hold."""
    bands = array.shape[2] if array.ndim == 3 else 1
    return BandFormat(array.shape[0], array.shape[1], bands, _bits_of(array.dtype, name))


def decode_bands(data: bytes, name: str, *, bands: int, bits: int) -> Values:
    """(H, W, bands) of this many bits, or `BadImage`: a file that has others is refused, because
    what its values mean cannot be guessed."""
    check_bytes(len(data), name)
    if data.startswith(NUMPY):
        found = _array_format(*_array_header(data, name), name, bands)
        values = _read_array(data, name)
        if values.ndim == 3 and found.bands != values.shape[-1]:
            values = np.moveaxis(values, 0, -1)
    elif data.startswith(TIFF):
        found, values = _read_tiff(data, name, bands)
    else:
        found, values = _read_pillow(data, name)
    return _checked(values, found, name, bands, bits)


def from_array(array: NDArray[Any], name: str, *, bands: int, bits: int) -> Values:
    """The same for values in memory, (H, W), (H, W, C) or (C, H, W)."""
    found = _array_format(array.shape, array.dtype, name, bands)
    if array.ndim == 3 and found.bands != array.shape[-1]:
        array = np.moveaxis(array, 0, -1)
    return _checked(array, found, name, bands, bits)


def frame_bands(values: Values, preprocessing: Preprocessing) -> Values:
    """(C, H, W): every band resized and cropped by Pillow as a photo's colours are."""
    from vitrail.data.framing import resize_and_crop_pillow

    kind = KINDS[preprocessing.bits]
    deep = kind == np.uint16
    framed = np.empty((values.shape[2], *preprocessing.size), dtype=kind)
    for number in range(values.shape[2]):
        band = values[..., number].astype(np.float32) if deep else values[..., number]
        seen = np.asarray(resize_and_crop_pillow(Image.fromarray(band), preprocessing))
        framed[number] = np.rint(seen).clip(0, preprocessing.max_value) if deep else seen
    return framed


def to_display(values: Values, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Something to look at (H, W, 3) or (H, W, 1): the first three bands, or the first; from two
    standard deviations below a band's mean (black) to two above it (white)."""
    shown = 3 if values.shape[2] >= 3 else 1
    mean, std = (np.array(part[:shown]) for part in (preprocessing.mean, preprocessing.std))
    scaled = (values[..., :shown] / preprocessing.max_value - mean) / std
    return np.rint((scaled + 2) / 4 * 255).clip(0, 255).astype(np.uint8)


def viewable(raw: Raw, name: str, *, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Any image as something to look at, (H, W, 3) or grey."""
    if isinstance(raw, bytes):
        found = format_of(raw, name)
        if found is None or (found.is_photo and not is_array_file(raw)):
            return decode(raw, name, at_least=at_least)
        raw = decode_bands(raw, name, bands=found.bands, bits=found.bits)
    values = raw[..., None] if raw.ndim == 2 else raw
    if values.dtype == np.uint8 and values.shape[2] in (1, 3):
        return values
    return stretched(values)


def stretched(values: Values) -> NDArray[np.uint8]:
    """The same for an image of which no mean is known: from its 2nd percentile to its 98th."""
    shown = values[..., : 3 if values.shape[2] >= 3 else 1].astype(np.float64)
    low, high = np.percentile(shown, (2, 98), axis=(0, 1))
    scaled = (shown - low) / np.maximum(high - low, 1)
    return np.rint(scaled * 255).clip(0, 255).astype(np.uint8)


def _checked(values: NDArray[Any], found: BandFormat, name: str, bands: int, bits: int) -> Values:
    if found.bands != bands:
        raise BadImage(name, f"has {found.bands} bands, the model reads {bands}")
    if found.bits != bits:
        raise BadImage(name, f"has {found.bits}-bit values, the model reads {bits}-bit values")
    values = values[..., None] if values.ndim == 2 else values
    kind = KINDS[bits]
    return np.require(values.astype(kind, copy=False), requirements=["C", "W"])


def _array_header(data: bytes, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and kind of values, before any of them is read."""
    try:
        file = BytesIO(data)
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, kind = read(file)
    except (ValueError, KeyError, EOFError, SyntaxError) as error:
        raise BadImage(name, f"not a readable NumPy file: {str(error)[:80]}") from None
    return shape, kind


def _array_format(
    shape: tuple[int, ...], kind: np.dtype[Any], name: str, bands: int | None = None
) -> BandFormat:
    """Which axis holds the bands: the one with as many as are wanted, or else the shorter one."""
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3:
        raise BadImage(name, f"has the shape {shape}, expected (H, W), (H, W, C) or (C, H, W)")
    last = shape[2] == bands or (shape[0] != bands and shape[2] <= shape[0])
    height, width, count = shape if last else (shape[1], shape[2], shape[0])
    return _within_limits(BandFormat(height, width, count, _bits_of(kind, name)), name)


def _read_array(data: bytes, name: str) -> NDArray[Any]:
    try:
        return np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise BadImage(name, f"not a readable NumPy file: {str(error)[:80]}") from None


def _read_tiff(
    data: bytes, name: str, bands: int | None = None, *, pixels: bool = True
) -> tuple[BandFormat, NDArray[Any]]:
    """By tifffile: its first image, whose bands are samples of a pixel, planes or pages. An array
    (H, W, C) that tifffile wrote without saying so has axes that it calls unknown (Q)."""
    from vitrail.data.sources.optional import require

    tifffile = require("tifffile", extra="bands", reading=name)
    empty: NDArray[Any] = np.empty(0)
    try:
        with silence(), tifffile.TiffFile(BytesIO(data)) as file:
            series = file.series[0]
            axes, shape = series.axes, series.shape
            if len(axes) not in (2, 3) or not axes.endswith(("YX", "YXS")):
                raise UserError(f"has the axes {axes}, expected bands, height and width")
            if axes.startswith("Q"):
                found = _array_format(shape, series.dtype, name, bands)
                last = found.bands == shape[2]
            else:
                last = axes.endswith("S")
                height, width = shape[:2] if last else shape[-2:]
                count = 1 if len(axes) == 2 else shape[2] if last else shape[0]
                found = BandFormat(height, width, count, _bits_of(series.dtype, name))
            _within_limits(found, name, len(data))
            values = series.asarray() if pixels else empty
    except (BadImage, MemoryError):
        raise
    except Exception as error:  # as many kinds as files
        reason = str(error).split("\n")[0][:120]
        if "imagecodecs" in reason:
            reason = f"its compression needs another package (pip install imagecodecs): {reason}"
        raise BadImage(name, f"cannot be decoded: {reason or type(error).__name__}") from None
    return found, values if last or values.ndim < 3 else np.moveaxis(values, 0, -1)


def _read_pillow(data: bytes, name: str) -> tuple[BandFormat, NDArray[Any]]:
    """Grey of 16 bits from other formats, such as PNG; their colours have 8 bits in Pillow."""
    try:
        with silence(), Image.open(BytesIO(data), formats=FORMATS) as image:
            bands = len(image.getbands())
            bits = 16 if image.mode.startswith("I") else 8
            found = BandFormat(image.height, image.width, bands, bits)
            _within_limits(found, name, len(data))
            values = np.asarray(image)
    except (BadImage, MemoryError):
        raise
    except Exception as error:
        reason = str(error).split("\n")[0][:120]
        raise BadImage(name, f"cannot be decoded: {reason or type(error).__name__}") from None
    return found, values


def _bits_of(kind: np.dtype[Any], name: str) -> int:
    for bits, known in KINDS.items():
        if kind.newbyteorder("=") == known:
            return bits
    raise BadImage(name, f"its values are {kind}, expected uint8 or uint16: save it as one of them")


def _within_limits(found: BandFormat, name: str, size: int | None = None) -> BandFormat:
    """Refuse by what a header claims, before anything is decoded."""
    pixels = found.height * found.width
    if not 1 <= found.bands <= MOST_BANDS:
        raise BadImage(name, f"has {found.bands} bands, expected 1 to {MOST_BANDS}")
    if pixels < 1:
        raise BadImage(name, f"its size is {found.width}x{found.height}")
    total = prod((pixels, found.bands, found.bits // 8))
    if pixels > MOST_PIXELS or total > MOST_BYTES:
        raise BadImage(
            name,
            f"{found.width}x{found.height} with {found.bands} bands, more than the limit of "
            f"{MOST_PIXELS:,} pixels or {MOST_BYTES:,} bytes",
        )
    if size is not None and pixels > BOMB_PIXELS and pixels > BOMB_PIXELS_PER_BYTE * size:
        raise BadImage(
            name,
            f"{found.width}x{found.height} from {size:,} bytes, which is a decompression bomb",
        )
    return found
