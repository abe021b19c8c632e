"""Permutations without a table, the order over shards, and shards on disk."""

import io
import json
import os
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import Augmentation
from vitrail.data.feistel import FeistelPermutation
from vitrail.data.loader import Stream
from vitrail.data.sampler import LargeOrder, cut_epoch, epoch_order, places_of
from vitrail.data.shard_order import LANES, shard_order, shards_of
from vitrail.data.sources import open_data, places
from vitrail.data.sources.braces import expand_braces
from vitrail.data.sources.shard_cache import ShardCache, shard_cache
from vitrail.data.sources.tar_index import main as index_tars
from vitrail.data.sources.tars import index_tar, list_tar


@pytest.mark.slow
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000))
def test_a_bijection_of_any_size(count: int, seed: int, epoch: int) -> None:
    order = FeistelPermutation("order", count, seed, epoch)
    found = order(np.arange(count))
    assert np.array_equal(np.sort(found), np.arange(count))
    parts = np.concatenate([order(np.arange(i, min(i + 7, count))) for i in range(0, count, 7)])
    assert np.array_equal(found, parts)
    if count > 50:
        other = FeistelPermutation("order", count, seed, epoch + 1)(np.arange(count))
        assert (found == other).mean() < 0.3


@given(count=st.integers(2**40, 2**62), start=st.integers(0, 2**40 - 300))
def test_places_of_huge_data_sets_are_distinct(count: int, start: int) -> None:
    found = FeistelPermutation("order", count, 1, 2)(np.arange(start, start + 300))
    assert len(np.unique(found)) == 300
    assert 0 <= found.min() <= found.max() < count


def test_it_shuffles_as_well_as_chance() -> None:
    count = 5000
    found = FeistelPermutation("order", count, 0, 0)(np.arange(count))
    neighbours = np.abs(np.diff(found)).mean()
    assert abs(neighbours - count / 3) < 60  # the mean distance of two random numbers
    assert abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.05
    assert abs(int((found == np.arange(count)).sum()) - 1) <= 5  # fixed points: one, as by chance


def test_a_large_order_has_every_view_of_an_image_together() -> None:
    order = LargeOrder(9, seed=1, epoch=2, repeats=3)
    rows = np.concatenate([order[0:4], order[4:9]])
    assert rows[:, 1].tolist() == [0, 1, 2] * 3
    assert (rows[:, 0].reshape(3, 3) == rows[::3, :1]).all()
    plain = LargeOrder(100, seed=1, epoch=2)
    assert sorted(plain[0:100][:, 0].tolist()) == list(range(100))


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=90),
    batch=st.integers(1, 256),
    epoch=st.integers(0, 3),
)
def test_shard_order_has_every_sample_once(sizes: list[int], batch: int, epoch: int) -> None:
    shards = np.repeat(np.arange(len(sizes)), sizes)
    order = shard_order(shards, batch, seed=5, epoch=epoch)
    assert np.array_equal(np.sort(order), np.arange(len(shards)))


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 5000),
    batch=st.integers(1, 4096),
    world=st.one_of(st.integers(1, 1024), st.sampled_from([1, 2, 8, 64, 512, 1024])),
    sharded=st.booleans(),
)
def test_every_sample_once_whatever_the_world_size(
    count: int, batch: int, world: int, sharded: bool
) -> None:
    """The order is the same for all, and the shares of 1 to 1,024 processes are its batches."""
    images = None
    if sharded:
        images = shard_order(np.arange(count) // 100, batch, seed=1, epoch=2)
    order = epoch_order(count, seed=1, epoch=2, images=images)[:, 0]
    assert len(np.unique(order)) == count
    for cut in cut_epoch(count, batch)[:3]:
        whole = order[cut.first : cut.last]
        shares = [whole[places_of(len(whole), rank=r, world=world)] for r in range(world)]
        assert np.array_equal(np.sort(np.concatenate(shares)), np.sort(whole))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [1, 2, 8, 64])
def test_a_process_reads_its_own_shards_alone(world: int) -> None:
    shards = np.repeat(np.arange(128), 50)
    batch = 4 * LANES
    order = shard_order(shards, batch, seed=0, epoch=0)
    read: list[set[int]] = [set() for _ in range(world)]
    at_once = 0
    for cut in cut_epoch(len(shards), batch):
        whole = order[cut.first : cut.last]
        at_once = max(at_once, len(np.unique(shards[whole])))
        for rank in range(world):
            mine = whole[places_of(len(whole), rank=rank, world=world)]
            read[rank] |= set(shards[mine].tolist())
    assert sum(map(len, read)) == 128  # no shard by two
    assert at_once <= 2 * LANES


@pytest.mark.parametrize(
    "pattern",
    [
        "a-{000..012}.tar",
        "{train,val}/{8..11}.tar",
        "x{a,b}y{3..1}",
        "plain.tar",
        "{train-{000..001},val-000}.tar",
        "{a,{b,c{1..2}},}",
    ],
)
def test_braces_equal_the_peer(pattern: str) -> None:
    braceexpand = pytest.importorskip("braceexpand").braceexpand
    assert expand_braces(pattern) == list(braceexpand(pattern))


@pytest.mark.parametrize("pattern", ["a{", "a}", "{1..}", "{a}", "{0..9999999}"])
def test_other_braces_are_refused(pattern: str) -> None:
    with pytest.raises(UserError, match=r"braces cannot be read|more than"):
        expand_braces(pattern)


def write_tars(folder: Path, *, shards: int = 6, each: int = 5) -> None:
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:03d}.tar", "w") as tar:
            for number in range(each):
                image = io.BytesIO()
                pixels = draw.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(image, "png")
                label = str((shard + number) % 2).encode()
                for suffix, data in (("png", image.getvalue()), ("cls", label)):
                    facts = tarfile.TarInfo(f"{shard:03d}{number:03d}.{suffix}")
                    facts.size = len(data)
                    tar.addfile(facts, io.BytesIO(data))


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tars in fsspec's storage in memory, which counts what is read of it."""
    monkeypatch.setenv("VITRAIL_SHARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "LONG_PAUSES", (0.0,) * 6)
    monkeypatch.setattr(places, "PAUSES", (0.0,) * 4)
    write_tars(tmp_path / "tars")
    storage = fsspec.filesystem("memory")
    storage.store.clear()
    storage.put(str(tmp_path / "tars"), "/bucket/tars", recursive=True)
    yield storage
    storage.store.clear()


def all_bytes(place: Any) -> list[bytes]:
    source = open_data(place, val_share=0)["train"]
    return [source.read(index) for index in range(len(source))]  # type: ignore[misc]


def test_remote_shards_are_read_from_disk_once_they_are_there(
    remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = all_bytes(tmp_path / "tars")
    source = open_data("memory://bucket/tars", val_share=0)["train"]
    asked: list[str] = []
    cat_file = type(remote).cat_file

    def note(self: Any, path: str, **stretch: Any) -> Any:
        asked.append(path)
        return cat_file(self, path, **stretch)

    monkeypatch.setattr(type(remote), "cat_file", note)
    assert [source.read(index) for index in range(len(source))] == local
    assert len(asked) == 6  # a download each
    assert [source.read(index) for index in range(len(source))] == local
    assert len(asked) == 6
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 6
    assert shards_of(source) is not None


def test_the_cache_stays_below_its_limit(
    remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = all_bytes(tmp_path / "tars")
    size = (tmp_path / "tars" / "train-000.tar").stat().st_size
    monkeypatch.setenv("VITRAIL_SHARD_CACHE_GB", str(2.5 * size / 1e9))
    source = open_data("memory://bucket/tars", val_share=0)["train"]
    for index, expected in enumerate(local):
        assert source.read(index) == expected
        held = list((tmp_path / "cache").glob("*.tar"))
        assert sum(path.stat().st_size for path in held) <= 2.5 * size
    monkeypatch.setenv("VITRAIL_SHARD_CACHE_GB", "0")
    monkeypatch.setenv("VITRAIL_SHARD_CACHE", str(tmp_path / "none"))
    assert all_bytes("memory://bucket/tars") == local
    assert not (tmp_path / "none").exists()
    monkeypatch.setenv("VITRAIL_SHARD_CACHE_GB", "many")
    with pytest.raises(UserError, match="must be a number of gigabytes"):
        shard_cache()


def test_a_deleted_shard_stays_open_only_while_it_is_read(
    remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open file takes up the disk beyond the limit, although it has no name any more."""
    clock = [1000.0]
    stopped = SimpleNamespace(monotonic=lambda: clock[0], time=time.time)
    monkeypatch.setattr("vitrail.data.sources.shard_cache.time", stopped)
    size = (tmp_path / "tars" / "train-000.tar").stat().st_size
    first, second, third, *_ = (f"memory://{name}" for name in sorted(remote.find("/bucket")))
    one, other = (ShardCache(tmp_path / "cache", int(1.5 * size)) for _ in range(2))
    begin = one.read(first, 0, 100)
    (held,) = one.open_files.values()
    other.read(second, 0, 100)  # which deletes the first
    assert not os.fstat(held.descriptor).st_nlink
    assert one.read(first, 0, 100) == begin
    one.read(third, 0, 100)
    assert list(one.open_files) == [first, third]  # it may be read again at once
    clock[0] += 1000
    one.read(second, 0, 100)
    assert list(one.open_files) == [second]


def test_a_shard_that_is_read_is_not_deleted_first(
    remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    stopped = SimpleNamespace(monotonic=lambda: clock[0], time=time.time)
    monkeypatch.setattr("vitrail.data.sources.shard_cache.time", stopped)
    size = (tmp_path / "tars" / "train-000.tar").stat().st_size
    first, second, third, *_ = (f"memory://{name}" for name in sorted(remote.find("/bucket")))
    cache = ShardCache(tmp_path / "cache", int(2.5 * size))
    for shard in (first, second):
        cache.read(shard, 0, 100)
    for path in (tmp_path / "cache").glob("*.tar"):
        os.utime(path, (1, 1))  # long ago
    clock[0] += 100
    cache.read(first, 0, 100)
    cache.read(third, 0, 100)
    names = {path.name.partition("-")[2] for path in (tmp_path / "cache").glob("*.tar")}
    assert names == {"train-000.tar", "train-002.tar"}


def test_storage_that_fails_gives_the_same_bytes(
    remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, draw, failed = all_bytes(tmp_path / "tars"), np.random.default_rng(1), [0]
    for name in ("cat_file", "find", "info", "_open"):
        whole = getattr(type(remote), name)

        def flaky(self: Any, *args: Any, whole: Any = whole, **options: Any) -> Any:
            if draw.random() < 0.2:
                failed[0] += 1
                raise ConnectionError("503 Slow Down")
            return whole(self, *args, **options)

        monkeypatch.setattr(type(remote), name, flaky)
    assert all_bytes("memory://bucket/tars") == local
    assert failed[0] > 0


def test_a_side_car_saves_the_listing(remote: Any, tmp_path: Path) -> None:
    shard = str(tmp_path / "tars" / "train-001.tar")
    listed = list_tar(shard)
    index_tars([shard])
    assert index_tar(shard) == listed
    side_car = Path(f"{shard}.index.json")
    facts = json.loads(side_car.read_text())
    facts["samples"] = facts["samples"][:2]
    side_car.write_text(json.dumps(facts))
    assert len(index_tar(shard)) == 2  # the tar was not read
    with open(shard, "ab") as file:
        file.write(b"\0" * 512)
    assert index_tar(shard) == listed  # another tar by now
    side_car.write_text("{")
    assert index_tar(shard) == listed
    assert open_data(tmp_path / "tars", val_share=0)["train"].labels == ("0", "1")
    with pytest.raises(UserError, match="before they are uploaded"):
        index_tars(["s3://bucket/a.tar"])


def test_batches_do_not_depend_on_workers(remote: Any) -> None:
    how = Preprocessing(size=(8, 8))
    source = open_data("memory://bucket/tars", val_share=0)["train"]
    stream = Stream(source=source, how=how, augmentation=Augmentation(), batch_size=7)
    first = [batch.indices.tolist() for batch in stream.batches(0, 8)]
    assert [batch.indices.tolist() for batch in stream.batches(3, 8)] == first[3:]
    seen = [index for batch in first[:4] for index in batch]
    assert len(seen) == len(set(seen)) == 28


def test_a_cache_survives_being_sent_to_another_process(tmp_path: Path) -> None:
    import pickle

    cache = pickle.loads(pickle.dumps(ShardCache(tmp_path, 10)))
    assert (cache.directory, cache.limit, cache.process) == (tmp_path, 10, os.getpid())
