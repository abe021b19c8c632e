"""Where files are: on this machine, or behind a URL that fsspec understands (s3://, gs://, …)."""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from typing import Any, TypeVar

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage, Unreadable, check_bytes

T = TypeVar("T")

# Folders that archives and file managers leave behind, beside those whose name begins with a dot.
LITTER = {"__MACOSX", "@eaDir"}
# Seconds before a read is retried, and errors for which retrying is useless.
PAUSES = (0.1, 0.5, 2.0)
LONG_PAUSES = (0.1, 0.5, 2.0, 5.0, 10.0)  # for what every image depends on
LASTING = (
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    UserError,
    ValueError,
)


@dataclass(frozen=True)
class Listing:
    """Everything visible below a folder, as paths relative to it, sorted, with / between parts."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


def is_remote(place: str) -> bool:
    return "://" in place


def join(root: str, path: str) -> str:
    """A path as seen from a folder; an absolute path or a URL stays what it is."""
    if is_remote(path) or not root:
        return path
    return f"{root.rstrip('/')}/{path}" if is_remote(root) else os.path.join(root, path)


def parent(place: str) -> str:
    return place.rpartition("/")[0] if is_remote(place) else os.path.dirname(place)


def file_system(place: str) -> tuple[Any, str]:
    """fsspec's file system of a URL and the path within it."""
    import fsspec  # type: ignore[import-untyped]

    try:
        return fsspec.core.url_to_fs(place)  # fsspec keeps one per process, safe for threads
    except (ImportError, ValueError) as error:
        raise UserError(f"{place}: cannot be reached: {first_line(error)}") from None


def read_bytes(place: str, start: int = 0, end: int | None = None) -> bytes:
    """A file, or a stretch of one; raises `OSError`."""
    if is_remote(place):
        system, path = file_system(place)
        return bytes(system.cat_file(path, start=start or None, end=end))
    with open(place, "rb") as file:
        file.seek(start)
        return file.read() if end is None else file.read(end - start)


def file_size(place: str) -> int:
    """Bytes of a file; raises `OSError`."""
    if is_remote(place):
        system, path = file_system(place)
        return int(system.size(path))
    return os.stat(place).st_size


def retried(work: Callable[[], T], pauses: Sequence[float] | None = None) -> T:
    """What `work` gives, tried again after longer and longer pauses where storage fails; what a
    pause cannot mend is raised at once."""
    for pause in LONG_PAUSES if pauses is None else pauses:
        try:
            return work()
        except Exception as error:  # a remote file system fails in ways of its own
            if isinstance(error, LASTING) or is_missing(error):
                raise
            time.sleep(pause)
    return work()


def is_missing(error: Exception) -> bool:
    """Whether a file is not there. fsspec says so of http addresses whatever went wrong; the cause
    knows better."""
    if not isinstance(error, FileNotFoundError):
        return False
    return getattr(error.__cause__, "status", 404) in (404, 410)


def image_bytes(place: str, *, start: int = 0, end: int | None = None, name: str = "") -> bytes:
    """The same for an image: whatever goes wrong is the image's own trouble. Storage that does not
    answer is retried a few times, after longer and longer pauses; a file that is not there, or that
    may not be read, is a broken image at once."""
    name = name or place
    for pause in (*PAUSES, None):
        try:
            if not is_remote(place):
                facts = os.stat(place)
                if not stat.S_ISREG(facts.st_mode):
                    raise BadImage(name, "not a file")  # a pipe would never end
                check_bytes(facts.st_size if end is None else end - start, name)
            data = read_bytes(place, start, end)
        except BadImage:
            raise
        except Exception as error:  # a remote file system fails in ways of its own
            if is_missing(error):
                raise BadImage(name, "no such file") from None
            why, lasts = reason(error), isinstance(error, LASTING)
            if lasts and not is_remote(place):
                raise BadImage(name, f"cannot be read: {why}") from None
        else:
            if end is None or len(data) == end - start:
                return data
            why, lasts = f"{place} has become shorter", False
            if not is_remote(place):
                raise BadImage(name, f"cannot be read: {why}")
        if lasts or pause is None:
            break
        time.sleep(pause)
    raise Unreadable(name, f"cannot be read: {why}")


def stamp(place: str) -> str:
    """Size and time of a file, or what a remote file system has instead."""
    if is_remote(place):
        system, path = file_system(place)
        try:
            return str(system.ukey(path))
        except OSError:
            return "missing"
    try:
        facts = os.stat(place)
    except OSError:
        return "missing"
    return f"{facts.st_size}:{facts.st_mtime_ns}"


def exists(place: str) -> bool:
    return bool(ask(place, "exists")) if is_remote(place) else os.path.exists(place)


def is_folder(place: str) -> bool:
    return bool(ask(place, "isdir")) if is_remote(place) else os.path.isdir(place)


def find(pattern: str) -> list[str]:
    """The files that a shell pattern names, sorted."""
    if is_remote(pattern):
        system, _ = file_system(pattern)
        return sorted(system.unstrip_protocol(path) for path in ask(pattern, "glob"))
    return sorted(glob(pattern))


def ask(place: str, question: str) -> Any:
    """Call a method of a remote file system, and tell a person where that fails."""
    system, path = file_system(place)
    try:
        return retried(lambda: getattr(system, question)(path), PAUSES)
    except Exception as error:  # credentials, network, a bucket that is not there
        raise UserError(f"{place}: cannot be reached: {first_line(error)}") from None


def list_folder(root: str) -> Listing:
    """All that lies below a folder, hidden files aside; links are followed, circles are not."""
    if is_remote(root):
        return _list_remote(root)
    files: list[str] = []
    folders: list[str] = []
    for path, is_directory in _walk(root, "", ()):
        (folders if is_directory else files).append(path)
    return Listing(tuple(sorted(files)), tuple(sorted(folders)))


def _walk(root: str, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, bool]]:
    folder = os.path.join(root, below)
    try:
        facts = os.stat(folder)
        entries = list(os.scandir(folder))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed: {error.strerror or error}") from None
    here = (facts.st_dev, facts.st_ino)
    if here in above:
        return  # a link that leads back up
    for entry in entries:
        if is_hidden(entry.name):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir():
            yield path, True
            yield from _walk(root, path, (*above, here))
        elif entry.is_file() or entry.is_symlink():  # a dangling link is a broken image
            yield path, False


def _list_remote(root: str) -> Listing:
    system, path = file_system(root)
    try:
        found = retried(lambda: system.find(path, withdirs=True, detail=True), PAUSES)
    except Exception as error:
        raise UserError(f"{root}: cannot be listed: {first_line(error)}") from None
    prefix = path.rstrip("/") + "/"
    files: list[str] = []
    folders: list[str] = []
    for name, facts in found.items():
        below = name[len(prefix) :].rstrip("/")
        if not name.startswith(prefix) or not below or any(map(is_hidden, below.split("/"))):
            continue
        (folders if facts["type"] == "directory" else files).append(below)
    return Listing(tuple(sorted(files)), tuple(sorted(folders)))


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name in LITTER


def reason(error: Exception) -> str:
    """Why a file could not be read, without its name, which stands beside it."""
    return getattr(error, "strerror", None) or first_line(error)


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
