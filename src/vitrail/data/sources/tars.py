"""WebDataset tars, indexed by offset: any image is one seek away, in any order.

Files whose path agrees up to the first dot of its last part are one sample: 0001.jpg is the image,
0001.cls its class (a number or a name), 0001.json its class under "label", "labels", "class" or
"cls". A tar is listed once when it is opened, or by its side-car index (`tar_index`); after that an
image is read from where it lies. Shards of remote storage are kept on disk while they are used
(`shard_cache`).
"""

import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.images import check_bytes
from vitrail.data.sources.braces import expand_braces
from vitrail.data.sources.files import is_image
from vitrail.data.sources.folders import SPELLINGS, split_name
from vitrail.data.sources.labelling import number_classes, number_sets
from vitrail.data.sources.origin import Origin, digest
from vitrail.data.sources.packed import Packed
from vitrail.data.sources.places import (
    file_system,
    find,
    first_line,
    image_bytes,
    is_remote,
    retried,
    stamp,
)
from vitrail.data.sources.shard_cache import shard_cache
from vitrail.data.sources.tar_index import Sample, read_index

LABELS = ("label", "labels", "class", "cls")
THREADS = 8  # tars are listed while others are waited for


class Tars:
    """Images in tars."""

    uniform = False

    def __init__(
        self,
        shards: Sequence[str],
        samples: Sequence[Sequence[Sample]],
        labels: tuple[str, ...] = (),
        targets: NDArray[Any] | None = None,
    ) -> None:
        self.shards = tuple(shards)
        every = [sample for shard in samples for sample in shard]
        self.members = Packed(sample.member for sample in every)
        self.places = np.array([(sample.offset, sample.size) for sample in every], dtype=np.int64)
        self.shard = np.repeat(np.arange(len(shards)), [len(shard) for shard in samples])
        self.labels, self.targets = labels, targets
        remote = any(map(is_remote, self.shards))
        self.cache = shard_cache() if remote else None

    @property
    def remote_shards(self) -> NDArray[np.int64] | None:
        """The shard of each image, where it is better to read shards one after another."""
        return None if self.cache is None else self.shard

    def __len__(self) -> int:
        return len(self.members)

    def read(self, index: int) -> bytes:
        offset, size = self.places[index].tolist()
        shard, name = self.shards[self.shard[index]], self.name(index)
        if self.cache is not None and is_remote(shard):
            check_bytes(size, name)
            with suppress(Exception):  # which is tried again below, and named
                data = self.cache.read(shard, offset, offset + size)
                if data is not None and len(data) == size:
                    return data
        return image_bytes(shard, start=offset, end=offset + size, name=name)

    def name(self, index: int) -> str:
        return f"{self.shards[self.shard[index]]}/{self.members[index]}"

    def key(self, index: int) -> str:
        shard = self.shards[self.shard[index]].rpartition("/")[2]
        return f"{shard}/{self.members[index]}"

    def fingerprint(self) -> str:
        facts = [stamp(shard) for shard in self.shards]
        members = (self.key(i) for i in range(len(self)))
        return digest(*(fact.encode("utf-8", "surrogatepass") for fact in (*facts, *members)))


def open_tars(spec: str) -> dict[str, Origin]:
    """The parts of the tars that a path or a pattern names."""
    return open_shards(spec, expand(spec))


def expand(spec: str) -> list[str]:
    """The tars of a pattern: {000..012} counts, {train,val} chooses, * and ? match names."""
    chosen = [spec]
    if "{" in spec:
        chosen = expand_braces(spec)
    shards = [
        shard for path in chosen for shard in (find(path) if re.search(r"[*?\[]", path) else [path])
    ]
    if not shards:
        raise UserError(f"{spec}: matches no file, expected tars such as train-000.tar")
    return shards


def open_shards(spec: str, shards: Sequence[str]) -> dict[str, Origin]:
    with ThreadPoolExecutor(THREADS) as pool:
        indexes = list(pool.map(index_tar, shards))
    parts: dict[str, list[int]] = {}
    for place, shard in enumerate(shards):
        parts.setdefault(part_of(shard), []).append(place)
    if not any(indexes):
        raise UserError(f"{spec}: holds no images, expected members such as 0001.jpg and 0001.cls")
    labels, targets = number(spec, indexes, parts)
    return {
        part: Tars(
            [shards[i] for i in mine],
            [indexes[i] for i in mine],
            labels if part in targets else (),
            targets.get(part),
        )
        for part, mine in parts.items()
    }


def part_of(shard: str) -> str:
    """The split that a tar's name begins with, or that its folder is; otherwise train.

    >>> part_of("pets/val-0003.tar"), part_of("pets/test/0003.tar"), part_of("pets.tar")
    ('val', 'test', 'train')
    """
    folders, _, name = shard.rpartition("/")
    first = re.split(r"[^a-zA-Z]", name)[0]
    for word in (first, folders.rpartition("/")[2]):
        if word.lower() in SPELLINGS:
            return split_name(word)
    words = [word for word in re.split(r"[^a-zA-Z]+", name.lower()) if word in SPELLINGS]
    return split_name(words[0]) if words else "train"


def index_tar(shard: str) -> list[Sample]:
    """Every image of a tar: as its side-car says, or listed."""
    found = read_index(shard)
    return list_tar(shard) if found is None else found


def list_tar(shard: str) -> list[Sample]:
    """Every image of a tar, sorted as the tar is, with the label found beside it."""
    try:
        # of a remote tar a read that broke off looks like a damaged one
        images, labels = retried(partial(scan, shard), None if is_remote(shard) else ())
    except (tarfile.TarError, EOFError) as error:
        hint = ": unpack the gzip first" if shard.endswith(("gz", "bz2", "xz")) else ""
        raise UserError(f"{shard}: cannot be read as tar: {first_line(error)}{hint}") from None
    except OSError as error:
        raise UserError(f"{shard}: cannot be read: {first_line(error)}") from None
    return [
        Sample(member.name, member.offset_data, member.size, labels.get(key))
        for key, member in images.items()
    ]


def scan(
    shard: str,
) -> tuple[dict[str, tarfile.TarInfo], dict[str, str | tuple[str, ...]]]:
    """The images and the labels of a tar, by the name that they share."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str | tuple[str, ...]] = {}
    with open_file(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            note_member(shard, tar, member, images, labels)
    return images, labels


def note_member(
    shard: str,
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    images: dict[str, tarfile.TarInfo],
    labels: dict[str, str | tuple[str, ...]],
) -> None:
    """Note what one member of a tar is: an image, a label, or neither."""
    parts = re.fullmatch(r"((?:.*/)?[^./][^./]*)\.([^/]*)", member.name)
    if parts is None or not member.isreg() or member.issparse():
        return
    key, kind = parts[1], parts[2].lower()
    if is_image(member.name):
        if key not in images or "." not in kind:  # 1.jpg is the image, 1.mask.png something else
            images[key] = member
    elif kind in ("cls", "json"):
        file = tar.extractfile(member)
        text = file.read() if file is not None else b""
        found = read_label(f"{shard}/{member.name}", kind, text)
        if found is not None and (kind == "cls" or key not in labels):
            labels[key] = found


def read_label(where: str, kind: str, text: bytes) -> str | tuple[str, ...] | None:
    """The label in a .cls or .json file, or None in a .json about other things.

    >>> read_label("1.json", "json", b'{"label": 3, "width": 500}')
    '3'
    """
    try:
        if kind == "cls":
            return text.decode().strip()
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: cannot be read as a {kind} file") from None
    if isinstance(value, dict):
        value = next((value[name] for name in LABELS if name in value), None)
    if isinstance(value, list):
        return tuple(map(str, value))
    return None if value is None else str(value)


def open_file(shard: str) -> Any:
    if not is_remote(shard):
        return open(shard, "rb")
    system, path = file_system(shard)
    return system.open(path, "rb")


def number(
    spec: str, indexes: Sequence[Sequence[Sample]], parts: Mapping[str, Sequence[int]]
) -> tuple[tuple[str, ...], Mapping[str, NDArray[Any]]]:
    """Class names, and the targets of the parts that have labels."""
    single: dict[str, list[str]] = {}
    label_sets: dict[str, list[tuple[str, ...]]] = {}
    for part, mine in parts.items():
        samples = [sample for i in mine for sample in indexes[i]]
        bare = [sample for sample in samples if sample.label is None]
        if len(bare) == len(samples):
            continue
        if bare:
            raise UserError(f"{spec}: {bare[0].member} has no label, but others in {part} have one")
        single[part] = [sample.label for sample in samples if isinstance(sample.label, str)]
        label_sets[part] = [sample.label for sample in samples if isinstance(sample.label, tuple)]
    if not any(label_sets.values()):
        return number_classes(single) if single else ((), {})
    if any(single.values()):
        raise UserError(f"{spec}: some samples have one label, others a list: expected one kind")
    return number_sets(label_sets)
