"""The doctor names exactly what is broken, finds all duplicates and no others, and reports it."""

import json
import re
from collections.abc import Callable, Generator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from tests.golden import golden
from tests.pages.html import check_page
from vitrail import UserError
from vitrail.cli.doctor import Doctor, doctor
from vitrail.data.doctor import examine
from vitrail.data.findings import Findings
from vitrail.data.likeness import RADIUS, close_pairs, look_alikes, thumbnail
from vitrail.data.sources import open_data
from vitrail.data.threads import each
from vitrail.pages.data_report import data_page
from vitrail.tasks.doctor import page_images

Pixels = NDArray[np.uint8]


def noise(seed: int, height: int = 90, width: int = 120) -> Image.Image:
    """A picture with large and small shapes, like no other."""
    random = np.random.default_rng(seed)
    layers = [
        Image.fromarray(random.integers(0, 256, (n, n, 3), dtype=np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for n in (3, 6, 12, 24)
    ]
    return Image.fromarray(np.mean([np.asarray(layer) for layer in layers], axis=0).astype("u1"))


def save(picture: Image.Image, path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)
    return path


def find(root: Path, **options: Any) -> Findings:
    return examine(open_data(root, val_share=0), str(root), **options)


def names(found: Findings, twins: str) -> list[tuple[str, ...]]:
    return [
        tuple(found.short(picture.name) for picture in group.images)
        for group in getattr(found, twins)
    ]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two splits with everything that can be wrong."""
    root = tmp_path / "photos"
    for i in range(6):
        save(noise(i), root / "train" / "ab"[i % 2] / f"{i}.png")
        save(noise(10 + i), root / "test" / "ab"[i % 2] / f"{i}.png")
    (root / "train" / "empty").mkdir()
    (root / "train" / "a" / "broken.jpg").write_bytes(b"no picture")
    save(noise(0), root / "test" / "a" / "same.bmp")  # leaks, exactly
    save(noise(1), root / "train" / "a" / "other label.png")  # has another label than b/1.png
    save(noise(3).resize((61, 50)), root / "train" / "b" / "resized.jpg", quality=60)
    save(Image.new("RGB", (70, 70), "white"), root / "train" / "a" / "white.png")
    save(noise(20).convert("L").convert("RGB"), root / "train" / "a" / "grey.png")
    return root


def test_everything_is_found(photos: Path) -> None:
    found = find(photos)
    assert found.images == 18
    train, test = found.splits
    assert (train.name, train.images, train.broken) == ("train", 11, 1)
    assert (test.name, test.images, test.broken) == ("test", 7, 0)
    assert train.classes == {"a": 6, "b": 4, "empty": 0}
    assert train.empty == ("empty",)
    assert train.imbalance == 1.5
    assert [(found.short(bad.image.name), bad.reason) for bad in found.broken] == [
        (
            "train/a/broken.jpg",
            "not a readable image (corrupt header or unsupported format; supported: JPEG, PNG, "
            "WEBP, GIF, BMP, TIFF, PPM, AVIF)",
        )
    ]
    assert names(found, "exact") == [
        ("train/a/0.png", "test/a/same.bmp"),
        ("train/a/other label.png", "train/b/1.png"),
    ]
    assert names(found, "near") == [("train/b/3.png", "train/b/resized.jpg")]
    assert names(found, "leaks") == [("train/a/0.png", "test/a/same.bmp")]
    assert names(found, "conflicts") == [("train/a/other label.png", "train/b/1.png")]
    assert found.leaked == {"test": 1}
    assert found.modes == {"PNG RGB": 15, "BMP RGB": 1, "JPEG RGB": 1}
    assert found.sizes is not None
    assert (found.sizes.smallest, found.sizes.largest) == ((50, 61), (90, 120))
    assert found.sizes.frequent == {"90x120": 15, "50x61": 1, "70x70": 1}
    assert found.colour is not None
    assert [found.short(picture.name) for picture in found.colour.blank] == ["train/a/white.png"]
    assert found.colour.grey == 2  # white.png too


def test_threads_do_not_matter(photos: Path) -> None:
    heard: list[tuple[int, int]] = []
    one = examine(open_data(photos), "x", threads=1, on_progress=lambda *seen: heard.append(seen))
    assert one == examine(open_data(photos), "x", threads=5)
    assert heard == [(i + 1, 18) for i in range(18)]
    with pytest.raises(UserError, match="threads must be at least 1, got 0"):
        examine(open_data(photos), "x", threads=0)


def test_colour_statistics_are_those_of_all_pixels(tmp_path: Path) -> None:
    for i in range(3):
        save(noise(i), tmp_path / "a" / f"{i}.png")
    values = np.stack([np.asarray(noise(i)) for i in range(3)]).reshape(-1, 3) / 255
    colour = find(tmp_path).colour
    assert colour is not None
    assert colour.mean == pytest.approx(values.mean(axis=0), abs=1e-4)
    assert colour.std == pytest.approx(values.std(axis=0), abs=1e-4)


@pytest.mark.slow
def test_a_tenth_of_2000_images_is_broken_and_named_exactly(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (2000, 8, 8, 3), dtype=np.uint8)
    broken = {}
    for i in range(2000):
        path = save(Image.fromarray(pixels[i]), tmp_path / str(i % 10) / f"{i:04}.png")
        if i % 10 == (i // 10) % 10:
            data = path.read_bytes()
            kinds = [b"", data[:-30], b"<html>404</html>", data[:40] + b"\xff" * 9 + data[49:]]
            broken[f"{path}"] = kinds[i % 4]
            path.write_bytes(kinds[i % 4])
    assert len(broken) == 200
    found = examine(open_data(tmp_path), str(tmp_path))
    assert {bad.image.name for bad in found.broken} == set(broken)
    assert len(found.broken) == 200
    assert all(bad.reason for bad in found.broken)
    assert sum(sum(part.classes.values()) for part in found.splits) == 1800
    assert [part.broken for part in found.splits] == [
        sum(bad.image.split == part.name for bad in found.broken) for part in found.splits
    ]


@pytest.mark.slow
@pytest.mark.parametrize("data", ["pngsuite", "image-rs"])
def test_golden_bad_images(data: str) -> None:
    found = find(golden(f"bad-images/{data}"))
    assert 0 < len(found.broken) < found.images
    if data == "pngsuite":
        assert {Path(bad.image.name).name[0] for bad in found.broken} == {"x"}
        assert len(found.broken) == 14


# Look-alikes


def compressed(picture: Image.Image, quality: int) -> Image.Image:
    file = BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def cropped(picture: Image.Image, share: float) -> Image.Image:
    """Up to `share` is cut off each side, another part of it each time."""
    left, top, right, bottom = np.random.default_rng(picture.width * picture.height).uniform(
        0, share, 4
    )
    width, height = picture.size
    box = (left * width, top * height, (1 - right) * width, (1 - bottom) * height)
    return picture.crop(tuple(map(round, box)))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half size": lambda x: x.resize((x.width // 2, x.height // 2)),
    "larger": lambda x: x.resize((int(x.width * 1.7), int(x.height * 1.7))),
    "squeezed": lambda x: x.resize((128, 128)),
    "quality 10": lambda x: compressed(x, 10),
    "brighter": lambda x: ImageEnhance.Brightness(x).enhance(1.15),
    "grey": lambda x: x.convert("L").convert("RGB"),
    "cropped by 3 %": lambda x: cropped(x, 0.03),
    "cropped, resized, compressed": lambda x: compressed(cropped(x, 0.03).resize((160, 120)), 50),
    "cropped by 5 %": lambda x: cropped(x, 0.05),
}
RECALL = dict.fromkeys(COPIES, 0.97) | {"cropped by 5 %": 0.85}


def thumbs_of(pictures: list[Image.Image]) -> Pixels:
    return np.stack([thumbnail(picture) for picture in pictures])


@pytest.fixture(scope="module")
def real() -> list[Image.Image]:
    """Every fourth photo of two data sets: alike scenes, but different photos."""
    files = sorted(golden("pets").glob("*/*/*.jpg")) + sorted(golden("flowers").glob("*/*/*.jpg"))
    return [Image.open(file).convert("RGB") for file in files[::4]]


@pytest.fixture(scope="module")
def real_thumbs(real: list[Image.Image]) -> Pixels:
    return thumbs_of(real)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", COPIES)
def test_copies_of_photos_are_found_and_nothing_else(
    real: list[Image.Image], real_thumbs: Pixels, kind: str
) -> None:
    copies = thumbs_of([COPIES[kind](picture) for picture in real])
    thumbs = np.concatenate([real_thumbs, copies])
    pairs, _, _ = look_alikes(thumbs, np.full(len(thumbs), 200))
    right = [(one, other) for one, other in pairs.tolist() if other - one == len(real)]
    assert len(right) >= RECALL[kind] * len(real)
    assert len(pairs) == len(right)


@pytest.mark.slow
def test_a_leak_in_a_published_data_set_is_found() -> None:
    """The same cat, and the same pixels, are in training and test of the pets."""
    found = find(golden("pets"))
    assert names(found, "leaks") == [("train/Bombay/Bombay_203.jpg", "test/Bombay/Bombay_102.jpg")]
    assert names(found, "near") == []


def test_alike_tiny_pictures_are_not_taken_for_copies() -> None:
    digits = open_data("digits", val_share=0)["train"]
    thumbs = thumbs_of([Image.fromarray(np.asarray(digits.read(i))) for i in range(len(digits))])
    pairs, _, _ = look_alikes(thumbs, np.full(len(thumbs), 8))
    assert len(pairs) == 0


def test_comparing_stops_when_its_time_is_up() -> None:
    """Classes of noisy copies have more close pairs than images."""
    noise = np.random.default_rng(0)
    base = noise.integers(0, 256, (32, 32))
    copies = np.clip(base + noise.integers(-20, 20, (75, 32, 32)), 0, 255).astype(np.uint8)
    sides = np.full(len(copies), 32)
    _, _, left = look_alikes(copies, sides, seconds=0.0)
    assert left > 1_000
    pairs, scores, left = look_alikes(copies, sides)
    assert left == 0
    assert len(pairs) == len(scores) > 1_000


def test_blank_pictures_are_no_look_alikes(tmp_path: Path) -> None:
    for i in range(4):
        save(Image.new("RGB", (99, 99), (i, 0, 0)), tmp_path / "a" / f"{i}.png")
    found = find(tmp_path)
    assert (found.exact, found.near) == ((), ())
    assert found.colour is not None
    assert len(found.colour.blank) == 4


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 200), st.sampled_from([0, 3, 4, 7, RADIUS]))
@settings(max_examples=60, deadline=None)
def test_close_pairs_are_all_close_pairs(seed: int, count: int, radius: int) -> None:
    random = np.random.default_rng(seed)
    centres = random.integers(0, 2**64, 5, dtype=np.uint64)
    flips = np.array(
        [
            sum(1 << int(b) for b in random.choice(64, random.integers(0, 10), False))
            for _ in range(count)
        ],
        dtype=np.uint64,
    )
    hashes = centres[random.integers(0, 5, count)] ^ flips
    pairs, distances = close_pairs(hashes, radius)
    every = np.bitwise_count(hashes[:, None] ^ hashes)
    expected = np.argwhere(np.triu(every <= radius, 1))
    assert pairs.tolist() == expected.tolist()
    assert distances.tolist() == every[pairs[:, 0], pairs[:, 1]].tolist()


# What is told


def page(found: Findings) -> str:
    return data_page(found.facts(), **page_images(found))


def test_the_page_is_one_file_with_its_pictures_inside(photos: Path) -> None:
    found = find(photos)
    checked = check_page(page(found))
    images = [uri for uri in checked.loads if not uri.startswith("#")]
    assert images
    assert all(re.match(r"data:image/(png|jpeg);base64,", uri) for uri in images)
    for told in ("Leakage between splits", "train/a/broken.jpg", "other label.png", "white.png"):
        assert told in checked.text


def test_names_do_no_harm(tmp_path: Path) -> None:
    name = '<img src=x onerror="alert(1)">\x1b[31m\n.png'
    save(noise(0), tmp_path / "<b>" / name)
    save(noise(0), tmp_path / "<b>" / "again.png")
    found = find(tmp_path)
    assert "onerror" in found.text()
    assert "\x1b" not in found.text()
    assert "&lt;img src=x onerror=" in page(found)
    check_page(page(found))


def test_the_page_of_data_without_labels_and_without_good_images(tmp_path: Path) -> None:
    save(noise(0), tmp_path / "bare" / "1.png")
    assert "Some of the images" in page(find(tmp_path / "bare"))
    (tmp_path / "bad" / "a").mkdir(parents=True)
    (tmp_path / "bad" / "a" / "1.png").write_bytes(b"")
    found = find(tmp_path / "bad")
    check_page(page(found))
    assert (found.sizes, found.colour) == (None, None)
    assert "1.png: the file is empty" in found.text()


def test_several_labels_are_counted_each(tmp_path: Path) -> None:
    for i in range(3):
        save(noise(i), tmp_path / f"{i}.png")
    rows = "path,labels\n0.png,cat|dog\n1.png,dog\n2.png,\n"
    (tmp_path / "list.csv").write_text(rows)
    found = find(tmp_path / "list.csv")
    assert found.splits[0].classes == {"cat": 1, "dog": 2}
    assert {picture.label for picture in found.samples} == {"cat|dog", "dog"}
    check_page(page(found))


def test_the_verb_prints_and_writes(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(Doctor(str(photos), out=str(tmp_path / "out"), threads=2))
    out, err = capsys.readouterr()
    assert err == ""
    for line in (
        "  train/a/broken.jpg: not a readable image",
        "leakage          with a duplicate in an earlier split: ",
        "labels           1 group of duplicates with different labels",
        f"report: {tmp_path}/out/report.html",
    ):
        assert line in out
    check_page((tmp_path / "out" / "report.html").read_text())
    written = json.loads((tmp_path / "out" / "doctor.json").read_text())
    doctor(Doctor(str(photos), json=True))
    printed = json.loads(capsys.readouterr().out)
    assert written["report"] == f"{tmp_path}/out/report.html"
    assert printed == {**written, "report": None}, "no page was written"
    assert printed["broken"][0]["image"] == f"{photos}/train/a/broken.jpg"
    assert "thumbnails" not in printed


def test_a_place_that_cannot_be_written(photos: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        doctor(Doctor(str(photos), out=str(photos / "train" / "a" / "0.png" / "out")))


# Threads


def test_results_come_in_order_and_errors_come_through() -> None:
    assert list(each(lambda i: i, 1000, threads=3)) == list(range(1000))

    def fail(index: int) -> int:
        if index == 500:
            raise ValueError("500")
        return index

    done = each(fail, 1000, threads=3)
    with pytest.raises(ValueError, match="500"):
        list(done)


def test_only_a_few_results_wait() -> None:
    asked: list[int] = []
    results = each(lambda i: asked.append(i), 100_000, threads=2)
    next(results)
    assert isinstance(results, Generator)
    results.close()
    assert len(asked) < 1000


def test_a_budget_makes_a_sample_that_says_so(photos: Path) -> None:
    data = open_data(photos)
    whole = examine(data, str(photos))
    assert whole.examined is None
    assert whole.sample == ""
    assert examine(data, str(photos), seconds=60).facts() == whole.facts()  # time for all
    sample = examine(data, str(photos), seconds=0, threads=1)
    assert sample.examined is not None
    assert 1 <= sample.examined < sample.images == whole.images
    assert len(sample.modes) <= sample.examined
    told = f"a random sample of {sample.examined} of {whole.images} images was examined"
    assert told in sample.text()
    assert told[1:] in page(sample)
    assert sample.facts()["examined"] == sample.examined


def test_files_that_are_no_images_are_named(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        Image.new("RGB", (8, 8), (label == "cat" and "red") or "blue").save(
            tmp_path / label / "1.png"
        )
    (tmp_path / "cat" / "notes.txt").write_text("no image", encoding="utf-8")
    (tmp_path / "dog" / "<b>2.docx").write_text("no image", encoding="utf-8")
    data = open_data(tmp_path)
    assert data.ignored == ("cat/notes.txt", "dog/<b>2.docx")
    found = examine(data, str(tmp_path))
    assert "not images       2 files: cat/notes.txt, dog/<b>2.docx" in found.text()
    assert found.facts()["ignored"] == list(data.ignored)
    shown = page(found)
    assert "dog/<wbr>&lt;b&gt;2.docx" in shown
    assert "<b>2.docx" not in shown
