"""Tensors of the Open Inference Protocol v2 with its binary extension: a JSON header, then the
bytes of each tensor. https://github.com/kserve/open-inference-protocol. No torch here."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY = "application/octet-stream"
TYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


def encode_request(
    name: str, tensor: NDArray[np.generic], outputs: Sequence[str]
) -> tuple[bytes, int]:
    """The body of a request with one tensor that wants these outputs, and the length of its header.

    >>> body, length = encode_request("images", np.zeros((1, 2), np.float32), ["logits"])
    >>> len(body) - length, json.loads(body[:length])["inputs"][0]["datatype"]
    (8, 'FP32')
    """
    kinds = {np.dtype(code): name for name, code in TYPES.items()}
    if tensor.dtype not in kinds:
        raise UserError(f"a tensor must be one of {', '.join(TYPES)}, got {tensor.dtype}")
    data = np.ascontiguousarray(tensor).tobytes()
    header = {
        "inputs": [
            {
                "name": name,
                "shape": list(tensor.shape),
                "datatype": kinds[tensor.dtype],
                "parameters": {"binary_data_size": len(data)},
            }
        ],
        "outputs": [{"name": one, "parameters": {"binary_data": True}} for one in outputs],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + data, len(text)


def decode_response(
    body: bytes, header_length: int | None, *, where: str
) -> dict[str, NDArray[np.generic]]:
    """The tensors of a response by their names; all JSON if it has no header length."""
    try:
        header = json.loads(body if header_length is None else body[:header_length])
        rows = header["outputs"]
        rest, found = memoryview(body)[header_length or len(body) :], {}
        for row in rows:
            size = row.get("parameters", {}).get("binary_data_size")
            data = None if size is None else rest[:size]
            found[str(row["name"])] = to_array(row, data)
            rest = rest[size or 0 :]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{where}: not a response of the protocol v2: {error}") from None
    return found


def to_array(row: Mapping[str, Any], data: memoryview | None) -> NDArray[np.generic]:
    kind = np.dtype(TYPES[row["datatype"]])
    flat = np.asarray(row["data"], kind) if data is None else np.frombuffer(data, kind)
    return flat.reshape(row["shape"])
