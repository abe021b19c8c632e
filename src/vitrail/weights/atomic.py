"""Writing that happens whole or not at all: a temporary neighbour, flushed to the disk, renamed.

Where `out` is a symbolic link, what it stands for is written, and the link stays.
"""

import ctypes
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.core.errors import UserError

MAX_NAME = 180  # bytes: drafts beside a file have longer names, and 255 are the most
MAX_AGE = 24 * 60 * 60.0  # seconds: nobody writes a draft for longer


def check_writable(out: Path) -> None:
    """Refuse a place where nothing can be written, without writing: what exists above `out` must be
    a directory that takes files."""
    if len(os.fsencode(out.name)) > MAX_NAME:
        raise UserError(f"a file name must have at most {MAX_NAME} bytes, got {out.name[:40]}…")
    place = follow_link(out).absolute()
    above = next((path for path in place.parents if os.path.lexists(path)), place)
    if not above.is_dir():
        raise UserError(f"{out}: cannot be written: {above} is a file, not a directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{out}: cannot be written: no permission to write to {above}")


def follow_link(out: Path) -> Path:
    """The file or directory that a symbolic link stands for; anything else is itself."""
    if not os.path.islink(out):  # a name that is too long is none
        return out
    place = Path(os.path.realpath(out))
    if os.path.islink(place):
        raise UserError(f"{out}: cannot be written: it is a symbolic link that leads to itself")
    return place


def write_file(out: Path, fill: Callable[[Path], None], *, overwrite: bool = False) -> Path:
    """`fill` writes a file at the path it is given; `out` appears only when that has succeeded."""
    place = follow_link(out)
    with _draft_of(place, overwrite) as draft:
        fill(draft)
        _flush(draft)
        if place.is_dir():
            raise UserError(f"{out}: is a directory, where a file is to be written")
        os.replace(draft, place)
    return out


def write_directory(
    out: Path,
    fill: Callable[[Path], None],
    *,
    overwrite: bool = False,
    keep_others: bool = False,
) -> Path:
    """`fill` writes files into the directory it is given; `out` appears when all are on the disk.

    An old directory is replaced whole, so it may hold nothing but files that the new one has too;
    with `keep_others` the new one gets them as well.
    """
    place = follow_link(out)
    with _draft_of(place, overwrite) as draft:
        draft.mkdir()
        fill(draft)
        for file in (*draft.rglob("*"), draft):
            _flush(file)
        refuse_existing(place, overwrite)  # it may have come meanwhile
        if keep_others and place.is_dir():
            _carry_over(draft, place)
        _refuse_loss(draft, place)
        if not os.path.lexists(place):
            os.rename(draft, place)
        elif not exchange(draft, place):
            _step_aside(draft, place)
    return out


def write_together(out: Path, fill: Callable[[Path], None], *, overwrite: bool = False) -> Path:
    """`fill` writes `out`, under its own name, and what belongs beside it into the directory it is
    given; all of them appear beside each other when all are on the disk, `out` last. Each is a file
    or a directory; one that exists is replaced with `overwrite` alone. `out` must be no symbolic
    link: `follow_link` gives what it stands for, beside which the others belong."""
    assert not out.is_symlink()
    with _draft_of(out, overwrite) as draft:
        draft.mkdir()
        fill(draft)
        parts = sorted(draft.iterdir(), key=lambda part: part.name == out.name)
        for part in (*draft.rglob("*"), draft):
            _flush(part)
        places = [follow_link(out.with_name(part.name)) for part in parts]
        for part, place in zip(parts, places, strict=True):
            refuse_existing(place, overwrite)
            if os.path.lexists(place) and part.is_dir() != place.is_dir():
                kind = "file" if part.is_file() else "directory"
                raise UserError(f"{place}: cannot be replaced: it is no {kind}")
        for part, place in zip(parts, places, strict=True):
            if not (part.is_dir() and os.path.lexists(place)):
                os.replace(part, place)
            elif not exchange(part, place):
                _step_aside(part, place)
    return out


@contextmanager
def _draft_of(out: Path, overwrite: bool) -> Iterator[Path]:
    """A name beside `out` to write under; nothing is left there, whatever happens."""
    refuse_existing(out, overwrite)
    place = Path(os.path.abspath(out))
    if not place.name:
        raise UserError(f"{out}: cannot be written: it is the root of the file system")
    draft = draft_beside(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        sweep_drafts(place)
        yield draft
        _flush(place.parent)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        _remove(draft)


def draft_beside(place: Path) -> Path:
    """The name under which this process writes what will be at `place`; the suffix stays last,
    because writers choose their format by it."""
    return place.with_name(f"{_prefix(place)}{os.getpid()}{place.suffix}")


def _prefix(place: Path) -> str:
    return f".{place.stem}.tmp-{socket.gethostname()}-"


def sweep_drafts(place: Path) -> None:
    """Remove what a process of this machine that is no more left when it was killed."""
    prefix = _prefix(place)
    for left in place.parent.iterdir():
        number = left.name.removeprefix(prefix).removesuffix(place.suffix)
        if left.name.startswith(prefix) and number.isdecimal() and not _is_running(int(number)):
            _remove(left)
    _remove(place.with_name(f"{prefix}{os.getpid()}{place.suffix}"))


def is_left_over(draft: Path) -> bool:
    """Whether nobody writes a draft any more: its process is no more, or it is a day old, as that
    of another machine may be that shares the directory."""
    before, _, number = draft.name.removesuffix(".old").rpartition("-")
    is_ours = before.endswith(f".tmp-{socket.gethostname()}") and number.isdecimal()
    if is_ours and not _is_running(int(number)):
        return True
    try:
        return time.time() - draft.stat().st_mtime > MAX_AGE
    except OSError:  # it is gone
        return False


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's, or no number of a process
        return True
    return True


def _remove(path: Path) -> None:
    if os.path.islink(path) or os.path.isfile(path):
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def refuse_existing(out: Path, overwrite: bool) -> None:
    if os.path.lexists(follow_link(out)) and not overwrite:
        raise UserError(f"{out}: already exists: choose another name, or pass overwrite=True")


def _refuse_loss(draft: Path, out: Path) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file, where a directory is to be written")
    written = {file.name for file in draft.iterdir()}
    if lost := sorted(file.name for file in out.iterdir() if file.name not in written):
        raise UserError(
            f"{out}: overwriting it would delete {lost[0]}, which is no part of the new one: "
            "choose another name, or move that away"
        )


def _carry_over(draft: Path, out: Path) -> None:
    """Give the new directory what it lacks of the old one: the same files under a second name."""
    written = {file.name for file in draft.iterdir()}
    for other in out.iterdir():
        if other.name in written:
            continue
        if other.is_dir() and not other.is_symlink():
            shutil.copytree(other, draft / other.name, symlinks=True, copy_function=_link)
        else:
            _link(other, draft / other.name)


def _link(file: str | Path, second: str | Path) -> None:
    try:
        os.link(file, second, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(file, second, follow_symlinks=False)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step where the system can, so that at no moment one of them is gone."""
    if os.name != "posix":
        return False
    system = ctypes.CDLL(None)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(system, "renameat2"):  # Linux: relative to the working directory, RENAME_EXCHANGE
        here = -100
        return system.renameat2(here, names[0], here, names[1], 2) == 0
    if hasattr(system, "renamex_np"):  # macOS: RENAME_SWAP
        return system.renamex_np(*names, 2) == 0
    return False


def _step_aside(draft: Path, out: Path) -> None:
    """The next best: the old directory has another name until the new one stands."""
    aside = draft.with_name(f"{draft.name}.old")
    _remove(aside)
    os.rename(out, aside)
    try:
        os.rename(draft, out)
    except OSError:
        os.rename(aside, out)
        raise
    _remove(aside)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
