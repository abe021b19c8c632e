"""A safetensors file written tensor by tensor: never more than one of them is in memory."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
NAMES = {name: dtype for dtype, name in DTYPES.items()}
BLOCK = 1 << 24  # bytes that are written at once


@dataclass(frozen=True)
class Planned:
    """A tensor to be written: what it is, and how to get it when its turn comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def planned(tensors: Mapping[str, Tensor]) -> dict[str, Planned]:
    """Tensors that are there already."""
    return {
        name: Planned(t.dtype, tuple(t.shape), lambda t=t: t)  # type: ignore[misc]
        for name, t in tensors.items()
    }


def write_planned(tensors: Mapping[str, Planned], path: Path) -> str:
    """Write the file as safetensors itself would, and give its SHA-256."""
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        one, start, end = tensors[name], end, end + tensors[name].nbytes
        header[name] = {
            "dtype": DTYPES[one.dtype], "shape": list(one.shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    total = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        _write(descriptor, memoryview(len(text).to_bytes(8, "little") + text), total)
        for name in names:
            tensor = tensors[name].make()
            assert (tensor.dtype, tuple(tensor.shape)) == (tensors[name].dtype, tensors[name].shape)
            if tensor.numel():
                values = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
                _write(descriptor, memoryview(values.numpy().data), total)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return total.hexdigest()


def _write(descriptor: int, values: memoryview, total: "hashlib._Hash") -> None:
    for start in range(0, len(values), BLOCK):
        left = values[start : start + BLOCK]
        total.update(left)
        while left:
            left = left[os.write(descriptor, left) :]
