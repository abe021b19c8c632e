"""Data sets of torchvision by name: torchvision:CIFAR10, or torchvision:CIFAR10:ROOT.

They are looked for in ROOT, by default the folder `data`, and never downloaded from here. Where
torchvision lets us say how a file is loaded, its bytes are handed on undecoded.
"""

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError, nearest
from vitrail.data.images import BadImage, Unreadable
from vitrail.data.source import Raw
from vitrail.data.sources.labelling import number_arrays
from vitrail.data.sources.origin import Origin, digest
from vitrail.data.sources.places import LASTING, first_line, is_missing, read_bytes, reason

PREFIX = "torchvision:"
ROOT = "data"
# What a data set may call its parts, in the order of preference.
PARTS = {
    "train": ("train", "trainval", "train-standard"),
    "val": ("val", "valid"),
    "test": ("test",),
}
# Where data sets keep their labels, so that no image is loaded to see one.
TARGETS = ("targets", "_labels", "labels", "y")
# What a constructor raises where files are missing, damaged, or not what they should be.
ABSENT = (RuntimeError, OSError, EOFError)


class Indexed:
    """One part of a torchvision data set; pickled as the call that made it."""

    uniform = False

    def __init__(
        self,
        call: tuple[str, str, dict[str, Any]],
        labels: tuple[str, ...],
        targets: NDArray[Any],
    ) -> None:
        self.call, self.labels = call, labels
        self.targets: NDArray[Any] | None = targets
        self.dataset = construct(*call)
        self.title = ":".join([call[0], *(str(value) for value in call[2].values())])

    def __reduce__(self) -> tuple[Any, ...]:
        return Indexed, (self.call, self.labels, self.targets)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> Raw:
        try:
            image = self.dataset[int(index)][0]
        except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: PIL, of a bad PNG
            # an image that Pillow cannot decode is an OSError too, but without a number
            lasts = isinstance(error, LASTING) or is_missing(error)
            kind = BadImage if lasts or not getattr(error, "errno", None) else Unreadable
            raise kind(self.name(index), f"cannot be read: {reason(error)}") from None
        if isinstance(image, bytes):
            return image
        return np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))

    def name(self, index: int) -> str:
        return f"{self.title}[{range(len(self))[index]}]"

    def key(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> str:
        raws = (self.read(i) for i in range(len(self)))
        return digest(*(raw if isinstance(raw, bytes) else raw.tobytes() for raw in raws))


def open_torchvision(spec: str) -> dict[str, Origin]:
    """The parts of a torchvision data set that are on this machine."""
    name, _, root = spec.removeprefix(PREFIX).partition(":")
    root = root or ROOT
    found: dict[str, tuple[dict[str, Any], Any]] = {}
    missing: Exception | None = None
    for part, options_of_part in calls(spec, name):
        if part in found:
            continue
        try:
            found[part] = options_of_part, construct(name, root, options_of_part)
        except ABSENT as error:
            missing = missing or error
        except ValueError as error:  # torchvision: Unknown value 'val' for argument split
            if "argument split" not in str(error):
                raise UserError(f"{spec}: cannot be opened: {first_line(error)}") from None
        except (TypeError, ImportError) as error:
            raise UserError(f"{spec}: cannot be opened by name: {first_line(error)}") from None
    if not found:
        why = f" ({first_line(missing)})" if missing else ""
        raise UserError(
            f"{spec}: not found in {root}: give its folder as {PREFIX}{name}:ROOT, or download it "
            f"once in Python with torchvision.datasets.{name}({root!r}, download=True){why}"
        )
    given = {part: targets_of(spec, dataset) for part, (_, dataset) in found.items()}
    classes = class_names(next(iter(found.values()))[1])
    labels, targets = number_arrays(given, classes, where=spec)
    return {
        part: Indexed((name, root, options_of_part), labels, targets[part])
        for part, (options_of_part, _) in found.items()
    }


def calls(spec: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    """What to call a data set's constructor with, for each part it may have."""
    parameters = inspect.signature(class_of(spec, name)).parameters
    if "root" not in parameters:
        raise UserError(f"{spec}: {name} is not read from a folder, so it has no name here")
    if "train" in parameters:
        return [("train", {"train": True}), ("test", {"train": False})]
    if "split" in parameters:
        return [(part, {"split": word}) for part, words in PARTS.items() for word in words]
    return [("train", {})]


def class_of(spec: str, name: str) -> Any:
    from vitrail.core.torchvision import mend_torchvision

    mend_torchvision()
    from torchvision import datasets

    if name not in datasets.__all__:
        raise UserError(f"{spec}: torchvision has no {name}, {nearest(name, datasets.__all__)}")
    return getattr(datasets, name)


def construct(name: str, root: str, options_of_part: dict[str, Any]) -> Any:
    from torchvision.datasets import DatasetFolder

    kind = class_of(f"{PREFIX}{name}", name)
    parameters = inspect.signature(kind).parameters
    options = dict(options_of_part)
    if "loader" in parameters or issubclass(kind, DatasetFolder):
        options["loader"] = load_bytes
    if "download" in parameters:
        options["download"] = False
    return kind(root, **options)


def load_bytes(path: Any) -> bytes:
    return read_bytes(str(path))


def targets_of(spec: str, dataset: Any) -> NDArray[Any]:
    """The class of every image, without loading images where the data set lets us."""
    for name in TARGETS:
        found = getattr(dataset, name, None)
        if found is not None and len(found) == len(dataset):
            return np.asarray(found)
    targets = [dataset[i][1] for i in range(len(dataset))]
    if not all(isinstance(target, int | np.integer) for target in targets):
        raise UserError(f"{spec}: its labels are not classes: expected one class for each image")
    return np.asarray(targets)


def class_names(dataset: Any) -> tuple[str, ...]:
    """ImageNet has several names for each class: all of them, as one."""
    classes = getattr(dataset, "classes", None) or ()
    return tuple(name if isinstance(name, str) else ", ".join(name) for name in classes)
