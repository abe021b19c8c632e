"""The cache holds what the decoder gave, to the bit, filled on first use, and notices changes."""

import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.golden import golden
from vitrail import UserError
from vitrail.data import pixels
from vitrail.data.cache import Cached, Decoding, cached, remove_cache, room_for
from vitrail.data.images import BadImage, decode
from vitrail.data.source import Raw, Source
from vitrail.data.sources import open_data
from vitrail.data.sources.files import Files
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


ANY = Decoding()
SLOT = 5_000  # bytes: the largest of these photos has 2,790


def kept(source: Source, directory: Path, how: Decoding = ANY, slot: int = SLOT) -> Cached:
    """The whole of a source through its cache."""
    found = cached(source, directory, how, slot)
    if isinstance(found, Subset):
        found = found.whole
    assert isinstance(found, Cached)
    return found


def filled(source: Cached) -> list[int]:
    return [i for i in range(len(source)) if source.holds(i)]


def test_images_are_decoded_on_first_use_and_once(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "a" / "00.png").write_bytes(b"no picture")
    data = open_data(photos)
    expected = {name: outcomes(part) for name, part in data.parts.items()}
    parts = {n: cached(part, tmp_path / "c", ANY, SLOT) for n, part in data.parts.items()}
    train = parts["train"]
    assert isinstance(train, Subset)
    assert isinstance(train.whole, Cached)
    assert filled(train.whole) == []  # nothing was decoded before it is asked for
    train.read(3)
    assert filled(train.whole) == [int(train.indices[3])]
    for name, through_cache in parts.items():
        assert outcomes(through_cache) == expected[name]
    broken = [i for i in range(len(train.whole)) if train.whole.name(i).endswith("00.png")]
    assert set(filled(train.whole)) == set(range(12)) - set(broken)
    assert len(list((tmp_path / "c").iterdir())) == 1

    (photos / "a" / "00.png").unlink()  # or it would be decoded again, as what is broken is
    data = open_data(photos)
    expected = {name: outcomes(part) for name, part in data.parts.items()}
    for part in data.parts.values():
        outcomes(cached(part, tmp_path / "c", ANY, SLOT))
    monkeypatch.setattr(pixels, "decode", forbid)
    for name, part in data.parts.items():
        again = cached(part, tmp_path / "c", ANY, SLOT)
        assert outcomes(again) == expected[name]
        assert [again.name(i) for i in range(len(again))] == [
            part.name(i) for i in range(len(part))
        ]
        assert again.labels == part.labels
        assert again.targets is not None
        assert part.targets is not None
        assert np.array_equal(again.targets, part.targets)
        assert outcomes(pickle.loads(pickle.dumps(again))) == expected[name]


def test_what_is_broken_is_tried_again(photos: Path, tmp_path: Path) -> None:
    whole = open_data(photos, val_share=0)["train"]
    name = Path(whole.name(5))
    good = name.read_bytes()
    source = kept(whole, tmp_path / "cache")
    name.write_bytes(b"")
    with pytest.raises(BadImage, match="the file is empty"):
        source.read(5)
    name.write_bytes(good)  # a file system that was away is back
    assert np.array_equal(source.read(5), decode(good, ""))


def test_an_image_larger_than_its_slot_is_decoded_each_time(photos: Path, tmp_path: Path) -> None:
    whole = open_data(photos, val_share=0)["train"]
    source = kept(whole, tmp_path / "cache", slot=25 * 30 * 3)
    assert outcomes(source) == outcomes(whole)
    sizes = [np.asarray(outcome).size for outcome in outcomes(whole)]
    assert filled(source) == [i for i, size in enumerate(sizes) if size <= 25 * 30 * 3]
    assert outcomes(source) == outcomes(whole)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    Image.new("RGB", (9, 9)).save(path)


def add(path: Path) -> None:
    Image.new("RGB", (9, 9)).save(path.with_name("new.png"))


@pytest.mark.parametrize("change", [touch, replace, add, Path.unlink])
def test_a_changed_image_is_decoded_again(photos: Path, tmp_path: Path, change: object) -> None:
    assert callable(change)
    outcomes(kept(open_data(photos)["train"], tmp_path / "cache"))
    change(photos / "a" / "02.png")
    whole = open_data(photos, val_share=0)["train"]
    source = kept(whole, tmp_path / "cache")
    assert filled(source) == []
    assert outcomes(source) == outcomes(whole)


def test_another_decoding_is_another_cache(tmp_path: Path) -> None:
    whole = open_data(golden("flowers"), val_share=0)["val"]
    assert isinstance(whole, Files)
    some = Subset(whole, np.arange(6))
    for how in (Decoding(channels=1), Decoding(at_least=(32, 32))):
        room = room_for(some, how)
        assert room is not None
        source = cached(some, tmp_path, how, room.slot)
        for _ in range(2):
            for i in range(6):
                raw = some.read(i)
                assert isinstance(raw, bytes)
                pixels = decode(raw, "", at_least=how.at_least, channels=how.channels)
                assert np.array_equal(source.read(i), pixels)
    assert len(list(tmp_path.iterdir())) == 1


def test_readers_get_copies_and_may_be_many(photos: Path, tmp_path: Path) -> None:
    source = kept(open_data(photos)["train"], tmp_path / "cache")
    expected = outcomes(source)
    source.read(0)[:] = 0
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda i: source.read(i % 10).tolist(), range(200)))
    assert seen == [expected[i % 10] for i in range(200)]


def read_all(photos: Path, directory: Path) -> None:
    outcomes(kept(open_data(photos)["train"], directory))


def test_processes_fill_one_file(photos: Path, tmp_path: Path) -> None:
    whole = open_data(photos, val_share=0)["train"]
    source = kept(whole, tmp_path / "cache")
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=read_all, args=(photos, tmp_path / "cache")) for _ in range(3)]
    for process in others:
        process.start()
    seen = outcomes(source)
    for process in others:
        process.join()
        assert process.exitcode == 0
    assert seen == outcomes(source) == outcomes(whole)
    assert filled(source) == list(range(len(whole)))


def test_damage_is_noticed(photos: Path, tmp_path: Path) -> None:
    """Any cut and any changed byte, as a process that was killed or a disk may leave them."""
    source = open_data(photos)["train"]
    expected = outcomes(open_data(photos, val_share=0)["train"])
    outcomes(kept(source, tmp_path / "cache"))
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    draw = np.random.default_rng(0)
    for cut in draw.integers(0, len(whole), 8).tolist():
        file.write_bytes(whole[:cut])
        assert outcomes(kept(source, tmp_path / "cache")) == expected
    for place in draw.integers(0, len(whole), 8).tolist():
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert outcomes(kept(source, tmp_path / "cache")) == expected


def test_a_full_disk_stops_the_cache_and_not_the_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_data(photos, val_share=0)["train"]
    source = kept(whole, tmp_path / "cache")
    source.read(0)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert outcomes(source) == outcomes(whole)
    assert filled(source) == [0]


def test_a_place_that_cannot_be_written(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="decoded images cannot be written"):
        kept(open_data(photos)["train"], tmp_path / "file" / "cache")


def test_only_what_was_written_is_removed(photos: Path, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    remove_cache(directory)  # nothing there is no mistake
    outcomes(kept(open_data(photos)["train"], directory))
    remove_cache(directory)
    assert not directory.exists()
    outcomes(kept(open_data(photos)["train"], directory))
    (directory / "mine.txt").write_text("mine", encoding="utf-8")
    remove_cache(directory)
    assert [path.name for path in directory.iterdir()] == ["mine.txt"]


def test_what_is_worth_caching(photos: Path) -> None:
    source = open_data(photos)["train"]
    room = room_for(source, ANY)
    assert room is not None
    assert room.slot == 31 * 30 * 3  # the largest of them
    assert room.total == sum(
        np.asarray(o).size for o in outcomes(open_data(photos, val_share=0)["train"])
    )
    assert room_for(source, ANY, limit=1000) is None
    assert room_for(open_data("digits")["train"], ANY) is None  # arrays already


class Plain:
    """A source from elsewhere, that has the protocol and no more."""

    uniform = False

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
        source = kept(Plain(list(pictures)), tmp_path)
        seen = [source.read(i)[0, 0, 0] for i in range(2)]
        assert seen == [picture[0, 0] for picture in pictures]
    assert len(list(tmp_path.iterdir())) == 1
