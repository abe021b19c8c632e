"""Images of 1 to 16 bands and 16 bits, from the file to the model's input."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from numpy.typing import NDArray
from PIL import Image

import vitrail
from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import Augmentation, Transform, to_tensor
from vitrail.data.bands import BandFormat, decode_bands, format_of, from_array
from vitrail.data.images import BadImage
from vitrail.data.preprocess import normalise
from vitrail.data.reader import read_image, read_pixels
from vitrail.data.sources import open_data
from vitrail.recipes.bands import measure_bands

RNG = np.random.default_rng(0)


def tiff_bytes(values: NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **options)
    return file.getvalue()


def npy_bytes(values: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.parametrize("bands", [1, 2, 5, 13, 16])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("planar", [False, True])
def test_every_number_of_bands_comes_back_whole(bands: int, kind: Any, planar: bool) -> None:
    values = RNG.integers(0, np.iinfo(kind).max, (20, 24, bands)).astype(kind)
    stored = np.ascontiguousarray(np.moveaxis(values, -1, 0)) if planar else values
    bits = 8 * values.itemsize
    files = {"npy": npy_bytes(stored)}
    config = {"planarconfig": "separate" if planar else "contig"} if bands > 1 else {}
    stored = stored.squeeze() if bands == 1 else stored
    files["tiff"] = tiff_bytes(stored, photometric="minisblack", compression="zlib", **config)
    for name, data in files.items():
        assert format_of(data, name) == BandFormat(20, 24, bands, bits)
        assert np.array_equal(decode_bands(data, name, bands=bands, bits=bits), values)
    assert np.array_equal(from_array(stored, "x", bands=bands, bits=bits), values)


def test_a_grey_png_of_16_bits_keeps_them() -> None:
    values = RNG.integers(0, 65535, (8, 9), dtype=np.uint16)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "png")
    assert np.array_equal(decode_bands(file.getvalue(), "x", bands=1, bits=16)[..., 0], values)


def test_what_does_not_fit_is_refused() -> None:
    five = npy_bytes(np.zeros((8, 8, 5), np.uint16))
    with pytest.raises(BadImage, match="has 5 bands, the model reads 13"):
        decode_bands(five, "a.npy", bands=13, bits=16)
    with pytest.raises(BadImage, match="has 16-bit values, the model reads 8-bit"):
        decode_bands(five, "a.npy", bands=5, bits=8)
    for values, reason in (
        (np.zeros((8, 8, 5), np.float32), "float32, expected uint8 or uint16"),
        (np.zeros((40, 40, 17), np.uint8), "17 bands, expected 1 to 16"),
        (np.zeros((2, 2, 2, 2), np.uint8), "expected"),
        (np.zeros((8, 0, 5), np.uint8), "its size is"),
    ):
        for data in (npy_bytes(values),):
            with pytest.raises(BadImage, match=reason):
                decode_bands(data, "a", bands=5, bits=8)
    for data in (five[:-20], b"\x93NUMPY\1\0", tiff_bytes(np.zeros((9, 9, 5), np.uint16))[:200]):
        with pytest.raises(BadImage, match="a"):
            decode_bands(data, "a", bands=5, bits=16)


def test_headers_that_claim_too_much_are_refused_before_decoding() -> None:
    huge = tiff_bytes(np.zeros((16, 16, 5), np.uint8), photometric="minisblack")
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<u2", "fortran_order": False, "shape": (20_000, 20_000, 13)}
    )
    with pytest.raises(BadImage, match="more than the limit"):
        decode_bands(head.getvalue(), "bomb.npy", bands=13, bits=16)
    with tifffile.TiffFile(io.BytesIO(huge)) as file:
        page: Any = file.pages[0]
        place = page.tags["ImageLength"].valueoffset
    claimed = bytearray(huge)
    claimed[place : place + 2] = (60_000).to_bytes(2, "little")
    with pytest.raises(BadImage, match=r"cannot be decoded|more than the limit|bomb"):
        decode_bands(bytes(claimed), "bomb.tif", bands=5, bits=8)


def test_resizing_equals_a_photo_in_each_band() -> None:
    """Three bands through the path of bands are the photo's own pixels; 16 bits agree with them."""
    photo = RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    how = Preprocessing(size=(16, 16), resize=(20, 20))
    known = read_image(photo, how)
    four = Preprocessing(size=(16, 16), resize=(20, 20), mean=(0.5,) * 4, std=(0.5,) * 4)
    banded = read_image(np.concatenate([photo, photo[..., :1]], axis=2), four)
    assert torch.equal(banded[:3], known)
    deep = Preprocessing(size=(16, 16), resize=(20, 20), bits=16)
    wide = read_image(photo.astype(np.uint16) * 257, deep)
    assert wide.dtype == torch.uint16
    assert (wide.float() / 257 - known.float()).abs().max() <= 1
    one, other = normalise(wide, deep, reorder=False), normalise(known, how, reorder=False)
    assert (one - other).abs().max() <= 2 / 255
    fast = read_image(photo.astype(np.uint16) * 257, deep, exact=False)
    assert (fast.float() - wide.float()).abs().max() <= 2 * 257


def test_augmentation_moves_bands_alike_and_refuses_colours() -> None:
    photo = RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    how = Preprocessing(size=(16, 16))
    wide = Preprocessing(size=(16, 16), mean=(0.5,) * 6, std=(0.5,) * 6, bits=16)
    asked = Augmentation(crop=(0.3, 1.0), rotate=10.0)
    keys: dict[str, Any] = {"seed": 0, "epoch": 1, "index": 2, "view": 0}
    one = Transform(asked, how)(to_tensor(photo), **keys)
    six = np.concatenate([photo, photo], axis=2).astype(np.uint16) * 257
    other = Transform(asked, wide)(to_tensor(six), **keys)
    assert other.dtype == torch.uint16
    assert other.shape == (6, 16, 16)
    assert (other[:3].float() / 257 - one.float()).abs().max() <= 2
    for wrong in ({"policy": "randaugment"}, {"policy": "trivialaugment"}, {"jitter": 0.2}):
        with pytest.raises(UserError, match="grey and RGB of 8 bits"):
            Transform(Augmentation(**wrong), wide)


def test_models_of_one_depth_refuse_the_other() -> None:
    wide = {"channels": 2, "bits": 16}
    with pytest.raises(BadImage, match="a photo of 8 bits, the model reads 2 bands"):
        read_pixels(Image.new("RGB", (8, 8)), **wide)  # type: ignore[arg-type]


@pytest.fixture
def fields(tmp_path: Path) -> Path:
    """Thirteen bands of 16 bits, as Sentinel-2 has them: the class is in the last one."""
    for number in range(48):
        label = number % 2
        values = RNG.integers(0, 3000, (16, 16, 13)).astype(np.uint16)
        values[..., 12] += 5000 * label
        path = tmp_path / "fields" / ("crop", "water")[label] / f"{number}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(path, values, photometric="minisblack")
    return tmp_path / "fields"


def test_bands_are_measured(fields: Path) -> None:
    bands = measure_bands(open_data(fields, val_share=0)["train"])
    assert bands is not None
    assert bands.bits == 16
    every = np.stack([tifffile.imread(path) for path in sorted(fields.rglob("*.tif"))]) / 65535
    assert bands.mean == pytest.approx(every.mean(axis=(0, 1, 2)), rel=1e-5)
    assert bands.std == pytest.approx(every.std(axis=(0, 1, 2)), rel=1e-5)


@pytest.mark.slow
def test_from_a_folder_of_tiffs_to_an_explanation(fields: Path, tmp_path: Path) -> None:
    run = vitrail.train(fields, out=tmp_path / "run", epochs=12, batch_size=16, threads=1)
    assert run.recipe.bands is not None
    assert run.recipe.fields["channels"] == 13
    assert any("bands of 16 bits" in reason for reason in run.recipe.reasons)
    assert run.score == 1.0
    model = vitrail.load(tmp_path / "run" / "best")
    assert model.passport.preprocessing.bits == 16
    image = fields / "water" / "1.tif"
    values = tifffile.imread(image)
    by_file, by_array = vitrail.predict(model, str(image)), vitrail.predict(model, values)
    assert by_file.label == by_array.label == "water"
    assert by_file.score == by_array.score
    assert vitrail.evaluate(model, fields, split="train").accuracy == 1.0
    why: Any = vitrail.explain(model, str(image))
    assert np.asarray(why.overlay()).shape[2] == 3
    with pytest.raises(UserError, match="16 bits, which timm cannot express"):
        vitrail.convert(tmp_path / "run" / "best", tmp_path / "timm", to="timm")
    found = vitrail.doctor(fields)
    assert found.modes == {"bands 13x16-bit": 48}
    assert not found.broken
    assert found.colour is None


@pytest.mark.slow
def test_arrays_of_a_data_set(tmp_path: Path) -> None:
    for kind in (np.uint8, np.uint16):
        x = RNG.integers(0, np.iinfo(kind).max, (40, 8, 8, 5)).astype(kind)
        y = np.arange(40) % 2
        x[y == 1] //= 4
        path = tmp_path / f"{np.dtype(kind)}.npz"
        np.savez(path, images=x, labels=y)
        run = vitrail.train(path, out=tmp_path / path.stem, epochs=6, batch_size=8, threads=1)
        assert run.recipe.bands is not None
        assert run.recipe.bands.bits == 8 * x.itemsize
        assert run.score is not None
        assert run.score > 0.7
