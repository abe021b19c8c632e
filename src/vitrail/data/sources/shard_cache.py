"""Shards of remote storage on this machine's disk, each downloaded once, within a limit.

A shard is written beside its name and renamed, so that a file that is there is whole. Processes
that want the same shard wait for one of them to download it. When the limit is passed the shards
that were not used for longest are deleted; one that somebody still reads stays readable to them. A
limit of 0, or one smaller than a shard, means reading from storage each time.

    VITRAIL_SHARD_CACHE      the directory, by default vitrail-shards in the temporary one
    VITRAIL_SHARD_CACHE_GB   the limit, by default 50
"""

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

from vitrail.core.errors import UserError
from vitrail.data.sources.places import file_size, file_system, retried, stamp

DIRECTORY, LIMIT = "VITRAIL_SHARD_CACHE", "VITRAIL_SHARD_CACHE_GB"
DEFAULT_GB = 50.0
CHUNK = 2**23  # bytes of one request
MAX_OPEN = 128  # files of a process, which reads from 64 shards in turn (`shard_order.LANES`)
STALE = 3600.0  # seconds after which nobody writes to a draft any more
FRESH = 60.0  # seconds for which a shard need not be marked as used again


@dataclass
class OpenFile:
    """A file, and when it was used, to within `FRESH` seconds."""

    descriptor: int
    used: float


class ShardCache:
    """The directory and its limit in bytes."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory, self.limit = directory, limit
        self.open_files: dict[str, OpenFile] = {}  # the one that was used last is last
        self.process, self.lock = os.getpid(), Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardCache, (self.directory, self.limit)

    def read(self, shard: str, start: int, end: int) -> bytes | None:
        """A stretch of a shard, which is downloaded if it is not there; None where it is larger
        than the limit. Raises OSError as storage does."""
        if os.getpid() != self.process:  # a forked worker, in which a lock may never be released
            self.open_files, self.process, self.lock = {}, os.getpid(), Lock()
        with self.lock:  # or another thread could close the file meanwhile
            if shard in self.open_files:
                return os.pread(self.remember(shard), end - start, start)
        path = self.fetch(shard)
        if path is None:
            return None
        with self.lock:
            return os.pread(self.remember(shard, path), end - start, start)

    def remember(self, shard: str, path: Path | None = None) -> int:
        """The descriptor of a file that stays open, so that it stays readable when another process
        deletes it to make room, and that is marked as used, so that others are deleted first."""
        now = time.monotonic()
        if shard not in self.open_files:
            assert path is not None
            self.close_unused(now)
            self.open_files[shard] = OpenFile(os.open(path, os.O_RDONLY), now)
        file = self.open_files[shard] = self.open_files.pop(shard)
        if now - file.used > FRESH:
            file.used = now
            with suppress(OSError):
                os.utime(file.descriptor)
        return file.descriptor

    def close_unused(self, now: float) -> None:
        """Make room for one more open file. One that is deleted takes up the disk for as long as it
        is open, beyond the limit: it is closed when nobody has read it for a while."""
        for shard, file in list(self.open_files.items()):
            deleted = not os.fstat(file.descriptor).st_nlink and now - file.used > 2 * FRESH
            if deleted or len(self.open_files) >= MAX_OPEN:
                os.close(self.open_files.pop(shard).descriptor)

    def fetch(self, shard: str) -> Path | None:
        path = self.directory / name_of(shard, retried(lambda: stamp(shard)))
        if path.exists():
            if time.time() - path.stat().st_mtime > FRESH:
                with suppress(OSError):
                    os.utime(path)
            return path
        size = retried(lambda: file_size(shard))
        if size > self.limit:
            return None
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.locked(path):
            if not path.exists():  # nobody else was faster
                self.make_room(size, keep=path)
                if not self.download(shard, size, path):
                    return None
        return path

    def download(self, shard: str, size: int, path: Path) -> bool:
        """False where the disk is full: from then on storage is read each time."""
        system, remote = file_system(shard)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with draft.open("wb") as file:
                for start in range(0, size, CHUNK):
                    end = min(start + CHUNK, size)
                    file.write(retried(partial(read_range, system, remote, start, end)))
            os.replace(draft, path)
            return True
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.limit = 0
            return False
        finally:
            draft.unlink(missing_ok=True)

    def make_room(self, size: int, keep: Path) -> None:
        """Delete what was not used for longest until `size` fits."""
        for draft in self.directory.glob("*.tmp"):  # of a process that was killed long ago
            with suppress(OSError):
                if time.time() - draft.stat().st_mtime > STALE:
                    draft.unlink()
        files = []
        for path in self.directory.glob("*.tar"):
            with suppress(OSError):
                facts = path.stat()
                files.append((facts.st_mtime, facts.st_size, path))
        total = sum(found[1] for found in files)
        for _, taken, path in sorted(files):
            if total + size <= self.limit:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= taken

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        with path.with_suffix(".lock").open("w") as file:
            try:
                import fcntl
            except ImportError:  # Windows: two that download the same write the same
                yield
                return
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def read_range(system: Any, remote: str, start: int, end: int) -> bytes:
    data = bytes(system.cat_file(remote, start=start, end=end))
    if len(data) != end - start:
        raise OSError(f"{len(data)} bytes in place of {end - start}")
    return data


def name_of(shard: str, version: str) -> str:
    """A file name for an address: its own, behind a digest of all of it and of what is there."""
    text = f"{shard}\0{version}".encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=12).hexdigest()
    return f"{digest}-{shard.rpartition('/')[2].removesuffix('.tar')[:60]}.tar"


def shard_cache() -> ShardCache:
    """As the environment says."""
    text = os.environ.get(LIMIT, str(DEFAULT_GB))
    try:
        limit = float(text)
        if not limit >= 0:
            raise ValueError
    except ValueError:
        raise UserError(f"{LIMIT} must be a number of gigabytes, got {text!r}") from None
    default = Path(tempfile.gettempdir()) / f"vitrail-shards-{os.getuid()}"
    return ShardCache(Path(os.environ.get(DIRECTORY) or default), int(limit * 1e9))
