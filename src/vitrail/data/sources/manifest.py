"""Manifests: a table with a row for each image, as CSV, TSV or Parquet.

path            where the image is, seen from the manifest; absolute paths and URLs work too
label           its class; or
labels          any number of classes, separated by | or ;
split           train, val or test; without it the whole is train, and validation is drawn
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.sources.files import Files
from vitrail.data.sources.folders import split_name
from vitrail.data.sources.labelling import number_classes, number_sets
from vitrail.data.sources.optional import require
from vitrail.data.sources.origin import Origin
from vitrail.data.sources.places import file_system, first_line, is_remote, parent, read_bytes

SUFFIXES = (".csv", ".tsv", ".parquet")
PATHS = ("path", "file_name")  # the second as in the metadata.csv of Hugging Face's image folders
COLUMNS = (*PATHS, "label", "labels", "split")
# A table with one of these and no label is mistaken, not one without labels.
MEANS_LABEL = ("label", "labels", "class", "class_name", "category", "target", "y")

Cell = str | Sequence[str] | None
Table = Mapping[str, Sequence[Any]]


def open_manifest(place: str) -> dict[str, Origin]:
    """The parts of a manifest."""
    table = read_parquet(place) if place.endswith(".parquet") else read_csv(place)
    paths = table[path_column(place, table)]
    if not paths:
        raise UserError(f"{place}: has no rows, expected one for each image")
    check(place, table, paths)
    splits = [split_name(split) for split in table.get("split", ("train",) * len(paths))]
    rows = {
        part: [i for i, split in enumerate(splits) if split == part]
        for part in dict.fromkeys(splits)
    }
    labels, targets = number(table, rows)
    return {
        part: Files(parent(place), [paths[i] for i in chosen], labels, targets.get(part))
        for part, chosen in rows.items()
    }


def path_column(place: str, table: Table) -> str:
    found = [name for name in PATHS if name in table]
    if not found:
        names = ", ".join(map(str, table)) or "no columns"
        raise UserError(
            f"{place}: holds {names}, expected a column named path and one named label or labels"
        )
    if "label" in table and "labels" in table:
        raise UserError(f"{place}: has both label and labels: keep the one that is meant")
    if not {"label", "labels"} & set(table):
        for name in table:
            if name.lower() in MEANS_LABEL:
                raise UserError(f"{place}: has a column named {name}: rename it to label")
    return found[0]


def check(place: str, table: Table, paths: Sequence[str]) -> None:
    """Every row has what its columns promise; only `labels` may be empty."""
    for name in {"label", "split"} & set(table):
        if "" in table[name]:
            row = table[name].index("") + 1
            raise UserError(f"{place}: row {row} has no {name}: fill it in, or take the row out")
    if "" in paths:
        raise UserError(f"{place}: row {paths.index('') + 1} has no path: take the row out")


def number(
    table: Table, rows: Mapping[str, Sequence[int]]
) -> tuple[tuple[str, ...], Mapping[str, NDArray[Any]]]:
    if "label" in table:
        single = table["label"]
        return number_classes({part: [single[i] for i in mine] for part, mine in rows.items()})
    if "labels" in table:
        label_sets = [apart(cell) for cell in table["labels"]]
        return number_sets({part: [label_sets[i] for i in mine] for part, mine in rows.items()})
    return (), {}


def apart(cell: str | Sequence[str]) -> list[str]:
    """The labels in a cell: "cat|dog" or "cat; dog", or a list in Parquet."""
    labels = re.split(r"[|;]", cell) if isinstance(cell, str) else [str(label) for label in cell]
    return [label.strip() for label in labels if label.strip()]


def read_csv(place: str) -> Table:
    try:
        text = read_bytes(place).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{place}: is not UTF-8: save it again as UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{place}: cannot be read: {first_line(error)}") from None
    header = text.partition("\n")[0]
    comma = ";" if ";" in header and "," not in header else ","  # as spreadsheets write in Europe
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if place.endswith(".tsv") else comma
    )
    try:
        names, *lines = [line for line in reader if any(cell.strip() for cell in line)] or [[]]
    except csv.Error as error:
        raise UserError(f"{place}: line {reader.line_num} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if len(line) != len(names):
            raise UserError(
                f"{place}: row {number} has {len(line)} cells, but there are {len(names)} columns"
            )
    cells = [[cell.strip() for cell in line] for line in lines]
    return {name.strip(): [line[i] for line in cells] for i, name in enumerate(names)}


def read_parquet(place: str) -> Table:
    parquet = require("pyarrow.parquet", extra="hub", reading=place)
    try:
        if is_remote(place):
            system, path = file_system(place)
            with system.open(path) as file:
                columns = read_columns(parquet.ParquetFile(file))
        else:
            with parquet.ParquetFile(place) as file:
                columns = read_columns(file)
    except Exception as error:  # pyarrow has its own family of errors, and so has a file system
        raise UserError(f"{place}: cannot be read as Parquet: {first_line(error)}") from None
    return {name: [as_cell(value) for value in values] for name, values in columns.items()}


def read_columns(file: Any) -> dict[str, list[Any]]:
    """Only the columns that matter, for others may be big; the names of all."""
    names = file.schema_arrow.names
    columns: dict[str, list[Any]] = file.read([n for n in names if n in COLUMNS]).to_pydict()
    return {name: columns.get(name, []) for name in names}


def as_cell(value: Any) -> str | list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of whole numbers with a gap becomes floats in pandas
    return "" if value is None else str(value)
