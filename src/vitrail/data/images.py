"""The one decoder: from the bytes of an image to its pixels, or one sentence why that cannot be.

Pixels mean what a person sees: turned as EXIF says, transparent parts on white. What a file may be
is a short list, its size has limits, and whatever a library raises becomes one `BadImage`.
"""

import struct
import zlib
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from vitrail.core.errors import UserError
from vitrail.data.silence import silence

# What Pillow decodes in this process, in C, and knows by its first bytes. So no EPS or WMF, which
# start programs; no TGA, which any bytes can be; no ICO, which is several images, one of them
# possibly a PNG of any size. Importing the plugins here saves Pillow from importing all it has.
FORMATS = tuple(
    plugin.format
    for plugin in (
        JpegImagePlugin.JpegImageFile,
        PngImagePlugin.PngImageFile,
        WebPImagePlugin.WebPImageFile,
        GifImagePlugin.GifImageFile,
        BmpImagePlugin.BmpImageFile,
        TiffImagePlugin.TiffImageFile,
        PpmImagePlugin.PpmImageFile,
        AvifImagePlugin.AvifImageFile,
    )
)
# A quarter of a gigabyte of RGB, and where Pillow begins to warn of a bomb: full-frame cameras give
# 61 million. Decoding takes up to 7 bytes a pixel, so half a gigabyte at most.
MOST_PIXELS = 2**28 // 3
# As much as that many pixels take without any compression.
MOST_BYTES = 2**28
# A few bytes can claim a second of work and half a gigabyte. Even a blank page at 300 dots an inch
# has fewer than the first; of larger images a photo has about a byte for 4 pixels.
BOMB_PIXELS = 2**24
BOMB_PIXELS_PER_BYTE = 1000
# Pillow decodes these in Python, at about a second for a million pixels.
SLOW_CODECS = {"ppm", "ppm_plain", "bmp_rle"}
MOST_SLOW_PIXELS = 2**20
# Encoders write about ten; each can cost a pass over the whole image and a dozen bytes.
MOST_JPEG_SCANS = 100
# Scaled decoding averages whole pixels, so the resize after it should still have some to choose
# from: at 1.5 photos come out 0.2 to 0.8/255 off in the mean, at 1 up to 2.5/255.
MARGIN = 1.5
# What libjpeg says where it had to make up pixels. Its other complaints (a stray byte, an unknown
# revision) are common in the wild and cost none.
JPEG_DAMAGE = (
    "premature end of data segment",
    "bad Huffman code",
    "bad arithmetic code",
    " of RST",
)

# Bit-identical to Pillow where both have libjpeg-turbo, and without Pillow's copies; of the extra
# `fast`. Its absence changes neither a pixel nor, but for JPEG_DAMAGE, what is good.
_simplejpeg: Any = import_module("simplejpeg") if find_spec("simplejpeg") else None

Pixels = NDArray[np.uint8]

# Orientation as EXIF numbers it: how the stored rows become the ones to be seen.
TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x.swapaxes(0, 1)[:, ::-1],
    7: lambda x: x.swapaxes(0, 1)[::-1, ::-1],
    8: lambda x: x.swapaxes(0, 1)[::-1],
}
LYING = (5, 6, 7, 8)  # those that swap height and width


class BadImage(Exception):  # noqa: N818 - a message for users, under the name they know
    """An image that cannot be used: which one, and in a short sentence why.

    >>> print(BadImage("cat.jpg", "the file is empty"))
    cat.jpg: the file is empty
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both, so that it survives the way out of a worker
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        """One line, in which nothing steers a terminal."""
        return "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode()
            for letter in f"{self.path}: {self.reason}"
        )


class Unreadable(BadImage):
    """An image whose storage does not answer, which says nothing about the image; it may later."""


def decode(
    data: bytes,
    name: str,
    *,
    at_least: tuple[int, int] | None = None,
    channels: int = 3,
    padded: bool = False,
) -> Pixels:
    """(H, W, 3) in RGB or, with `channels=1`, (H, W, 1) in grey; or `BadImage`.

    - The first image of an animation. EXIF orientation is applied.
    - Transparent parts are laid on white, as a page shows them: round((c a + 255 (255 - a)) / 255).
      Dropping alpha, which timm's and torchvision's loaders do, shows what colour happens to be
      left beneath, and black strokes on nothing become a black image. The same where all is
      opaque.
    - 16 bits become 8 by their high byte, for grey as for colour; a value that was 8 bits comes
      back whole. 1 bit becomes 0 or 255. CMYK becomes RGB by (255 - c)(255 - k) / 255; colour
      profiles are not applied. Grey of colours is ITU-R 601 luma. All as Pillow's `convert`.
    - 32-bit numbers have no agreed white, so such an image is bad rather than guessed at.
    - A file that ends too early is bad, never filled with grey. A progressive JPEG is good when its
      end is there, however few scans came before: that is a coarser image, not a broken one.

    `at_least` (height, width) is what the image will be scaled down to. A JPEG that is much
    larger is then decoded at 1/2, 1/4 or 1/8, no smaller than 1.5 times that, which is faster; the
    mean difference after the resize is below 1/255 on photos, more on fine artificial texture.
    Without it every pixel is exact.

    With `padded` pixels may lie four bytes apart, as Pillow keeps them, so that it need not copy
    them (`padded_buffer`).
    """
    if channels not in (1, 3):
        raise UserError(f"an image has 1 or 3 channels, not {channels}")
    if at_least is not None and min(at_least) < 1:
        raise UserError(f"at_least is {at_least}, but a side has at least 1 pixel")
    check_bytes(len(data), name)
    try:
        with silence():
            pixels = _decode(data, at_least, channels, padded)
            return np.ascontiguousarray(pixels) if padded_buffer(pixels) is None else pixels
    except Exception as error:  # Pillow documents a dozen kinds and raises more
        reason = _reason(error)
    raise BadImage(name, reason)  # out here it does not keep the library's frames alive


def padded_buffer(pixels: Pixels) -> Pixels | None:
    """(H, W, 4) of which these are the first three channels, all of it; None where they are not.

    >>> padded_buffer(np.zeros((3, 4, 4), dtype=np.uint8)[..., :3]).shape
    (3, 4, 4)
    """
    whole = pixels.base
    if not isinstance(whole, np.ndarray) or whole.dtype != np.uint8:
        return None
    if not whole.flags.c_contiguous or whole.shape != (*pixels.shape[:2], 4):
        return None
    same = (pixels.shape[2:], pixels.strides, pixels.ctypes.data)
    return whole if same == ((3,), whole.strides, whole.ctypes.data) else None


def from_pillow(image: Image.Image, name: str, *, channels: int = 3) -> Pixels:
    """An image that Pillow holds or has opened, as `decode` gives the pixels of its file.

    >>> from_pillow(Image.new("L", (4, 3), 128), "grey").shape
    (3, 4, 3)
    """
    try:
        if min(image.size) < 1:
            raise UserError(f"its size is {image.width}x{image.height}")
        with silence():
            image.load()
            return np.ascontiguousarray(_turn(_strips(image, channels), _orientation(image)))
    except Exception as error:  # as many kinds as `decode` meets
        reason = _reason(error)
    raise BadImage(name, reason)


def header_size(data: bytes, name: str) -> tuple[int, int]:
    """(height, width) as a file's header claims, before it is turned; nothing is decoded."""
    try:
        with silence(), Image.open(BytesIO(data), formats=FORMATS) as image:
            return image.height, image.width
    except Exception as error:
        raise BadImage(name, _reason(error)) from None


def check_bytes(size: int, name: str, limit: int | None = None) -> None:
    """Refuse what holds nothing or too much, before it is read."""
    limit = MOST_BYTES if limit is None else limit
    if not size:
        raise BadImage(name, "the file is empty")
    if size > limit:
        raise BadImage(name, f"{size:,} bytes, more than the limit of {limit:,}")


def convert_mode(image: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    """Any image in 8 bits, colour or grey, by the rules of `decode`."""
    if image.mode == mode and not image.has_transparency_data:
        return image
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise UserError("32-bit pixel values have no defined range: save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        return _high_bytes(image).convert(mode)
    if image.has_transparency_data:
        image = _on_white(image)
    if image.mode == "LAB":  # from which Pillow knows the way to RGB alone
        image = image.convert("RGB")
    return image.convert(mode)


def _decode(data: bytes, at_least: tuple[int, int] | None, channels: int, padded: bool) -> Pixels:
    with Image.open(BytesIO(data), formats=FORMATS) as image:
        _check_header(image, len(data))
        pixels = None
        if isinstance(image, PngImagePlugin.PngImageFile):
            _check_png(data)
            _mend_key(image, depth=data[24])
        elif isinstance(image, JpegImagePlugin.JpegImageFile):
            _check_jpeg(data)
            scale = 1 if at_least is None else _scale(image, at_least)
            padded = padded and channels == 3 and _orientation(image) not in TURNS
            pixels = _by_simplejpeg(data, image, scale, padded)
            if pixels is None and scale > 1:
                image.draft("", (image.width // scale, image.height // scale))
        if pixels is None:
            image.load()
            pixels = _strips(image, channels)
        # a TIFF is turned by Pillow while it is loaded, and no longer says that it should be
        return _turn(_with_channels(pixels, channels), _orientation(image))


def _check_header(image: ImageFile.ImageFile, size: int) -> None:
    """Refuse by what the header claims, before anything is decoded."""
    width, height = image.size
    pixels = width * height
    if min(width, height) < 1:
        raise UserError(f"its size is {width}x{height}")
    if pixels > MOST_PIXELS:
        raise UserError(f"{width}x{height}, more than the limit of {MOST_PIXELS:,} pixels")
    if pixels > BOMB_PIXELS and pixels > BOMB_PIXELS_PER_BYTE * size:
        raise UserError(f"{width}x{height} from {size:,} bytes, which is a decompression bomb")
    if pixels > MOST_SLOW_PIXELS and SLOW_CODECS & {tile.codec_name for tile in image.tile}:
        raise UserError(
            f"{width}x{height}, more than the limit of {MOST_SLOW_PIXELS:,} pixels for this kind "
            f"of {image.format}"
        )
    if image.format == "TIFF":
        parts = [tile.extents for tile in image.tile if tile.extents]
        if sum((right - left) * (low - top) for left, top, right, low in parts) < pixels:
            raise UserError("the image data is incomplete")


def _check_png(data: bytes) -> None:
    """Every chunk to the last, and the checksum of those that pixels depend on: Pillow skips that
    of the pixels themselves."""
    view, place, kind = memoryview(data), 8, b""
    while kind != b"IEND":
        if len(view) < place + 12:
            raise UserError("the file ends too early")
        length, kind = struct.unpack_from(">I4s", view, place)
        end = place + 8 + length
        if len(view) < end + 4:
            raise UserError("the file ends too early")
        critical = not kind[0] & 0x20
        if critical and zlib.crc32(view[place + 4 : end]) != struct.unpack_from(">I", view, end)[0]:
            raise UserError(f"the checksum of its {kind.decode('ascii')} chunk is wrong")
        place = end + 4


def _mend_key(image: Image.Image, depth: int) -> None:
    """The transparent colour of a PNG in the 8 bits of its pixels; Pillow leaves it as written."""
    key = image.info.get("transparency")
    if image.mode == "L" and isinstance(key, int):
        image.info["transparency"] = key % 2**depth * 255 // (2**depth - 1)
    if image.mode == "RGB" and depth == 16 and isinstance(key, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in key)


def _check_jpeg(data: bytes) -> None:
    """Check that the file is complete, since libraries can fill in what is missing."""
    end = data.rfind(b"\xff\xd9")
    if end < 0 or data.find(b"\xff\xda", end) >= 0:  # a scan after it: it was a thumbnail's end
        raise UserError("the file ends too early")
    # starts of a scan, counted several times as fast as by `bytes.count`
    pairs = [np.frombuffer(data, "<u2", (len(data) - first) // 2, first) for first in (0, 1)]
    if sum(np.count_nonzero(pair == 0xDAFF) for pair in pairs) > MOST_JPEG_SCANS:
        raise UserError(f"more than {MOST_JPEG_SCANS} scans of the whole image")


def _scale(image: Image.Image, at_least: tuple[int, int]) -> int:
    """How many times smaller it can be decoded, of what both libraries can."""
    lying = _orientation(image) in LYING
    wanted = at_least if lying else at_least[::-1]
    room = min(have / (MARGIN * want) for have, want in zip(image.size, wanted, strict=True))
    return max(scale for scale in (1, 2, 4, 8) if scale <= max(room, 1))


def _by_simplejpeg(data: bytes, image: Image.Image, scale: int, padded: bool) -> Pixels | None:
    """The pixels as stored, or None where it is left to Pillow."""
    if _simplejpeg is None:
        return None
    width, height = image.size
    size = (-(-height // scale), -(-width // scale))
    floor = {"min_height": size[0], "min_width": size[1]} if scale > 1 else {}
    try:
        *found, space, _ = _simplejpeg.decode_jpeg_header(data, **floor)
        if tuple(found) != size or (image.mode, space) not in (("RGB", "YCbCr"), ("L", "Gray")):
            return None
        colours = ("RGBA" if padded else "RGB") if image.mode == "RGB" else "GRAY"
        pixels: Pixels = _simplejpeg.decode_jpeg(data, colours, **floor)
        return pixels[..., :3]
    except ValueError as error:
        if any(sign in str(error) for sign in JPEG_DAMAGE):
            raise UserError(f"the image is damaged: {error}") from None
        return None


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return pixels.repeat(3, axis=2)
    return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]


def _strips(image: Image.Image, channels: int) -> Pixels:
    """Converted a few rows at a time, so that there is never a third copy of a large image."""
    width, height = image.size
    pixels = np.empty((height, width, channels), dtype=np.uint8)
    rows = max(1, 2**20 // width)
    for top in range(0, height, rows):
        whole = rows >= height
        strip = image if whole else image.crop((0, top, width, min(top + rows, height)))
        strip.format = image.format
        converted = convert_mode(strip, "RGB" if channels == 3 else "L")
        pixels[top : top + rows] = np.asarray(converted).reshape(-1, width, channels)
    return pixels


def _high_bytes(image: Image.Image) -> Image.Image:
    """16-bit grey in 8 bits; Pillow gives it as I;16, or as I where a PGM is its source."""
    values = np.asarray(image)
    grey = (values >> 8).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey[values == key] = 255
    return Image.fromarray(grey)


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _orientation(image: Image.Image) -> int:
    """1 to 8; broken EXIF says nothing about the pixels, so it counts as none."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # as many kinds as a broken image
        return 1
    return found if isinstance(found, int) else 1


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    return TURNS[orientation](pixels) if orientation in TURNS else pixels


def _reason(error: Exception) -> str:
    """A short sentence that is the same each time: no addresses, no lines."""
    match error:
        case UserError():
            return str(error)
        case UnidentifiedImageError():
            supported = ", ".join(FORMATS)
            return (
                "not a readable image (corrupt header or unsupported format; supported: "
                f"{supported})"
            )
        case Image.DecompressionBombError() | Image.DecompressionBombWarning():
            return f"more than the limit of {MOST_PIXELS:,} pixels"
        case MemoryError():
            return "takes more memory than there is"
        case OSError() if "truncated" in str(error) or "Truncated" in str(error):
            return "the file ends too early"
    found = str(error).split("\n")[0][:120]
    return f"cannot be decoded: {found or type(error).__name__}"
