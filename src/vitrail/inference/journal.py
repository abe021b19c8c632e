"""What a run that writes one file has done so far, so that the same command goes on from there.

`.NAME.partial` beside the file: a line with what decides the outputs, then a line for each image. A
row counts as long as its file has the size and time that it had; what could not be read is tried
again. The journal goes when the file is complete.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import to_json, utf8_name
from vitrail.data.reader import Item
from vitrail.inference.engines.catalogue import EAGER
from vitrail.inference.predict import Prediction
from vitrail.inference.speed_up import SpeedUp

KIND = "vitrail predictions, format 1"


class Journal:
    """Predictions that are kept while they are computed; for one process at a time."""

    def __init__(self, out: Path, settings: dict[str, Any], *, restart: bool = False) -> None:
        """Begin a journal for `out`, or go on with the one that is there; `restart` starts again
        where the settings are other ones."""
        self.path = journal_path(out)
        self.header = header_of(settings)
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
                row = self.known.get(utf8_name(name))
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
        """The file is complete: nothing is left to go on with."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _read(self, restart: bool) -> None:
        header, rows = read_journal(self.path)
        if header is None:
            return
        if header != self.header:
            if not restart:
                raise UserError(
                    f"{self.path}: holds the progress of a run with another model or other "
                    f"options: choose another file, or pass overwrite=True to start again"
                )
            return
        for line in rows:
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
                    file.write(to_json({**one.facts(), "stamp": stamp}) + "\n")
            os.replace(draft, self.path)
            self.file = self.path.open("a", encoding="utf-8")

    def _add(self, name: str, stamp: list[int], one: Prediction) -> None:
        if self.file is not None and one.problem is None:
            with writing(self.path):
                self.file.write(to_json({**one.facts(), "stamp": stamp}) + "\n")
                self.file.flush()
            self.kept += 1


def journal_path(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def header_of(settings: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": KIND, **json.loads(to_json(settings))}
    return found


def read_journal(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The first line of a journal, if there is one, and the others unread."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None, []
    except NotADirectoryError:
        raise UserError(f"{path.parent}: must be a directory, got a file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    header = _parsed(lines[0]) if lines else None
    if header is None or header.get("kind") != KIND:
        raise UserError(f"{path}: was not written by Vitrail: move it away")
    return {"engine": EAGER, **header}, lines[1:]  # journals had no engine when there was one


def stopped_engine(out: Path, settings: dict[str, Any]) -> str | None:
    """The engine of a run to this file that stopped, if it had these settings."""
    header, _ = read_journal(journal_path(out))
    if header is None or header != {**header_of(settings), "engine": header["engine"]}:
        return None
    return str(header["engine"])


def speed_up_facts(wanted: float | None, found: SpeedUp) -> dict[str, Any]:
    """What a journal keeps of merged tokens: what was wanted, and what was measured."""
    return {"wanted": wanted, **asdict(found)}


def stopped_speed_up(out: Path, wanted: float) -> SpeedUp | None:
    """The tokens that a run to this file merged which stopped, if the same speed-up was wanted: to
    measure again would give another number."""
    header, _ = read_journal(journal_path(out))
    with suppress(KeyError, TypeError):
        known = (header or {})["speed_up"]
        if known["wanted"] == wanted:
            return SpeedUp(known["r"], known["ratio"], known["engine"])
    return None


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
