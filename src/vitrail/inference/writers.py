"""Predictions as people and programs read them: lines, JSON lines, CSV, Parquet."""

import csv
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json, utf8_name
from vitrail.data.threads import batched
from vitrail.inference.arrow import (
    prediction_schema,
    prediction_table,
    pyarrow,
)
from vitrail.inference.prediction import Prediction
from vitrail.weights.atomic import write_file

ROWS = 4096  # of Parquet that are gathered before they are written


def format_json(one: Prediction) -> str:
    """
    >>> format_json(Prediction("cat.jpg", "cat", 0.75, (("cat", 0.75),)))[:44]
    '{"name": "cat.jpg", "label": "cat", "score":'
    """
    return to_json(one.facts())


def write_predictions(
    out: Path, predictions: Iterable[Prediction], *, top: int, overwrite: bool = False
) -> None:
    """One file in the format that its suffix says, whole or not at all."""
    writer = find_writer(out)
    write_file(out, lambda draft: writer(draft, predictions, top), overwrite=overwrite)


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuse, before anything is computed, a file that could not be written."""
    find_writer(out)
    if out.is_dir():
        raise UserError(f"{out}: must be a file, got a directory")
    if os.path.lexists(out) and not overwrite:
        raise UserError(f"{out}: already exists: choose another name, or pass overwrite=True")


def find_writer(out: Path) -> Callable[[Path, Iterable[Prediction], int], None]:
    if out.suffix.lower() not in WRITERS:
        raise UserError(f"out must be a file that ends in {', '.join(WRITERS)}, got {str(out)!r}")
    if out.suffix.lower() == ".parquet":
        pyarrow()  # it is missed now rather than after the last image
    return WRITERS[out.suffix.lower()]


def write_json_lines(draft: Path, predictions: Iterable[Prediction], top: int) -> None:
    with draft.open("w", encoding="utf-8") as file:
        file.writelines(f"{format_json(one)}\n" for one in predictions)


def write_csv(draft: Path, predictions: Iterable[Prediction], top: int) -> None:
    """A column for each of the `top` labels and scores; problem is empty where there is none."""
    more = (word for place in range(2, top + 1) for word in (f"label_{place}", f"score_{place}"))
    with draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "label", "score", *more, "problem"])
        for one in predictions:
            cells = [cell for pair in one.top for cell in pair]
            blank = [""] * (2 * top - len(cells))
            writer.writerow([utf8_name(one.name), *cells, *blank, one.problem or ""])


def write_parquet(draft: Path, predictions: Iterable[Prediction], top: int) -> None:
    parquet = pyarrow("pyarrow.parquet")
    with parquet.ParquetWriter(draft, prediction_schema()) as writer:
        for rows in batched(predictions, ROWS):
            writer.write_table(prediction_table(rows))


WRITERS: dict[str, Callable[[Path, Iterable[Prediction], int], None]] = {
    ".jsonl": write_json_lines,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
