"""Writing that happens whole or not at all: into a temporary neighbour, flushed to the disk, then renamed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from vitrail.core.errors import UserError


def write_file(out: Path, fill: Callable[[Path], None], *, overwrite: bool = False) -> Path:
    """`fill` writes a file at the path it is given; `out` appears only when that has succeeded."""
    _refuse_existing(out, overwrite)
    draft = _draft(out)
    try:
        fill(draft)
        _flush(draft)
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)
    _flush(out.parent)
    return out


def write_directory(out: Path, fill: Callable[[Path], None], *, overwrite: bool = False) -> Path:
    """`fill` writes files into the directory it is given; `out` appears only when all are on the disk."""
    _refuse_existing(out, overwrite)
    draft = _draft(out)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        fill(draft)
        for file in draft.iterdir():
            _flush(file)
        _flush(draft)
        _swap(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _flush(out.parent)
    return out


def _swap(draft: Path, out: Path) -> None:
    """A directory cannot be renamed over a full one, so the old one steps aside until the new one stands."""
    aside = out.with_name(f".{out.name}.old-{os.getpid()}")
    if out.exists():
        os.replace(out, aside)
    try:
        os.replace(draft, out)
    except OSError:
        if aside.exists():
            os.replace(aside, out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _refuse_existing(out: Path, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        raise UserError(f"{out}: exists already: choose another name, or say overwrite")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error}") from None


def _draft(out: Path) -> Path:
    # the suffix stays last, because writers choose their format by it
    return out.with_name(f".{out.stem}.tmp-{os.getpid()}{out.suffix}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
