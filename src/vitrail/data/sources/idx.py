"""IDX files, the format of MNIST and its family: http://yann.lecun.com/exdb/mnist."""

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.sources.arrays import Arrays, to_pixels
from vitrail.data.sources.labelling import number_arrays
from vitrail.data.sources.origin import Origin

STEMS = {"train": "train", "test": "t10k"}
# The third byte of the magic number.
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

# What Debian's packages dataset-* install under share/datasets, and what its class numbers mean.
NAMED: dict[str, tuple[str, ...]] = {
    "fashion-mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
}


def open_named(name: str) -> dict[str, Origin]:
    """A data set that the system has installed."""
    shares = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    places = [Path(share, "datasets", name) for share in shares.split(os.pathsep)]
    for place in places:
        if place.is_dir():
            return open_idx(str(place), NAMED[name], title=name)
    raise UserError(
        f"{name}: not found in {', '.join(str(place.parent) for place in places)}: install it "
        f"(Debian and Ubuntu: apt install dataset-{name}), or give the directory of its four files"
    )


def has_idx(directory: str) -> bool:
    return any(find(directory, stem, "images", 3) is not None for stem in STEMS.values())


def open_idx(directory: str, names: tuple[str, ...] = (), *, title: str = "") -> dict[str, Origin]:
    """Training and test images of a directory with IDX files, compressed or not."""
    images: dict[str, Path] = {}
    labels: dict[str, NDArray[Any]] = {}
    for part, stem in STEMS.items():
        pixels, classes = find(directory, stem, "images", 3), find(directory, stem, "labels", 1)
        if pixels is None and classes is None:
            continue
        if pixels is None or classes is None:
            missing = "images" if pixels is None else "labels"
            raise UserError(f"{directory}: has no {missing} for {stem}: expected both files")
        images[part], labels[part] = pixels, read_idx(classes)
    names, targets = number_arrays(labels, names, where=directory)
    return {
        part: Arrays(
            (read_images, (str(path),)), f"{title or directory}/{part}", names, targets[part]
        )
        for part, path in images.items()
    }


def find(directory: str, stem: str, kind: str, rank: int) -> Path | None:
    """train-images-idx3-ubyte, or with a dot as some archives unpack, .gz or not."""
    for mark in ("-", "."):
        for suffix in ("", ".gz"):
            path = Path(directory, f"{stem}-{kind}{mark}idx{rank}-ubyte{suffix}")
            if path.is_file():
                return path
    return None


def read_images(path: str) -> NDArray[np.uint8]:
    return to_pixels(read_idx(Path(path)), where=path)


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an IDX file."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES:
        raise UserError(f"{path}: is not an IDX file: it begins with {data[:4].hex(' ')}")
    rank, kind = data[3], np.dtype(TYPES[data[2]])
    shape = np.frombuffer(data[4 : 4 + 4 * rank], dtype=">u4")
    values = np.frombuffer(data[4 + 4 * rank :], dtype="u1")
    needed = int(np.prod(shape, dtype=np.float64)) * kind.itemsize
    if len(shape) != rank or len(values) != needed:
        raise UserError(
            f"{path}: holds {len(values)} bytes, but its header asks for {needed}: fetch it again"
        )
    return values.view(kind).reshape(tuple(shape.tolist()))
