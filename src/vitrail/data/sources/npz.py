"""NPZ files: arrays of images and labels under the names that people give them."""

from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.sources.arrays import Arrays, to_pixels
from vitrail.data.sources.folders import SPLITS
from vitrail.data.sources.labelling import number_arrays
from vitrail.data.sources.origin import Origin

# Images and labels of one part: Keras says x_train and y_train, MedMNIST train_images.
PAIRS = (("x_{}", "y_{}"), ("{}_x", "{}_y"), ("{}_images", "{}_labels"), ("images_{}", "labels_{}"))
WHOLE = (("images", "labels"), ("x", "y"), ("images", "targets"), ("data", "labels"))
CLASS_NAMES = ("class_names", "label_names", "classes")


def open_npz(path: str) -> dict[str, Origin]:
    """The parts of an NPZ file."""
    archive = load(path)
    found = find_parts(archive.files)
    if not found:
        raise UserError(
            f"{path}: holds {', '.join(archive.files[:8]) or 'nothing'}, expected arrays x_train "
            "and y_train (and x_test and y_test), or images and labels"
        )
    labels = {part: member(path, y) for part, (_, y) in found.items() if y in archive.files}
    given = next((name for name in CLASS_NAMES if name in archive.files), None)
    names = tuple(member(path, given).astype(str).tolist()) if given else ()
    names, targets = number_arrays(labels, names, where=path)
    return {
        part: Arrays(
            (read_images, (path, x)),
            f"{path}:{x}",
            names if part in targets else (),
            targets.get(part),
        )
        for part, (x, _) in found.items()
    }


def find_parts(files: list[str]) -> dict[str, tuple[str, str]]:
    """For each part the names of its images and of its labels, which need not be there.

    >>> find_parts(["x_train", "y_train", "x_test", "y_test"])
    {'train': ('x_train', 'y_train'), 'test': ('x_test', 'y_test')}
    """
    parts: dict[str, tuple[str, str]] = {}
    for part, spellings in SPLITS.items():
        for spelling in spellings:
            for x, y in PAIRS:
                if x.format(spelling) in files:
                    parts.setdefault(part, (x.format(spelling), y.format(spelling)))
    if parts:
        return parts
    found = [pair for pair in WHOLE if pair[0] in files]
    found.sort(key=lambda pair: pair[1] not in files)  # with labels before without
    return {"train": found[0]} if found else {}


def load(path: str) -> NpzFile:
    try:
        archive = np.load(path, allow_pickle=False)
    except (OSError, ValueError, BadZipFile, EOFError) as error:
        raise UserError(f"{path}: cannot be read as NPZ: {error}") from None
    if not isinstance(archive, NpzFile):
        raise UserError(f"{path}: holds one array, expected an NPZ with images and labels")
    return archive


def member(path: str, name: str) -> NDArray[Any]:
    with load(path) as archive:
        try:
            return archive[name]
        except (OSError, ValueError, BadZipFile, EOFError) as error:
            raise UserError(f"{path}: {name} cannot be read: {error}") from None


def read_images(path: str, name: str) -> NDArray[np.uint8]:
    return to_pixels(member(path, name), where=f"{path}: {name}")
