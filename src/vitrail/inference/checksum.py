"""Checksums at the end of an exported file, by which a damaged one is refused rather than run.

An .onnx file ends with an entry of its metadata, an .xml file with a comment: other programs read
both as before. Each holds the CRC-32 of all bytes before it, and of the weights in a second file.
"""

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from vitrail.core.errors import UserError

KEY = b"vitrail.crc32"
DIGITS = len("12345678 12345678")  # of the file and of its weights
NONE = "-" * 8  # there are no weights in a second file
CHUNK = 2**20  # bytes

# What stands before and after the digits. In ONNX: field 14 (metadata_props) of the model, an entry
# whose field 1 is its key and whose field 2 is its value, each with its length before it.
ENTRY = b"\x0a" + bytes([len(KEY)]) + KEY + b"\x12" + bytes([DIGITS])
FRAMES = {
    ".onnx": (b"\x72" + bytes([len(ENTRY) + DIGITS]) + ENTRY, b""),
    ".xml": (b"\n<!-- " + KEY + b" ", b" -->\n"),
}


def add_checksum(path: Path, weights: Path | None = None) -> None:
    """Append it to a file that has been written, with `weights` if they are in a second file."""
    before, after = FRAMES[path.suffix.lower()]
    second = NONE if weights is None else compute_checksum(weights)
    text = f"{compute_checksum(path)} {second}".encode()
    with path.open("ab") as file:
        file.write(before + text + after)


def find_weights(path: Path, beside: Callable[[Path], Path]) -> tuple[Path, Path]:
    """A file and its weights, which lie beside it; for a symbolic link, beside the link or beside
    the file that it stands for."""
    if path.is_symlink() and not beside(path).is_file():
        path = path.resolve()
    return path, beside(path)


def start_check(path: Path, weights: Path) -> "Future[bool]":
    """Begin to compare the checksums, beside what the caller does: see `has_checksum`."""
    pool = ThreadPoolExecutor(1)
    found = pool.submit(has_checksum, path, weights)
    pool.shutdown(wait=False)
    return found


def has_checksum(path: Path, weights: Path) -> bool:
    """Whether the file has a checksum; refused where its bytes, or those of its weights, are no
    longer what was exported."""
    try:
        return _compare_all(path, weights)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _compare_all(path: Path, weights: Path) -> bool:
    before, after = FRAMES[path.suffix.lower()]
    length = len(before) + DIGITS + len(after)
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - length))
        last = file.read()
    if len(last) < length or not (last.startswith(before) and last.endswith(after)):
        return False
    digits = last[len(before) : len(before) + DIGITS].decode("latin-1")
    _compare(path, digits[:8], compute_checksum(path, size - length))
    if digits[9:] != NONE:
        found = compute_checksum(weights) if weights.is_file() else "none"
        _compare(weights, digits[9:], found)
    return True


def _compare(path: Path, expected: str, found: str) -> None:
    if found != expected:
        raise UserError(
            f"{path}: is damaged, or was changed after the export: its CRC-32 must be {expected}, "
            f"got {found}: copy the file or export the model again"
        )


def compute_checksum(path: Path, size: int | None = None) -> str:
    """CRC-32 of the first `size` bytes of a file, or of all."""
    found, buffer = 0, bytearray(CHUNK)
    view, left = memoryview(buffer), path.stat().st_size if size is None else size
    with path.open("rb", buffering=0) as file:
        while left > 0 and (count := file.readinto(view[:left])):
            found, left = zlib.crc32(view[:count], found), left - count
    return f"{found:08x}"
