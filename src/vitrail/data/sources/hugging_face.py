"""Hugging Face data sets: a directory that `save_to_disk` wrote, or hf:owner/name from the hub.

    hf:owner/name[@revision][?config=NAME&image=COLUMN&label=COLUMN]

The options are for data sets that have several configurations, images or kinds of label.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError, nearest
from vitrail.data.images import BadImage
from vitrail.data.sources.folders import split_name
from vitrail.data.sources.labelling import number_classes, number_sets
from vitrail.data.sources.optional import require
from vitrail.data.sources.origin import Origin, digest
from vitrail.data.sources.places import first_line, image_bytes

PREFIX = "hf:"
OPTIONS = ("config", "image", "label")
LABELS = ("label", "labels")


class Rows:
    """Images in the rows of a table that `datasets` maps into memory."""

    uniform = False

    def __init__(
        self, table: Any, title: str, labels: tuple[str, ...], targets: NDArray[Any] | None
    ) -> None:
        self.table, self.title, self.labels, self.targets = table, title, labels, targets

    def __len__(self) -> int:
        return len(self.table)

    def read(self, index: int) -> bytes:
        cell = next(iter(self.table[int(index)].values()))
        if cell is None:
            raise BadImage(self.name(index), "the row holds no image")
        if cell["bytes"] is not None:
            return bytes(cell["bytes"])
        return image_bytes(cell["path"], name=self.name(index))

    def name(self, index: int) -> str:
        return f"{self.title}[{range(len(self))[index]}]"

    def key(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> str:
        return digest(self.table._fingerprint.encode())  # datasets' own, of the table's history


def is_saved(directory: str) -> bool:
    """Whether `save_to_disk` wrote this directory."""
    one, many = ("state.json", "dataset_info.json"), ("dataset_dict.json",)
    return any(
        all(os.path.isfile(os.path.join(directory, name)) for name in names)
        for names in (one, many)
    )


def open_hub(spec: str) -> dict[str, Origin]:
    """hf:owner/name, or hf: and a local directory, with options."""
    address, _, query = spec.removeprefix(PREFIX).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for unknown in options.keys() - set(OPTIONS):
        raise UserError(f"{spec}: unknown option {unknown}, {nearest(unknown, OPTIONS)}")
    if os.path.isdir(address) and is_saved(address):
        return open_saved(address, options)
    name, _, revision = address.partition("@")
    datasets = require("datasets", extra="hub", reading=spec)
    try:
        loaded = datasets.load_dataset(name, options.get("config"), revision=revision or None)
    except Exception as error:  # the network, the hub and the data set fail in ways of their own
        raise UserError(
            f"{spec}: neither in the local cache nor given by the hub: download it where you can, "
            f"save it with save_to_disk and give that directory ({first_line(error)})"
        ) from None
    return open_dataset(spec, loaded, options)


def open_saved(directory: str, options: Mapping[str, str] | None = None) -> dict[str, Origin]:
    """A directory that `save_to_disk` wrote."""
    datasets = require("datasets", extra="hub", reading=directory)
    try:
        loaded = datasets.load_from_disk(directory)
    except Exception as error:
        raise UserError(f"{directory}: cannot be opened: {first_line(error)}") from None
    return open_dataset(directory, loaded, options or {})


def open_dataset(where: str, loaded: Any, options: Mapping[str, str]) -> dict[str, Origin]:
    """The parts of a DatasetDict, or of one Dataset."""
    datasets = require("datasets", extra="hub", reading=where)
    parts = (
        {split_name(name): table for name, table in loaded.items()}
        if isinstance(loaded, datasets.DatasetDict)
        else {"train": loaded}
    )
    features = next(iter(parts.values())).features
    image = choose(where, features, "image", options, image_columns(features, datasets))
    label = choose(where, features, "label", options, label_columns(features, datasets))
    labels, targets = number(where, parts, features, label)
    title = where.removeprefix(PREFIX)
    return {
        part: Rows(
            table.select_columns([image])
            .with_format(None)
            .cast_column(image, datasets.Image(decode=False)),
            f"{title}:{part}",
            labels if part in targets else (),
            targets.get(part),
        )
        for part, table in parts.items()
    }


def image_columns(features: Any, datasets: Any) -> list[str]:
    return [name for name, kind in features.items() if isinstance(kind, datasets.Image)]


def label_columns(features: Any, datasets: Any) -> list[str]:
    """`label` or `labels` where there is one, otherwise whatever has named classes."""
    named = [name for name in LABELS if name in features]
    kinds = {name: getattr(kind, "feature", kind) for name, kind in features.items()}
    return named[:1] or [
        name for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)
    ]


def choose(
    where: str, features: Any, what: str, options: Mapping[str, str], found: list[str]
) -> str:
    """The column that is meant; "" where there are no labels."""
    chosen = options.get(what)
    if chosen is not None:
        if chosen not in features:
            raise UserError(f"{where}: has no column {chosen}, {nearest(chosen, features)}")
        return chosen
    if len(found) > 1:
        raise UserError(
            f"{where}: {' and '.join(found)} could each be the {what}: choose one, as in "
            f"hf:…?{what}={found[0]}"
        )
    if not found and what == "image":
        raise UserError(f"{where}: has the columns {', '.join(features)}, expected one of images")
    return found[0] if found else ""


def number(
    where: str, parts: Mapping[str, Any], features: Any, column: str
) -> tuple[tuple[str, ...], Mapping[str, NDArray[Any]]]:
    """Class names as the data set has them, or found in the column, and targets."""
    if not column:
        return (), {}
    cells: dict[str, list[Any]] = {}
    for part, table in parts.items():
        column_cells = list(table.with_format(None)[column])
        bare = sum(cell is None or cell == -1 for cell in column_cells)
        if 0 < bare < len(column_cells):
            raise UserError(f"{where}: {bare:,} rows of {part} have no {column}: take them out")
        if not bare:  # a test set whose labels are kept secret has -1 everywhere
            cells[part] = column_cells
    kind = features[column]
    inner = getattr(kind, "feature", None)
    names = getattr(kind, "names", None) or getattr(inner, "names", None)
    if inner is None and names:
        return tuple(names), {part: np.array(v, dtype=np.int64) for part, v in cells.items()}
    if inner is None:
        return number_classes({part: list(map(str, v)) for part, v in cells.items()})
    if not names:
        return number_sets({part: [list(map(str, c)) for c in v] for part, v in cells.items()})
    rows = {part: np.zeros((len(v), len(names)), dtype=np.uint8) for part, v in cells.items()}
    for part, sets in cells.items():
        for row, places in zip(rows[part], sets, strict=True):
            row[places] = 1
    return tuple(names), rows
