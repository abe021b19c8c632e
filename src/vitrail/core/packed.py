"""A JSON header and arrays as one run of bytes, which a browser reads without copying.

    uint32, little-endian   bytes of the header
    header                  JSON in UTF-8, padded with spaces to the next multiple of 8
    arrays                  in C order, little-endian, each at the next multiple of 8

The header's `arrays` gives for each name `dtype`, `shape` and `offset`, counted from the end of the
header, padding included. So every array begins at a multiple of 8 of the whole, too.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json

ALIGNMENT = 8
LENGTH = 4  # bytes of the length of the header
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
GZIP_LEVEL = 4  # for attention: a fifth smaller than 1 at 1.5 times the time; 9 takes 5 times


@dataclass(frozen=True)
class Packed:
    """Plain values, and arrays by their names."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def to_bytes(self) -> bytes:
        """
        >>> one = Packed({"grid": [2, 2]}, {"map": np.eye(2, dtype=np.float32)})
        >>> unpack(one.to_bytes()).arrays["map"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        if "arrays" in self.header:
            raise ValueError('the key "arrays" of a header is written here')
        described, parts, offset = {}, list[bytes](), 0
        for name, array in self.arrays.items():
            if array.dtype.name not in DTYPES:
                raise ValueError(f"{name} is of {array.dtype}, expected one of {', '.join(DTYPES)}")
            content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
            described[name] = {
                "dtype": array.dtype.name,
                "shape": list(array.shape),
                "offset": offset,
            }
            parts.append(content + b"\0" * (-len(content) % ALIGNMENT))
            offset += len(parts[-1])
        header = to_json({**self.header, "arrays": described}).encode()
        header += b" " * (-(LENGTH + len(header)) % ALIGNMENT)
        return b"".join([len(header).to_bytes(LENGTH, "little"), header, *parts])


def unpack(content: bytes) -> Packed:
    """What `Packed.to_bytes` wrote; arrays are views of these bytes, and cannot be written to."""
    end = LENGTH + int.from_bytes(content[:LENGTH], "little")
    if len(content) < LENGTH or end > len(content):
        raise UserError(
            f"packed arrays need a header of {end - LENGTH} bytes, got {len(content)} bytes in all"
        )
    try:
        header = json.loads(content[LENGTH:end])
        described = header.pop("arrays")
        arrays = {name: _read_array(content, end, **one) for name, one in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"packed arrays cannot be read: {error}") from None
    return Packed(header, arrays)


def _read_array(
    content: bytes, start: int, *, dtype: str, shape: list[int], offset: int
) -> NDArray[Any]:
    if dtype not in DTYPES:
        raise ValueError(f"an array is of {dtype!r}, expected one of {', '.join(DTYPES)}")
    kind = np.dtype(dtype).newbyteorder("<")
    if offset < 0 or any(side < 0 for side in shape):
        raise ValueError("an array has a negative side or offset")
    return np.frombuffer(content, kind, prod(shape), start + offset).reshape(shape)


def compress(content: bytes) -> bytes:
    """The same as gzip, quickly, for an answer with `Content-Encoding: gzip`; always the same bytes
    for the same content."""
    return gzip.compress(content, GZIP_LEVEL, mtime=0)
