"""The decoder: golden pixels of every kind of picture, and one sentence for every broken one."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps
from skimage import data as samples

from tests.golden import golden
from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data import images
from vitrail.data.framing import frame_image
from vitrail.data.images import BadImage, decode, from_pillow, padded_buffer
from vitrail.data.reader import read_image, read_pixels

Pixels = NDArray[np.uint8]
with_simplejpeg = pytest.mark.skipif(images._simplejpeg is None, reason="no simplejpeg: [fast]")


@pytest.fixture(params=["simplejpeg", "Pillow"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two that decode JPEG."""
    if request.param == "Pillow":
        monkeypatch.setattr(images, "_simplejpeg", None)
    elif images._simplejpeg is None:
        pytest.skip("no simplejpeg: install the extra `fast`")
    return str(request.param)


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def sample(name: str) -> Image.Image:
    return Image.fromarray(getattr(samples, name)())


def photo(width: int = 96, height: int = 64) -> Image.Image:
    return sample("chelsea").crop((100, 100, 100 + width, 100 + height))


def png(size: tuple[int, int], depth: int, colours: int, rows: bytes, *chunks: bytes) -> bytes:
    """A PNG of any depth, which Pillow does not write; `rows` begin with their filter, 0."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colours, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + body + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def words(*values: int) -> bytes:
    return b"\0" + struct.pack(f">{len(values)}H", *values)


def palette() -> Image.Image:
    picture = Image.new("P", (3, 1))
    picture.putpalette([200, 10, 20, 30, 210, 40, 50, 60, 220])
    picture.putdata([0, 1, 2])
    return picture


def row(mode: str, *values: Any) -> Image.Image:
    picture = Image.new(mode, (len(values), 1))
    picture.putdata(values)
    return picture


def grey(*values: int) -> list[list[int]]:
    return [[value] * 3 for value in values]


GREY16 = np.array([[0, 255, 256, 257, 32767, 65279, 65280, 65535]], dtype=np.uint16)
HIGH = grey(0, 0, 1, 1, 127, 254, 255, 255)
DEEP = words(0x1234, 0xFFFF, 0x00FF, 0x8000)  # RGBA of 16 bits; half of it shows
ALPHA = {"RGBA": [(255, 0, 0, 255), (255, 0, 0, 0), (10, 20, 30, 128), (0, 0, 0, 1)]}
ON_WHITE = [[255, 0, 0], [255, 255, 255], [132, 137, 142], [254, 254, 254]]

GOLDEN: dict[str, tuple[bytes, list[list[int]]]] = {
    "PNG 1 bit": (encoded(row("1", 0, 255, 255), "PNG"), grey(0, 255, 255)),
    "PNG 2 bits": (png((4, 1), 2, 0, b"\0\x1b"), grey(0, 85, 170, 255)),
    "PNG 4 bits": (png((4, 1), 4, 0, b"\0\x05\xaf"), grey(0, 85, 170, 255)),
    "PNG 4 bits, one clear": (
        png((4, 1), 4, 0, b"\0\x05\xaf", chunk(b"tRNS", b"\0\x05")),
        grey(0, 255, 170, 255),
    ),
    "PNG 8 bits": (encoded(row("L", 0, 1, 254, 255), "PNG"), grey(0, 1, 254, 255)),
    "PNG 8 bits, one clear": (
        encoded(row("L", 0, 1, 2), "PNG", transparency=1),
        grey(0, 255, 2),
    ),
    "PNG 16 bits": (encoded(Image.fromarray(GREY16), "PNG"), HIGH),
    "PNG 16 bits, one clear": (
        png((3, 1), 16, 0, words(0x0100, 0x0101, 0x0200), chunk(b"tRNS", b"\1\1")),
        grey(1, 255, 2),
    ),
    "PNG grey and alpha": (
        encoded(row("LA", (10, 255), (10, 128), (10, 0)), "PNG"),
        grey(10, 132, 255),
    ),
    "PNG palette": (encoded(palette(), "PNG"), [[200, 10, 20], [30, 210, 40], [50, 60, 220]]),
    "PNG palette, one clear": (
        encoded(palette(), "PNG", transparency=1),
        [[200, 10, 20], [255, 255, 255], [50, 60, 220]],
    ),
    "PNG palette with alphas": (
        encoded(palette(), "PNG", transparency=bytes([255, 0, 128])),
        [[200, 10, 20], [255, 255, 255], [152, 157, 237]],
    ),
    "PNG colour": (encoded(row("RGB", (1, 2, 3), (4, 5, 6)), "PNG"), [[1, 2, 3], [4, 5, 6]]),
    "PNG colour, one clear": (
        encoded(row("RGB", (1, 2, 3), (4, 5, 6)), "PNG", transparency=(4, 5, 6)),
        [[1, 2, 3], [255, 255, 255]],
    ),
    "PNG alpha": (encoded(row("RGBA", *ALPHA["RGBA"]), "PNG"), ON_WHITE),
    "PNG colour of 16 bits": (
        png((1, 1), 16, 2, words(0x1234, 0xFFFF, 0x00FF)),
        [[0x12, 0xFF, 0]],
    ),
    "PNG alpha of 16 bits": (png((1, 1), 16, 6, DEEP), [[136, 255, 127]]),
    "WebP colour": (
        encoded(row("RGB", (1, 2, 3), (4, 5, 6)), "WEBP", lossless=True),
        [[1, 2, 3], [4, 5, 6]],
    ),
    "WebP alpha": (
        encoded(row("RGBA", *ALPHA["RGBA"]), "WEBP", lossless=True, exact=True),
        ON_WHITE,
    ),
    "GIF": (encoded(palette(), "GIF"), [[200, 10, 20], [30, 210, 40], [50, 60, 220]]),
    "GIF, one clear": (
        encoded(palette(), "GIF", transparency=2),
        [[200, 10, 20], [30, 210, 40], [255, 255, 255]],
    ),
    "GIF, the first of two": (
        encoded(row("L", 1, 2), "GIF", save_all=True, append_images=[row("L", 9, 9)]),
        grey(1, 2),
    ),
    "BMP 1 bit": (encoded(row("1", 0, 255), "BMP"), grey(0, 255)),
    "BMP palette": (encoded(palette(), "BMP"), [[200, 10, 20], [30, 210, 40], [50, 60, 220]]),
    "BMP colour": (encoded(row("RGB", (1, 2, 3), (4, 5, 6)), "BMP"), [[1, 2, 3], [4, 5, 6]]),
    "TIFF 1 bit": (encoded(row("1", 0, 255), "TIFF", compression="group4"), grey(0, 255)),
    "TIFF 16 bits": (encoded(Image.fromarray(GREY16), "TIFF"), HIGH),
    "TIFF 16 bits, big end first": (
        encoded(Image.frombytes("I;16B", (8, 1), GREY16.astype(">u2").tobytes()), "TIFF"),
        HIGH,
    ),
    "TIFF colour": (
        encoded(row("RGB", (1, 2, 3), (4, 5, 6)), "TIFF", compression="tiff_lzw"),
        [[1, 2, 3], [4, 5, 6]],
    ),
    "TIFF alpha": (encoded(row("RGBA", *ALPHA["RGBA"]), "TIFF"), ON_WHITE),
    "TIFF CMYK": (
        encoded(row("CMYK", (0, 0, 0, 0), (255, 0, 0, 0), (0, 128, 255, 128)), "TIFF"),
        [[255, 255, 255], [0, 255, 255], [127, 63, 0]],
    ),
    "PBM": (b"P1\n2 1\n1 0\n", grey(0, 255)),
    "PGM": (b"P5\n2 1\n255\n\x07\xf0", grey(7, 240)),
    "PGM of 7 levels": (b"P2\n3 1\n7\n0 3 7\n", grey(0, 109, 255)),
    "PGM 16 bits": (b"P5\n8 1\n65535\n" + GREY16.astype(">u2").tobytes(), HIGH),
    "PPM": (b"P6\n2 1\n255\n\1\2\3\4\5\6", [[1, 2, 3], [4, 5, 6]]),
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_golden_pixels(kind: str) -> None:
    file, expected = GOLDEN[kind]
    pixels = decode(file, kind)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert pixels.tolist() == [expected]


@pytest.mark.parametrize("kind", GOLDEN)
def test_golden_pixels_in_grey(kind: str) -> None:
    """ITU-R 601 luma of what is seen in colour."""
    file, expected = GOLDEN[kind]
    luma = Image.fromarray(np.array([expected], dtype=np.uint8)).convert("L")
    assert decode(file, kind, channels=1)[..., 0].tolist() == np.asarray(luma).tolist()


@pytest.mark.parametrize("colour", [(200, 30, 90), (0, 0, 0), (255, 255, 255), (12, 200, 255)])
def test_jpeg_in_every_colour_space(colour: tuple[int, int, int], library: str) -> None:
    plain = Image.new("RGB", (40, 24), colour)
    luma: Any = plain.convert("L").getpixel((0, 0))
    for picture, expected in (
        (plain, colour),
        (plain.convert("L"), (luma,) * 3),
        (plain.convert("CMYK"), colour),  # stored inverted, as Photoshop does
    ):
        pixels = decode(encoded(picture, "JPEG", quality=100), picture.mode)
        assert pixels.shape == (24, 40, 3)
        assert np.abs(pixels.astype(int) - expected).max() <= 2
    assert decode(encoded(plain.convert("L"), "JPEG"), "grey", channels=1).shape == (24, 40, 1)


def test_avif() -> None:
    pixels = decode(encoded(photo(), "AVIF", quality=100), "photo").astype(int)
    assert np.abs(pixels - np.asarray(photo())).mean() < 2


@pytest.mark.parametrize(
    ("picture", "kind"),
    [
        (Image.fromarray(np.ones((2, 2), dtype=np.float32)), "TIFF"),
        (Image.fromarray(np.ones((2, 2), dtype=np.int32)), "TIFF"),
        (Image.fromarray(np.ones((2, 2), dtype=np.float32)), "PPM"),
    ],
)
def test_numbers_without_a_white_are_not_guessed_at(picture: Image.Image, kind: str) -> None:
    with pytest.raises(BadImage, match="no defined range: save it with 8 or 16 bits"):
        decode(encoded(picture, kind), "numbers")


# Orientation


def corners() -> Image.Image:
    """Four colours, each as large as a JPEG's blocks, so that none bleeds into another."""
    picture = Image.new("RGB", (64, 32), (200, 30, 30))
    picture.paste((30, 200, 30), (32, 0, 64, 16))
    picture.paste((30, 30, 200), (0, 16, 32, 32))
    return picture


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(corners(), kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB"))
    assert np.array_equal(decode(file, kind), expected)
    assert expected.shape == ((64, 32, 3) if orientation > 4 else (32, 64, 3))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_a_scaled_jpeg(orientation: int, library: str) -> None:
    """`at_least` is about the picture as it is seen: what lies is compared with the other side."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(corners().resize((640, 160), Image.Resampling.NEAREST), "JPEG", exif=exif)
    tall = orientation > 4
    wanted = (200, 50) if tall else (50, 200)
    assert decode(file, "x", at_least=wanted).shape == ((320, 80, 3) if tall else (80, 320, 3))
    assert decode(file, "x", at_least=wanted[::-1]).shape[:2] == (
        (640, 160) if tall else (160, 640)
    )
    small = Image.open(io.BytesIO(file))
    small.draft("RGB", (320, 80))
    expected = ImageOps.exif_transpose(small)
    assert np.array_equal(decode(file, "x", at_least=wanted), np.asarray(expected))


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08", b"Exif\0\0II*\0\xff" * 9]
)
def test_broken_exif_is_no_broken_picture(exif: bytes) -> None:
    plain, odd = encoded(photo(), "JPEG"), encoded(photo(), "JPEG", exif=exif)
    assert np.array_equal(decode(odd, "odd"), decode(plain, "plain"))


# The two libraries, and scaled decoding


JPEGS: dict[str, dict[str, Any]] = {
    "4:2:0": {},
    "4:4:4": {"quality": 95, "subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
}


@with_simplejpeg
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_libraries_agree(mode: str, kind: str, scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 1/255, whatever libjpeg each was built with; with libjpeg-turbo they are identical."""
    picture = sample("coffee").resize((499, 373)).convert(mode)
    file = encoded(picture, "JPEG", **JPEGS[kind])
    size = None if scale == 1 else (int(373 / scale / 1.5), int(499 / scale / 1.5))
    for channels in (1, 3):
        ours = decode(file, kind, at_least=size, channels=channels)
        assert ours.shape == (-(-373 // scale), -(-499 // scale), channels)
        with monkeypatch.context() as without:
            without.setattr(images, "_simplejpeg", None)
            theirs = decode(file, kind, at_least=size, channels=channels)
        assert np.abs(ours.astype(int) - theirs).max() <= 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("filter_", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
@pytest.mark.parametrize("name", ["coffee", "chelsea", "astronaut"])
def test_scaled_decoding_stays_close(name: str, filter_: Image.Resampling, library: str) -> None:
    """A photo of 3000x2000 bound for 256: a quarter of the side is decoded, and after the resize
    the mean difference is what the decoder's docstring says."""
    large = sample(name).resize((3000, 2000), Image.Resampling.BICUBIC)
    file = encoded(large, "JPEG", quality=90)
    whole, part = decode(file, name), decode(file, name, at_least=(256, 256))
    assert part.shape == (500, 750, 3)
    seen = [np.asarray(Image.fromarray(x).resize((384, 256), filter_)) for x in (whole, part)]
    difference = np.abs(seen[0].astype(int) - seen[1])
    assert difference.mean() < 0.6
    assert (difference > 2).mean() < 0.02


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 200), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_scaled_is_never_smaller_than_asked(width: int, height: int, tall: int, wide: int) -> None:
    file = encoded(Image.new("RGB", (width, height)), "JPEG")
    rows, columns, _ = decode(file, "x", at_least=(tall, wide)).shape
    assert rows >= min(tall, height)
    assert columns >= min(wide, width)


def test_only_jpeg_is_scaled() -> None:
    assert decode(encoded(photo(), "PNG"), "x", at_least=(8, 8)).shape == (64, 96, 3)


# What is refused


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "the file is empty"),
        (b"<html>not found</html>", "supported: JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "supported: JPEG, PNG"),
        (encoded(photo(32, 32), "ICO"), "supported: JPEG, PNG"),
        (encoded(photo(), "TGA"), "supported: JPEG, PNG"),
        (encoded(photo(), "JPEG2000"), "supported: JPEG, PNG"),
        (encoded(photo(), "JPEG")[:900], "ends too early"),
        (encoded(photo(), "PNG")[:-1], "ends too early"),
        (encoded(photo(), "BMP")[:-1], "ends too early"),
        (encoded(photo(), "GIF")[:5000], "ends too early"),
        (b"P6\n-3 4\n255\n" + b"0" * 99, "corrupt header"),
    ],
)
def test_reasons(file: bytes, reason: str) -> None:
    with pytest.raises(BadImage, match=f"^holiday.jpg: .*{reason}") as caught:
        decode(file, "holiday.jpg")
    assert caught.value.path == "holiday.jpg"
    assert len(caught.value.reason) < 160
    assert "0x" not in caught.value.reason  # an address would be another one each time
    assert caught.value.__context__ is None


def huge(width: int, height: int) -> bytes:
    return png((width, height), 8, 0, b"\0" * 50_000)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (huge(9460, 9460), "more than the limit of 89,478,485 pixels"),
        (huge(60_000, 60_000), "more than the limit of 89,478,485 pixels"),
        (huge(5000, 5000), "5000x5000 from .* bytes, which is a decompression bomb"),
        (encoded(Image.new("L", (5000, 5000)), "GIF"), "5000x5000 from .* bytes"),
        (b"P2\n2000 2000\n255\n" + b"0 " * 9, "1,048,576 pixels for this kind of PPM"),
    ],
)
def test_limits(file: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (Image.MAX_IMAGE_PIXELS, None):  # whatever a program told Pillow
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(BadImage, match=reason):
            decode(file, "bomb")


def test_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_BYTES", 100)
    file = encoded(photo(), "PNG")
    (tmp_path / "large.png").write_bytes(file)
    with pytest.raises(BadImage, match="bytes, more than the limit of 100"):
        decode(file, "large")
    with pytest.raises(BadImage, match="bytes, more than the limit of 100"):
        read_pixels(tmp_path / "large.png")


def test_limit_of_scans() -> None:
    file = encoded(photo(), "JPEG", progressive=True)
    last = file.rindex(b"\xff\xda")
    with pytest.raises(BadImage, match="more than 100 scans"):
        decode(file[:-2] + file[last:-2] * 100 + file[-2:], "scans")


def test_a_tiff_with_missing_strips() -> None:
    file = bytearray(encoded(photo(8, 8), "TIFF"))
    taller = file.replace(struct.pack("<HHII", 257, 4, 1, 8), struct.pack("<HHII", 257, 4, 1, 80))
    assert taller != file
    with pytest.raises(BadImage):
        decode(bytes(taller), "strips")


def test_a_callers_mistake_is_no_bad_image() -> None:
    with pytest.raises(UserError, match="1 or 3 channels, not 4"):
        decode(encoded(photo(), "PNG"), "x", channels=4)
    with pytest.raises(UserError, match="a side has at least 1 pixel"):
        decode(encoded(photo(), "PNG"), "x", at_least=(0, 8))


def test_a_switch_that_others_threw_makes_no_grey(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    thumbnail = Image.Exif()
    thumbnail[0x010E] = encoded(photo(16, 16), "JPEG").decode("latin-1")  # with an end of its own
    for file in (
        encoded(photo(), "PNG"),
        encoded(photo(), "JPEG"),
        encoded(photo(), "JPEG", exif=thumbnail.tobytes()),
    ):
        assert decode(file, "whole").shape == (64, 96, 3)
        with pytest.raises(BadImage, match="ends too early"):
            decode(file[:-200], "cut")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(photo(), "PNG"))
    assert np.array_equal(read_pixels(tmp_path / "a.png"), np.asarray(photo()))
    assert read_pixels(str(tmp_path / "a.png"), channels=1).shape == (64, 96, 1)
    (tmp_path / "empty.png").touch()
    os.mkfifo(tmp_path / "pipe.png")
    for name, reason in {
        "none.png": "no such file",
        "": "not a file",
        "pipe.png": "not a file",  # and not a wait for ever
        "empty.png": "the file is empty",
        "a\0.png": "cannot be read: .*null",
    }.items():
        with pytest.raises(BadImage, match=reason):
            read_pixels(tmp_path / name)


def test_a_bad_image_travels_between_processes() -> None:
    again = pickle.loads(pickle.dumps(BadImage("a\x1b[2J.jpg", "no\nnews")))
    assert (again.path, again.reason) == ("a\x1b[2J.jpg", "no\nnews")
    assert str(again) == r"a\x1b[2J.jpg: no\nnews"


def test_no_switch_is_thrown() -> None:
    """Limits and strictness are ours alone, also while several threads decode."""
    files = [file for file, _ in GOLDEN.values()] + [encoded(photo(), "JPEG")[:900]]

    def state() -> tuple[Any, ...]:
        return (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))

    def work() -> None:
        for file in files:
            try:
                decode(file, "x")
            except BadImage:
                continue

    before = state()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state() == before


# Silence


def damaged_tiffs(count: int) -> list[bytes]:
    """Files that Pillow warns of, and libtiff prints of."""
    whole = encoded(photo().resize((16, 16)), "TIFF", compression="tiff_lzw", software="x" * 50)
    draw = np.random.default_rng(0)
    files = []
    for _ in range(count):
        file = bytearray(whole)
        for place in draw.integers(8, len(file), 3):
            file[place] = draw.integers(256)
        files.append(bytes(file))
    return [*files, huge(10000, 10000)]


def try_to_decode(file: bytes) -> None:
    with suppress(BadImage):
        decode(file, "x")


def test_libraries_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither by `warnings` nor on standard error, in as many threads as there are; and somebody
    else's warnings are theirs."""
    files = damaged_tiffs(120)
    for file in files:  # they have something to say
        with suppress(Exception), warnings.catch_warnings(), Image.open(io.BytesIO(file)) as image:
            warnings.simplefilter("ignore")
            image.load()
    assert "TIFFFetch" in capfd.readouterr().err
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(try_to_decode, file) for file in files]
            warnings.warn("ours", stacklevel=1)
            for future in futures:
                future.result()
    assert [str(one.message) for one in seen] == ["ours"]
    assert capfd.readouterr() == ("", "")


def test_real_broken_files_are_refused_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    files = [path for path in golden("bad-images").rglob("*") if path.is_file()]
    refused = 0
    for path in files:
        try:
            read_pixels(path)
        except BadImage:
            refused += 1
    assert 14 <= refused < len(files)
    assert capfd.readouterr() == ("", "")


# Files that end too early, and bytes that never were a picture


def encoded_jpeg(options: dict[str, Any]) -> bytes:
    return encoded(photo(), "JPEG", **options)


WHOLE: dict[str, Callable[[], bytes]] = {
    **{f"JPEG {kind}": partial(encoded_jpeg, options) for kind, options in JPEGS.items()},
    "JPEG grey": lambda: encoded(photo().convert("L"), "JPEG"),
    "JPEG CMYK": lambda: encoded(photo().convert("CMYK"), "JPEG"),
    "PNG": lambda: encoded(photo(), "PNG"),
    "PNG palette": lambda: encoded(photo().quantize(64), "PNG"),
    "WebP": lambda: encoded(photo(), "WEBP"),
    "WebP lossless": lambda: encoded(photo(), "WEBP", lossless=True),
    "WebP animated": lambda: encoded(
        photo(), "WEBP", save_all=True, append_images=[photo().rotate(9)]
    ),
    "GIF": lambda: encoded(photo(), "GIF"),
    "GIF animated": lambda: encoded(
        photo(), "GIF", save_all=True, append_images=[photo().rotate(9)]
    ),
    "BMP": lambda: encoded(photo(), "BMP"),
    "TIFF": lambda: encoded(photo(), "TIFF"),
    "TIFF LZW": lambda: encoded(photo(), "TIFF", compression="tiff_lzw"),
    "PPM": lambda: encoded(photo(), "PPM"),
    "AVIF": lambda: encoded(photo(), "AVIF"),
}


def cuts(size: int) -> Iterator[int]:
    """In every part of a file, and everywhere near its ends."""
    yield from sorted({*range(0, min(size, 64)), *range(0, size, max(1, size // 200))})
    yield from range(max(0, size - 40), size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", WHOLE)
def test_what_ends_too_early_is_bad_or_whole_but_never_grey(kind: str, library: str) -> None:
    file = WHOLE[kind]()
    whole = decode(file, kind)
    good = 0
    for cut in cuts(len(file)):
        try:
            pixels = decode(file[:cut], kind)
        except BadImage:
            continue
        assert np.array_equal(pixels, whole), (
            f"{kind} cut at {cut} of {len(file)} gives other pixels"
        )
        good += 1
    # only what comes after the first picture may be missing
    assert good == 0 or kind.startswith("GIF")


@with_simplejpeg
def test_a_jpeg_with_a_hole_in_it_is_bad() -> None:
    """Its end is there, so Pillow alone would fill the rest with grey."""
    file = encoded(photo(), "JPEG")
    for damaged in (
        file[: len(file) // 2] + b"\xff\xd9",
        file[:1200] + file[1300:],
    ):
        with pytest.raises(BadImage, match="damaged: Corrupt JPEG data"):
            decode(damaged, "hole.jpg")


@with_simplejpeg
@pytest.mark.parametrize("orientation", [1, 6])
def test_padded_pixels_are_the_same_and_pillow_resizes_them_without_a_copy(
    orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(photo(), "JPEG", exif=exif)
    plain, padded = decode(file, "photo"), decode(file, "photo", padded=True)
    assert np.array_equal(plain, padded)
    assert (padded_buffer(padded) is not None) == (orientation == 1)
    assert padded_buffer(plain) is None
    for how in (
        Preprocessing(size=(32, 48)),
        Preprocessing(size=(20, 20), resize=(24, 24), interpolation="bicubic"),
        Preprocessing(size=(20, 20), channel_order="bgr", interpolation="nearest"),
    ):
        assert np.array_equal(frame_image(padded, how), frame_image(plain, how))
    grey = Preprocessing(size=(20, 20), mean=(0.5,), std=(0.5,))
    assert np.array_equal(frame_image(padded, grey), frame_image(plain, grey))
    if orientation == 1:
        monkeypatch.setattr(Image, "fromarray", lambda *rest: pytest.fail("copied"))
        read_image(file, Preprocessing(size=(32, 48)))


def test_other_parts_of_four_channels_are_not_taken_for_padded_pixels() -> None:
    four = np.random.default_rng(0).integers(0, 256, (6, 8, 4), dtype=np.uint8)
    assert padded_buffer(four[..., :3]) is four
    how = Preprocessing(size=(3, 4))
    for part in (four[..., 1:], four[::-1, :, :3], four[:, ::2, :3], four[1:, :, :3]):
        assert padded_buffer(part) is None
        assert np.array_equal(frame_image(part, how), frame_image(part.copy(), how))
    assert np.array_equal(frame_image(four[..., :3], how), frame_image(four[..., :3].copy(), how))


def test_a_progressive_jpeg_may_be_coarse(library: str) -> None:
    """Scans refine: with an end after a few it is a picture of its own, as browsers show it."""
    file = encoded(photo(), "JPEG", progressive=True)
    third = [i for i in range(len(file)) if file[i : i + 2] == b"\xff\xda"][3]
    tables = file.rindex(b"\xff\xc4", 0, third)  # the scan's own tables come before it
    coarse = decode(file[:tables] + b"\xff\xd9", "coarse").astype(int)
    difference = np.abs(coarse - decode(file, "fine"))
    assert 0 < difference.mean() < 12
    with pytest.raises(BadImage, match="ends too early"):
        decode(file[:tables], "cut")


def test_strange_bytes_after_the_end_do_not_matter(library: str) -> None:
    for kind in ("JPEG", "PNG", "GIF", "BMP"):
        file = encoded(photo(), kind)
        assert np.array_equal(decode(file + b"\0trailer" * 9, kind), decode(file, kind))


BEGINNINGS = sorted({file[:length] for file, _ in GOLDEN.values() for length in (4, 12, 40)})


@given(st.sampled_from([b"", *BEGINNINGS]), st.binary(max_size=300), st.sampled_from([1, 3]))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_a_picture_or_bad(beginning: bytes, rest: bytes, channels: int) -> None:
    try:
        pixels = decode(beginning + rest, "x", channels=channels)
    except BadImage:
        return
    assert pixels.ndim == 3
    assert pixels.shape[2] == channels


@pytest.mark.slow
@given(
    st.sampled_from(sorted(WHOLE)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.sampled_from([None, (8, 8)]),
)
@settings(max_examples=120, deadline=None)
def test_a_spoilt_file_is_a_picture_or_bad(
    kind: str, changes: list[tuple[float, int]], at_least: tuple[int, int] | None
) -> None:
    file = bytearray(WHOLE[kind]())
    for place, value in changes:
        file[int(place * len(file))] = value
    try:
        pixels = decode(bytes(file), kind, at_least=at_least)
    except BadImage:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.size


# Two collections of odd and broken files


PROBE = r"""
import json, re, sys, time, warnings
from pathlib import Path
from vitrail.data.images import BadImage
from vitrail.data.reader import read_pixels

warnings.simplefilter("ignore")
for name in json.load(sys.stdin):
    start = time.process_time()
    try:
        outcome = list(read_pixels(name).shape)
    except BadImage as problem:
        outcome = problem.reason
    print(json.dumps([name, outcome, time.process_time() - start]))
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.fixture(scope="module")
def probed() -> tuple[dict[str, Any], dict[str, float], int]:
    """What becomes of each file, its seconds, and the most memory of the whole process in kB."""
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells the most memory that a process ever had")
    files = sorted(str(path) for path in golden("bad-images").rglob("*") if path.is_file())
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps(files),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,  # a crash would end it
    )
    *lines, memory = done.stdout.splitlines()
    results = [json.loads(line) for line in lines]
    assert [name for name, _, _ in results] == files
    outcomes = {name: outcome for name, outcome, _ in results}
    return outcomes, {name: seconds for name, _, seconds in results}, int(memory)


@pytest.mark.slow
def test_no_file_crashes_hangs_or_eats(
    probed: tuple[dict[str, Any], dict[str, float], int],
) -> None:
    outcomes, seconds, memory = probed
    assert len(outcomes) > 550
    assert max(seconds.values()) < 1, max(seconds, key=lambda name: seconds[name])
    assert memory < 300 * 1024
    for name, outcome in outcomes.items():
        assert isinstance(outcome, str) or (len(outcome) == 3 and outcome[2] == 3), name


def test_broken_files_are_bad(probed: tuple[dict[str, Any], dict[str, float], int]) -> None:
    names = {Path(name): outcome for name, outcome in probed[0].items()}
    broken = [
        path
        for path in names
        if (path.parent.name == "pngsuite" and path.name.startswith("x"))
        or "bad" in path.relative_to(golden("bad-images")).parts
        or path.suffix in (".txt", ".md")
    ]
    assert len(broken) >= 14 + 9
    for path in broken:
        assert isinstance(names[path], str), path


def test_common_files_are_good(probed: tuple[dict[str, Any], dict[str, float], int]) -> None:
    """Of the whole formats all; of BMP most, where Pillow leaves out a few rare layouts."""
    outcomes = {Path(name): outcome for name, outcome in probed[0].items()}
    for suffix, share in {".png": 1.0, ".jpg": 1.0, ".webp": 1.0, ".gif": 0.9, ".bmp": 0.6}.items():
        some = [
            isinstance(outcome, list)
            for path, outcome in outcomes.items()
            if path.suffix == suffix
            and not {"bad", "regression"} & set(path.parts)
            and not (path.parent.name == "pngsuite" and path.name.startswith("x"))
        ]
        assert len(some) >= 5
        assert sum(some) >= share * len(some), suffix


def test_pngsuite_pixels() -> None:
    """Every good one against the decoder's rules, written out in numpy."""
    files = [file for file in golden("bad-images/pngsuite").glob("*.png") if file.name[0] != "x"]
    assert len(files) > 150
    for file in files:
        with Image.open(file) as picture:
            if picture.mode == "I;16":  # its only clear value is white
                expected = np.repeat((np.asarray(picture) >> 8)[..., None], 3, axis=2)
            else:
                rgba = np.asarray(picture.convert("RGBA")).astype(int)
                colours, alpha = rgba[..., :3], rgba[..., 3:]
                expected = (2 * (colours * alpha + 255 * (255 - alpha)) + 255) // 510
        assert np.array_equal(read_pixels(file), expected), file.name


def test_depths_of_one_picture_agree() -> None:
    """PngSuite has the same picture in 8 and 16 bits, with and without interlacing."""
    suite = golden("bad-images/pngsuite")
    for one, other in {
        "basn0g16": "basi0g16",
        "basn2c16": "basi2c16",
        "basn3p08": "basi3p08",
        "basn4a16": "basi4a16",
        "basn6a16": "basi6a16",
        "tbbn2c16": "tbrn2c08",
        "tbyn3p08": "tbwn3p08",
    }.items():
        pixels, same = (read_pixels(suite / f"{name}.png") for name in (one, other))
        assert np.array_equal(pixels, same), (one, other)


def test_references_of_image_rs() -> None:
    """What the Rust crate decodes its still PNG and WebP pictures to is what we decode."""
    root, compared = golden("bad-images/image-rs"), 0
    for reference in sorted((root / "reference").rglob("*.png")):
        folder = reference.parent.relative_to(root / "reference")
        source = root / "images" / folder / reference.name.removesuffix(".png")
        if source.suffix in (".png", ".webp") and source.is_file():
            ours, theirs = read_pixels(source).astype(int), read_pixels(reference)
            assert np.abs(ours - theirs).max() <= 1, source  # 16 bits are rounded, or cut off
            compared += 1
    assert compared >= 20


def test_lab_colours_become_grey_by_way_of_rgb() -> None:
    lab = Image.new("LAB", (2, 2), (200, 128, 128))
    grey = from_pillow(lab, "lab", channels=1)
    assert abs(int(grey[0, 0, 0]) - int(from_pillow(lab, "lab")[0, 0, 1])) <= 1
