"""The cache holds what the decoder gave, to the bit, and notices when the images change."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.golden import golden
from vitrail import UserError
from vitrail.data import cache
from vitrail.data.cache import Cached, decode_once, is_worth_caching
from vitrail.data.images import BadImage, decode
from vitrail.data.source import Raw, Source
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Subset


def make_photos(root: Path, count: int = 12) -> Path:
    random = np.random.default_rng(0)
    for i in range(count):
        size = (20 + i, 30, 3)
        path = root / "ab"[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, size, dtype=np.uint8)).save(path)
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


def outcomes(source: Source) -> list[object]:
    """Pixels of every image, or why there are none."""
    found: list[object] = []
    for i in range(len(source)):
        try:
            raw = source.read(i)
            found.append((decode(raw, source.name(i)) if isinstance(raw, bytes) else raw).tolist())
        except BadImage as problem:
            found.append(str(problem))
    return found


def forbid(*_: object, **__: object) -> None:
    raise AssertionError("decoded again")


def test_all_parts_share_one_file_and_nothing_is_decoded_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "a" / "00.png").write_bytes(b"no picture")
    data = open_data(photos)
    expected = {name: outcomes(part) for name, part in data.parts.items()}
    heard: list[tuple[int, int]] = []
    for part in data.parts.values():
        decode_once(part, tmp_path / "cache", watch=lambda *seen: heard.append(seen))
    assert heard == [(i + 1, 12) for i in range(12)]
    assert len(list((tmp_path / "cache").iterdir())) == 1

    monkeypatch.setattr(cache, "decode", forbid)
    for name, part in data.parts.items():
        cached = decode_once(part, tmp_path / "cache", watch=forbid)
        assert outcomes(cached) == expected[name]
        assert [cached.name(i) for i in range(len(cached))] == [
            part.name(i) for i in range(len(part))
        ]
        assert cached.labels == part.labels
        assert np.array_equal(cached.targets, part.targets)  # type: ignore[arg-type]
        assert outcomes(pickle.loads(pickle.dumps(cached))) == expected[name]


def test_broken_images_are_recorded_with_their_reason(photos: Path, tmp_path: Path) -> None:
    (photos / "b" / "03.png").write_bytes(b"")
    (photos / "a" / "04.png").write_bytes(b"no picture")
    whole = open_data(photos, val_share=0)["train"]
    cached = decode_once(whole, tmp_path / "cache")
    assert isinstance(cached, Cached)
    assert {Path(cached.name(i)).name for i in cached.broken} == {"03.png", "04.png"}
    assert not cached.uniform
    with pytest.raises(BadImage, match="the file is empty"):
        cached.read(next(i for i in cached.broken if cached.name(i).endswith("03.png")))


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    Image.new("RGB", (9, 9)).save(path)


def add(path: Path) -> None:
    Image.new("RGB", (9, 9)).save(path.with_name("new.png"))


@pytest.mark.parametrize("change", [touch, replace, add, Path.unlink])
def test_a_changed_image_is_decoded_again(photos: Path, tmp_path: Path, change: object) -> None:
    assert callable(change)
    decode_once(open_data(photos)["train"], tmp_path / "cache")
    change(photos / "a" / "02.png")
    whole = open_data(photos, val_share=0)["train"]
    heard: list[int] = []
    cached = decode_once(whole, tmp_path / "cache", watch=lambda done, _: heard.append(done))
    assert len(heard) == len(whole)
    assert outcomes(cached) == outcomes(whole)


def test_another_decode_size_is_another_file(tmp_path: Path) -> None:
    whole = open_data(golden("flowers"), val_share=0)["val"]
    some = Subset(whole, np.arange(6))  # type: ignore[arg-type]
    grey = decode_once(some, tmp_path, channels=1)
    small = decode_once(some, tmp_path, at_least=(32, 32))
    assert len(list(tmp_path.iterdir())) == 2
    for i in range(6):
        raw = some.read(i)
        assert isinstance(raw, bytes)
        assert np.array_equal(grey.read(i), decode(raw, "", channels=1))
        assert np.array_equal(small.read(i), decode(raw, "", at_least=(32, 32)))


def test_images_of_one_size_are_uniform(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / "photos" / "a").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "photos" / "a" / f"{i}.png")
    assert decode_once(open_data(tmp_path / "photos")["train"], tmp_path / "cache").uniform


def test_readers_get_copies_and_may_be_many(photos: Path, tmp_path: Path) -> None:
    cached = decode_once(open_data(photos)["train"], tmp_path / "cache")
    expected = outcomes(cached)
    cached.read(0)[:] = 0  # type: ignore[index]
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda i: np.asarray(cached.read(i % 10)).tolist(), range(200)))
    assert seen == [expected[i % 10] for i in range(200)]


@pytest.mark.parametrize("damage", [b"", b"VITRAILPIXELS1\n\0", b"junk" * 100])
def test_a_damaged_cache_is_made_again(photos: Path, tmp_path: Path, damage: bytes) -> None:
    source = open_data(photos)["train"]
    decode_once(source, tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    for broken in (damage, whole[:-1], whole[: len(whole) // 2]):
        file.write_bytes(broken)
        assert outcomes(decode_once(source, tmp_path / "cache")) == outcomes(source)
        assert file.read_bytes() == whole


def test_a_run_that_stops_half_way_leaves_no_cache(photos: Path, tmp_path: Path) -> None:
    def stop(done: int, _: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    source = open_data(photos)["train"]
    with pytest.raises(KeyboardInterrupt):
        decode_once(source, tmp_path / "cache", watch=stop)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_killed_run_leaves_no_cache(photos: Path, tmp_path: Path) -> None:
    """kill -9 in the middle of writing: what is left is not taken for a cache, and goes later."""
    program = f"""
import os
from pathlib import Path
from vitrail.data.cache import decode_once
from vitrail.data.sources import open_data

def die(done, total):
    if done == 7:
        os.kill(os.getpid(), 9)

decode_once(open_data({str(photos)!r})["train"], Path({str(tmp_path / "cache")!r}), watch=die)
"""
    killed = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert killed.returncode == -9
    (left,) = (tmp_path / "cache").iterdir()
    source = open_data(photos)["train"]
    assert outcomes(decode_once(source, tmp_path / "cache")) == outcomes(source)
    touch(left)
    decode_once(source, tmp_path / "cache", channels=1)
    assert not left.exists()


def test_a_place_that_cannot_be_written(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="the decoded images cannot be written"):
        decode_once(open_data(photos)["train"], tmp_path / "file" / "cache")


def test_a_replaced_cache_is_not_mistaken_for_the_old_one(photos: Path, tmp_path: Path) -> None:
    cached = decode_once(open_data(photos, val_share=0)["train"], tmp_path / "cache")
    sent = pickle.dumps(cached)
    touch(photos / "a" / "02.png")
    decode_once(open_data(photos, val_share=0)["train"], tmp_path / "cache")
    with pytest.raises(UserError, match="holds other images than it did"):
        pickle.loads(sent)


def test_what_is_worth_caching(photos: Path) -> None:
    source = open_data(photos)["train"]
    assert is_worth_caching(source)
    assert not is_worth_caching(source, limit=1000)
    assert not is_worth_caching(open_data("digits")["train"])  # arrays already


class Plain:
    """A source from elsewhere, that has the protocol and no more."""

    def __init__(self, pictures: list[Raw]) -> None:
        self.pictures = pictures
        self.labels: tuple[str, ...] = ()
        self.targets: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.pictures)

    def read(self, index: int) -> Raw:
        return self.pictures[index]

    def name(self, index: int) -> str:
        return f"picture {index}"


def test_a_source_without_a_fingerprint_is_known_by_its_content(tmp_path: Path) -> None:
    first, second = (np.full((4, 5), value, dtype=np.uint8) for value in (1, 2))
    for pictures in ([first, second], [second, first], [first, second]):
        cached = decode_once(Plain(list(pictures)), tmp_path)
        seen = [np.asarray(cached.read(i))[0, 0, 0] for i in range(2)]
        assert seen == [picture[0, 0] for picture in pictures]
    assert len(list(tmp_path.iterdir())) == 1
