"""What a run that writes one file has done so far, so that the same command goes on from there.

`.NAME.partial` beside the file: a line with what decides the outputs, then a line for each image. A
row counts as long as its file has the size and time that it had; what could not be read is tried
again. The journal goes when the file is whole.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import to_json
from vitrail.data.reader import Item
from vitrail.inference.arrow import prediction_row, text
from vitrail.inference.predict import Prediction

KIND = "vitrail predictions, format 1"


class Journal:
    """Predictions that are kept while they are computed; for one process at a time."""

    def __init__(self, out: Path, settings: dict[str, Any], *, restart: bool = False) -> None:
        """Begin a journal for `out`, or go on with the one that is there; `restart` begins anew
        where the settings are other ones."""
        self.path = out.with_name(f".{out.name}.partial")
        self.header = {"kind": KIND, **json.loads(to_json(settings))}
        self.known: dict[str, tuple[list[int], Prediction]] = {}
        self.kept = 0  # how many rows it has
        self.file: IO[str] | None = None
        self._read(restart)

    def resume(
        self,
        names: Iterable[Item],
        compute: Callable[[Iterator[Item]], Iterator[Prediction]],
        batch_size: int,
    ) -> Iterator[Prediction]:
        """A prediction for every name, in order: from the journal, or computed and added to it."""
        waiting: deque[tuple[str, list[int], Prediction | None]] = deque()

        def missing() -> Iterator[Item]:
            for name in names:
                assert isinstance(name, str), "images in memory are not resumed"
                stamp = [batch_size, *_stamp(name)]
                row = self.known.get(text(name))
                found = row[1] if row is not None and row[0] == stamp else None
                waiting.append((name, stamp, found))
                if found is None:
                    yield name

        self._begin()
        try:
            for one in compute(missing()):
                yield from _taken(waiting)
                name, stamp, _ = waiting.popleft()
                self._add(name, stamp, one)
                yield one
            yield from _taken(waiting)
        finally:
            self.close()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def remove(self) -> None:
        """The file is whole: nothing is left to go on with."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _read(self, restart: bool) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise UserError(f"{self.path.parent}: must be a directory, got a file") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: cannot be read: {error}") from None
        header = _parsed(lines[0]) if lines else None
        if header is None or header.get("kind") != KIND:
            raise UserError(f"{self.path}: is not Vitrail's, and is in the way: move it away")
        if header != self.header:
            if not restart:
                raise UserError(
                    f"{self.path}: holds what a run with another model or other options has done: "
                    "choose another --out, or add --overwrite to begin anew"
                )
            return
        for line in lines[1:]:
            with suppress(KeyError, TypeError, ValueError):
                row = _parsed(line) or {}  # the last may be half a line
                top = tuple((pair["label"], pair["score"]) for pair in row["top"])
                one = Prediction(row["name"], row["label"], row["score"], top)
                if row["problem"] is None:
                    self.known[one.name] = row["stamp"], one
        self.kept = len(self.known)

    def _begin(self) -> None:
        """Write anew what counts, so that half a line is never followed by another."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_name(f"{self.path.name}-{os.getpid()}")
            with draft.open("w", encoding="utf-8") as file:
                file.write(to_json(self.header) + "\n")
                for stamp, one in self.known.values():
                    file.write(to_json({**prediction_row(one), "stamp": stamp}) + "\n")
            os.replace(draft, self.path)
            self.file = self.path.open("a", encoding="utf-8")

    def _add(self, name: str, stamp: list[int], one: Prediction) -> None:
        if self.file is not None and one.problem is None:
            with writing(self.path):
                self.file.write(to_json({**prediction_row(one), "stamp": stamp}) + "\n")
                self.file.flush()
            self.kept += 1


def _taken(
    waiting: deque[tuple[str, list[int], Prediction | None]],
) -> Iterator[Prediction]:
    """Rows from the journal, up to the next that was computed."""
    while waiting and (found := waiting[0][2]) is not None:
        waiting.popleft()
        yield found


def _stamp(name: str) -> list[int]:
    """The size and time of a file; of an address nothing is known."""
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return []
    return [found.st_size, found.st_mtime_ns]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
