"""Folders of images: one for each class, in one for each split where there are splits.

    photos/cat/1.jpg                     the whole set; validation is drawn
    photos/train/cat/1.jpg               splits by name, in any of their usual spellings
    photos/1.jpg, photos/test/1.jpg      images without labels

A class is the first folder; what lies deeper belongs to it. An empty folder is a class without
images: it keeps its number, and the doctor tells of it. Files that are no images are ignored, and
named in `Splits.ignored`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.core.errors import UserError
from vitrail.data.sources.files import Files, is_image
from vitrail.data.sources.origin import Origin
from vitrail.data.sources.places import Listing

SPLITS = {
    "train": ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "tst"),
}
SPELLINGS = {spelling: name for name, spellings in SPLITS.items() for spelling in spellings}


def split_name(word: str) -> str:
    """The name of a split that is spelled in one of the usual ways, or the word itself.

    >>> split_name("Validation"), split_name("extra")
    ('val', 'extra')
    """
    return SPELLINGS.get(word.strip().lower(), word)


@dataclass(frozen=True)
class _Part:
    """The images of one split and the classes it has, as paths from the data set's root."""

    images: tuple[str, ...]
    classes: tuple[str, ...]


def open_folder(root: str, listing: Listing) -> dict[str, Origin]:
    """The parts of a folder of images."""
    images = tuple(filter(is_image, listing.files))
    if not images:
        other = f": it holds {', '.join(listing.files[:3])}" if listing.files else ""
        raise UserError(
            f"{root}: no images found{other}; expected a folder for each class with images in it"
        )
    splits = split_folders(root, images, listing)
    if splits:
        parts = {name: gather(root, f"{top}/", images, listing) for name, top in splits.items()}
    else:
        parts = {"train": gather(root, "", images, listing)}
    labels = tuple(sorted({name for part in parts.values() for name in part.classes}))
    found = {name: label(root, splits.get(name), part, labels) for name, part in parts.items()}
    first = next(iter(found.values()))
    first.ignored = tuple(path for path in listing.files if not is_image(path))
    return dict(found)


def split_folders(root: str, images: Sequence[str], listing: Listing) -> dict[str, str]:
    """Which folder is which split; none where the folders are classes."""
    folders = [folder for folder in listing.folders if "/" not in folder]
    known = [folder for folder in folders if folder.lower() in SPELLINGS]
    if not known:
        return {}
    held = {path.partition("/")[0] for path in images}
    if strangers := [folder for folder in folders if folder not in known and folder in held]:
        raise UserError(
            f"{root}: holds {known[0]} beside {strangers[0]}: if {known[0]} is a split, move "
            f"{strangers[0]} away; if it is a class, put all classes into one folder named train"
        )
    if loose := [path for path in images if "/" not in path]:
        raise UserError(f"{root}: holds {loose[0]} beside {known[0]}: move it into a split")
    splits: dict[str, str] = {}
    for folder in known:
        name = split_name(folder)
        if name in splits:
            raise UserError(
                f"{root}: {splits[name]} and {folder} both mean the split {name}: keep one of them"
            )
        splits[name] = folder
    return splits


def gather(root: str, prefix: str, images: Sequence[str], listing: Listing) -> _Part:
    """What lies below a split's folder."""
    mine = tuple(path for path in images if path.startswith(prefix))
    below = (path[len(prefix) :] for path in listing.folders if path.startswith(prefix))
    classes = tuple(folder for folder in below if "/" not in folder)
    loose = [path for path in mine if "/" not in path[len(prefix) :]]
    if len(loose) == len(mine):
        return _Part(mine, ())
    if loose:
        raise UserError(
            f"{root}: {loose[0]} lies beside the class folders ({', '.join(classes[:3])}), so it "
            "has no class: move it into one, or away"
        )
    return _Part(mine, classes)


def label(root: str, top: str | None, part: _Part, labels: tuple[str, ...]) -> Files:
    if not part.classes:
        return Files(root, part.images)
    place = {name: number for number, name in enumerate(labels)}
    level = 0 if top is None else 1
    classes = [place[path.split("/")[level]] for path in part.images]
    return Files(root, part.images, labels, np.array(classes, dtype=np.int64))
