"""What a person types for a data set, and the parts that it opens to.

    photos                      class folders, with or without train, val and test
    photos.csv .tsv .parquet    a manifest: path and label or labels
    shards/train-{000..9}.tar   WebDataset tars, or a folder of them
    saved                       a directory that Hugging Face datasets wrote; hf:owner/name
    mnist                       a directory with IDX files; fashion-mnist where it is installed
    cifar.npz                   arrays x_train, y_train, x_test, y_test, or images and labels
    torchvision:CIFAR10:ROOT    a data set of torchvision that was downloaded to ROOT
    digits                      the embedded one
    planted                     digits on textured canvases, with boxes: `vitrail.data.planted`

Folders, manifests and tars may be remote: s3://bucket/photos, through fsspec.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from vitrail.core.errors import UserError, nearest
from vitrail.data import planted
from vitrail.data.source import Splits
from vitrail.data.sources import hugging_face, idx, manifest, tars, torchvision
from vitrail.data.sources.digits import open_digits
from vitrail.data.sources.files import is_image
from vitrail.data.sources.folders import SPLITS, open_folder
from vitrail.data.sources.npz import open_npz
from vitrail.data.sources.origin import Origin
from vitrail.data.sources.places import Listing, exists, is_folder, is_remote, join, list_folder
from vitrail.data.sources.validation import with_fold, with_validation

KINDS = (
    "a folder of class folders, a manifest (.csv, .tsv, .parquet), .tar, .npz, hf:owner/name, "
    "torchvision:NAME:ROOT, digits, planted or fashion-mnist"
)
FILES = (*manifest.SUFFIXES, ".npz", ".tar")
PACKED = (".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")


def open_data(
    spec: str | Path,
    *,
    val_share: float = 0.1,
    seed: int = 0,
    folds: int | None = None,
    fold: int | None = None,
) -> Splits:
    """Open a data set: nothing is decoded, and what cannot be opened raises `UserError`.

    Where there is no validation split, `val_share` of the training images become one, chosen by
    (seed, name of the image) and class by class: see `vitrail.data.sources.validation`. A share of
    0 draws none. Of `folds` equal shares of the training images the one with the number `fold` is
    the validation split instead.

    >>> data = open_data("digits")
    >>> {name: len(part) for name, part in data.parts.items()}
    {'train': 1618, 'val': 179}
    """
    found = open_parts(os.fspath(spec))
    ignored = tuple(path for part in found.values() for path in getattr(part, "ignored", ()))
    for part in found.values():
        check_labels(part.labels, spec)
    if folds is not None and fold is not None:
        parts = with_fold(found, folds, fold, seed)
    else:
        parts = with_validation(found, val_share, seed)
    order = [name for name in SPLITS if name in parts]
    named = {name: parts[name] for name in (*order, *sorted(parts.keys() - set(order)))}
    return Splits(named, ignored)


def check_labels(labels: Sequence[str], spec: str | Path) -> None:
    """Labels travel with weights, as text."""
    for label in labels:
        try:
            label.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{spec}: class names must be UTF-8, got {label!r}: rename it"
            ) from None


def open_parts(spec: str) -> dict[str, Origin]:
    """The parts of a data set as they were found."""
    if spec == "digits" and not os.path.exists(spec):
        return open_digits()
    if spec == "planted" and not os.path.exists(spec):
        return planted.open_planted()
    if spec in idx.NAMED and not os.path.exists(spec):
        return idx.open_named(spec)
    if spec.startswith(hugging_face.PREFIX):
        return hugging_face.open_hub(spec)
    if spec.startswith(torchvision.PREFIX):
        return torchvision.open_torchvision(spec)
    if any(letter in spec for letter in "{*?[") and not exists(spec):
        return tars.open_tars(spec)
    if is_folder(spec):
        return open_directory(spec)
    if not exists(spec):
        raise UserError(f"{spec}: {why_missing(spec)}")
    return open_file(spec)


def open_file(spec: str) -> dict[str, Origin]:
    kind = os.path.splitext(spec)[1].lower()
    if kind in manifest.SUFFIXES:
        return manifest.open_manifest(spec)
    if kind == ".tar":
        return tars.open_tars(spec)
    if kind == ".npz" and is_remote(spec):
        raise UserError(f"{spec}: an NPZ is read from this machine only: copy it here first")
    if kind == ".npz":
        return open_npz(spec)
    if kind in PACKED:
        raise UserError(f"{spec}: is a packed archive: unpack it and give the folder or the .tar")
    if is_image(spec):
        raise UserError(f"{spec}: is one image, expected {KINDS}")
    raise UserError(f"{spec}: is a {kind or 'nameless'} file, expected {KINDS}")


def open_directory(root: str) -> dict[str, Origin]:
    """Whatever a directory holds, recognised by its files."""
    if not is_remote(root) and hugging_face.is_saved(root):
        return hugging_face.open_saved(root)
    if not is_remote(root) and idx.has_idx(root):
        return idx.open_idx(root)
    listing = list_folder(root)
    if any(map(is_image, listing.files)):
        return open_folder(root, listing)
    if shards := [join(root, path) for path in listing.files if path.endswith(".tar")]:
        return tars.open_shards(root, shards)
    if (inside := only_file(root, listing)) is not None:
        return open_file(inside)
    return open_folder(root, listing)  # which says what it misses


def only_file(root: str, listing: Listing) -> str | None:
    """The one manifest or NPZ of a directory without images."""
    found = [path for path in listing.files if os.path.splitext(path)[1].lower() in FILES]
    if len(found) > 1:
        raise UserError(f"{root}: holds {' and '.join(found[:3])}: give the one that is meant")
    return join(root, found[0]) if found else None


def why_missing(spec: str) -> str:
    """What was looked for, with the nearest name that there is."""
    if is_remote(spec):
        return "no such file or folder"
    folder, name = os.path.split(spec.rstrip("/"))
    try:
        beside = os.listdir(folder or ".")
    except OSError:
        return f"no such file or directory, and no {folder} either"
    known = [*beside, *(() if folder else ("digits", "planted", *idx.NAMED))]
    hint = nearest(name, known)
    if hint.startswith("did you mean"):
        return f"no such file, directory or data set. D{hint[1:]}"
    return f"no such file, directory or data set: expected {KINDS}"
