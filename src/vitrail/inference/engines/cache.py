"""What engines built, kept between runs: a directory for each entry, bounded in size.

    ~/.cache/vitrail/engines/KEY/record.json   what the entry is, and the digests of its files
    ~/.cache/vitrail/engines/KEY/…             the files of an engine

The key holds everything that decides an entry: the model's values, the plan, versions, the code and
the processor. So an entry of another CPU or version is never found, and the oldest ones go when the
directory grows too large. An entry appears complete or not at all; one that is damaged is removed
and built again. $VITRAIL_CACHE names another place than ~/.cache/vitrail.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitrail.core.errors import UserError, printable
from vitrail.core.json_text import to_json
from vitrail.core.processor import processor
from vitrail.weights.atomic import is_left_over, write_directory

FORMAT = 1
RECORD = "record.json"
MAX_BYTES = 4 * 2**30  # of all entries together; the newest one stays whatever its size
KEY = re.compile(r"[0-9a-f]{64}")
DRAFT = re.compile(r"\.[0-9a-f]{64}\.tmp-.+")  # of an entry that is being built
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CODE = ("layers", "models", "inference")  # rooms that decide what is built

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where entries are."""
    if named := os.environ.get("VITRAIL_CACHE"):
        return Path(named) / "engines"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vitrail" / "engines"


def make_key(**facts: Any) -> str:
    """The name of the entry with these facts, on this machine, by this code."""
    every = {**facts, "format": FORMAT, "processor": processor(), "code": code_digest()}
    return hashlib.sha256(to_json(every).encode()).hexdigest()


@cache
def code_digest() -> str:
    """The same as long as the code that builds is the same."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for file in sorted(file for room in CODE for file in (package / room).rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Entry:
    """A directory of files, and the facts about them."""

    folder: Path
    facts: Mapping[str, Any]


def find_entry(key: str) -> Entry | None:
    """A complete entry, from now on the newest; what is damaged is removed."""
    folder = cache_folder() / key
    if not os.path.exists(folder):  # where Path.exists raises for a name that is too long
        return None
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        for name, digest in record["files"].items():
            if file_digest(folder / name) != digest:
                raise ValueError(f"{name} is damaged")
        facts = dict(record["facts"])
    except (
        FileNotFoundError,
        NotADirectoryError,
        IsADirectoryError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        remove_entry(key)
        return None
    except OSError as error:  # too many open files, no permission: the entry may be a good one
        logger.warning("the cache of engines cannot be read, going on without: %s", error)
        return None
    with suppress(OSError):
        os.utime(folder / RECORD)
    return Entry(folder, facts)


def has_entry(key: str) -> bool:
    """Whether there is an entry, complete or damaged."""
    return os.path.exists(cache_folder() / key / RECORD)


@contextmanager
def new_entry(key: str, facts: Mapping[str, Any], fill: Callable[[Path], None]) -> Iterator[Entry]:
    """The entry that `fill` writes into a directory. Where the cache cannot be written, it lies in
    a temporary directory as long as this lasts."""
    folder = cache_folder() / key
    failed: list[BaseException] = []

    def write(draft: Path) -> None:
        try:
            fill(draft)
        except BaseException as error:
            if not is_unwritable(error):
                failed.append(error)
            raise
        write_record(draft, facts)

    with suppress(OSError):
        if folder.is_symlink():
            folder.unlink()  # or its target would be written
    try:
        write_directory(folder, write, overwrite=True)
    except UserError as error:
        if failed:
            raise failed[0] from None
        warn_unwritable(str(error))
        with TemporaryDirectory(prefix="vitrail-") as place:
            fill(Path(place))
            yield Entry(Path(place), facts)
        return
    drop_oldest(keep=key)
    yield Entry(folder, facts)


def is_unwritable(error: BaseException) -> bool:
    """Whether a build failed because of where it writes: a full disk, or no permission. Any other
    `OSError` is the engine's own, such as a compiler that is missing."""
    return isinstance(error, OSError) and error.errno in UNWRITABLE


def write_record(folder: Path, facts: Mapping[str, Any]) -> None:
    files = {file.name: file_digest(file) for file in folder.iterdir() if file.name != RECORD}
    text = to_json({"facts": dict(facts), "files": files})
    (folder / RECORD).write_text(text, encoding="utf-8")


def file_digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@cache  # each sentence once
def warn_unwritable(sentence: str) -> None:
    logger.warning("the cache of engines cannot be written, going on without: %s", sentence)


def entries() -> list[Path]:
    """The directories of all entries, the one used longest ago first."""
    found = []
    with suppress(OSError):
        for folder in cache_folder().iterdir():
            if KEY.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
                found.append(folder)
    return sorted(found, key=last_used)


def left_over_drafts() -> list[Path]:
    """What builds that were killed left."""
    with suppress(OSError):
        return [
            draft
            for draft in cache_folder().iterdir()
            if DRAFT.fullmatch(draft.name) and not draft.is_symlink() and is_left_over(draft)
        ]
    return []


def last_used(folder: Path) -> float:
    try:
        return (folder / RECORD).stat().st_mtime
    except OSError:
        return 0.0


def entry_size(folder: Path) -> int:
    with suppress(OSError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0


def drop_oldest(*, keep: str) -> None:
    """Remove what killed builds left, and the entries used longest ago until the rest fits."""
    for draft in left_over_drafts():
        remove_entry(draft.name)
    folders = entries()
    total = sum(map(entry_size, folders))
    for folder in folders:
        if total <= MAX_BYTES:
            return
        if folder.name != keep:
            total -= entry_size(folder)
            remove_entry(folder.name)


def remove_entry(key: str) -> None:
    """Remove what lies in the place of an entry: its directory, or a file that took its name."""
    place = cache_folder() / key
    if os.path.isfile(place):
        with suppress(OSError):
            place.unlink()
    else:
        shutil.rmtree(place, ignore_errors=True)


def clear_cache() -> tuple[int, int]:
    """Remove every entry, and what killed builds left: how many these were, and their bytes."""
    folders = [*entries(), *left_over_drafts()]
    size = sum(map(entry_size, folders))
    for folder in folders:
        remove_entry(folder.name)
    if left := [*entries(), *left_over_drafts()]:
        raise UserError(printable(f"{left[0]}: cannot be removed: check its permissions"))
    return len(folders), size
