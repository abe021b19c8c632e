"""Images set aside for validation, chosen by name: the same ones wherever the data set lies.

Every image gets a number from (seed, its name within the data set). Of each class the lowest
numbers go to validation, as many as its share, rounded, but at least one where the class has two
images. So the order in which files are listed, other classes and the machine have no say, and an
image that is added or taken away moves at most one other image, of its own class, to the other
side. An image with several labels counts with the first of them, one without labels with all
others of that kind.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.randomness import words
from vitrail.data.source import Source
from vitrail.data.sources.origin import Origin, Subset


def with_validation(parts: dict[str, Origin], share: float, seed: int) -> dict[str, Source]:
    """The parts, with `val` drawn from `train` where there is no `val`."""
    if not 0 <= share < 1:
        raise UserError(f"val_share must be in [0, 1), got {share}")
    if "val" in parts or "train" not in parts or share == 0:
        return dict(parts)
    whole = parts["train"]
    chosen = draw(whole, share, seed)
    drawn = {"train": Subset(whole, np.flatnonzero(~chosen))}
    if chosen.any():
        drawn["val"] = Subset(whole, np.flatnonzero(chosen))
    return {**drawn, **{name: part for name, part in parts.items() if name != "train"}}


def with_fold(parts: dict[str, Origin], folds: int, fold: int, seed: int) -> dict[str, Source]:
    """The parts, with one of `folds` equal shares of `train` as `val`, counted from 1. Every image
    is in one of them, decided as the validation images are: by name, and class by class."""
    if folds < 2 or not 1 <= fold <= folds:
        raise UserError(f"folds must be at least 2, and fold 1 to folds, got {fold} of {folds}")
    if "val" in parts or "train" not in parts:
        raise UserError(
            "folds draw validation images from train: the data must have a train split and no val"
        )
    whole = parts["train"]
    if len(whole) < folds:
        raise UserError(f"folds must be at most the number of images, {len(whole)}, got {folds}")
    chosen = fold_numbers(whole, folds, seed) == fold - 1
    drawn = {
        "train": Subset(whole, np.flatnonzero(~chosen)),
        "val": Subset(whole, np.flatnonzero(chosen)),
    }
    return {**drawn, **{name: part for name, part in parts.items() if name != "train"}}


def fold_numbers(source: Origin, folds: int, seed: int) -> NDArray[np.int64]:
    """For each image the fold that holds it out, from 0. Classes are dealt one after another, so
    that folds differ by one image at most, and in each class too."""
    numbers = words("fold", seed, hashes(source))
    order = np.lexsort((numbers, strata(source)))
    found = np.empty(len(source), dtype=np.int64)
    found[order] = np.arange(len(source)) % folds
    return found


def draw(source: Origin, share: float, seed: int) -> NDArray[np.bool_]:
    """For each image whether it goes to validation."""
    numbers = words("validation", seed, hashes(source))
    groups = strata(source)
    chosen = np.zeros(len(source), dtype=np.bool_)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        chosen[members[np.argsort(numbers[members], kind="stable")[:count]]] = True
    return chosen


def hashes(source: Origin) -> NDArray[np.uint64]:
    names = (source.key(i).encode("utf-8", "surrogatepass") for i in range(len(source)))
    digests = b"".join(blake2b(name, digest_size=8).digest() for name in names)
    return np.frombuffer(digests, dtype="<u8")


def strata(source: Origin) -> NDArray[np.int64]:
    """The class that each image counts with."""
    targets = source.targets
    if targets is None:
        return np.zeros(len(source), dtype=np.int64)
    if targets.ndim == 1:
        return targets.astype(np.int64)
    return np.where(targets.any(axis=1), targets.argmax(axis=1), -1).astype(np.int64)
