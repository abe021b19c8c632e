"""Tensors of the Open Inference Protocol: from a request to rows of float32, and back to an answer.

A body is JSON, or JSON followed by the bytes of tensors; then the header
`Inference-Header-Content-Length` has the length of the JSON.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.serving.bodies import read_object
from vitrail.serving.frames import Buffer
from vitrail.serving.problems import BadRequest, TooLarge
from vitrail.serving.spec import ModelInfo, Want

LENGTH_HEADER = "inference-header-content-length"
IMAGES, ENCODED = "images", "encoded_images"  # inputs: float32 (N, C, H, W), or files (N)
OUTPUTS: Mapping[str, Want] = {"logits": "logits", "pooled": "features"}  # as exported graphs
BYTES_LENGTH = 4  # before each element of a BYTES tensor
MAX_DIGITS = 12  # of a length
MAX_ID = 256  # letters
MORE_VALUES = 1024  # in the JSON of a request, beside the numbers of its images


@dataclass(frozen=True)
class Wanted:
    """An output of a request, as numbers in JSON or as bytes behind it."""

    name: str
    is_binary: bool


@dataclass(frozen=True)
class InferRequest:
    """The images of a request, each as its bytes, and what is wanted of them."""

    id: str
    payloads: list[Buffer]
    is_tensor: bool
    outputs: list[Wanted]


def split_body(
    body: bytes, header: str | None, *, max_values: int
) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a request, and the bytes behind it."""
    length = len(body)
    if header is not None:
        known = header.isascii() and header.isdecimal() and len(header) <= MAX_DIGITS
        if not known or int(header) > len(body):
            raise BadRequest(f"{LENGTH_HEADER} must be at most {len(body)}, got {header!r}")
        length = int(header)
    values = read_object(body[:length], "the request", max_values=max_values)
    return values, memoryview(body)[length:]


def parse_infer(
    body: bytes, header: str | None, info: ModelInfo, *, max_images: int
) -> InferRequest:
    """A request, or `BadRequest` with what does not fit."""
    numbers = max_images * info.channels * math.prod(info.image_size)
    values, rest = split_body(body, header, max_values=numbers + MORE_VALUES)
    inputs = values.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadRequest(f"inputs must be a list with one tensor, {IMAGES} or {ENCODED}")
    (tensor,) = inputs
    shape = read_shape(tensor)
    if shape and shape[0] > max_images:
        raise TooLarge(f"a request may have {max_images} images, got {shape[0]}")
    data = binary_part(tensor, rest)
    if tensor.get("name") == IMAGES:
        payloads, is_tensor = read_images(tensor, shape, data, info), True
    elif tensor.get("name") == ENCODED:
        payloads, is_tensor = read_encoded(tensor, shape, data), False
    else:
        raise BadRequest(f"the input must be {IMAGES} or {ENCODED}, got {tensor.get('name')!r}")
    request_id = values.get("id", "")
    if not isinstance(request_id, str) or len(request_id) > MAX_ID:
        raise BadRequest(f"id must be a text of at most {MAX_ID} letters")
    return InferRequest(request_id, payloads, is_tensor, read_outputs(values, info))


def read_shape(tensor: Mapping[str, Any]) -> list[int]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not shape or not all(is_side(side) for side in shape):
        raise BadRequest(f"shape must be a list of numbers of at least 1, got {short(shape)}")
    return shape


def is_side(side: object) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and 1 <= side < 2**31


def binary_part(tensor: Mapping[str, Any], rest: memoryview) -> memoryview | None:
    """The bytes of a tensor, if it is not in the JSON."""
    parameters = tensor.get("parameters", {})
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size != len(rest):
        raise BadRequest(f"binary_data_size must be the {len(rest)} bytes sent, got {short(size)}")
    return rest


def read_images(
    tensor: Mapping[str, Any], shape: list[int], data: memoryview | None, info: ModelInfo
) -> list[Buffer]:
    """Rows of a tensor that is prepared as the model reads it."""
    expected = [info.channels, *info.image_size]
    if tensor.get("datatype") != "FP32" or shape[1:] != expected:
        raise BadRequest(
            f"{IMAGES} must be FP32 of shape [N, {', '.join(map(str, expected))}], got "
            f"{short(tensor.get('datatype'))} of {short(shape)}"
        )
    row, count = 4 * math.prod(expected), shape[0]
    if data is None:
        data = memoryview(read_numbers(tensor.get("data"), math.prod(shape)).tobytes())
    if len(data) != row * count:
        raise BadRequest(f"{IMAGES} must have {row * count} bytes, got {len(data)}")
    return [data[number * row : (number + 1) * row] for number in range(count)]


def read_numbers(data: object, count: int) -> NDArray[np.float32]:
    """Numbers of a list, nested or flat."""
    if not isinstance(data, list):
        raise BadRequest(f"data must be a list of {count} numbers, got {short(data)}")
    try:
        found = np.asarray(data).ravel()
    except (TypeError, ValueError, OverflowError):
        raise BadRequest("data must be a list of numbers") from None
    if found.dtype.kind not in "iuf":
        raise BadRequest(f"data must be a list of numbers, got {short(found[:1].tolist())}")
    if len(found) != count:
        raise BadRequest(f"data must have {count} numbers, got {len(found)}")
    with np.errstate(over="ignore"):  # what is too large is refused below
        found = found.astype(np.float32)
    if not np.isfinite(found).all():
        raise BadRequest("data must be finite numbers of float32")
    return found.astype("<f4")


def read_encoded(
    tensor: Mapping[str, Any], shape: list[int], data: memoryview | None
) -> list[Buffer]:
    """Encoded images: elements of a BYTES tensor."""
    if tensor.get("datatype") != "BYTES" or len(shape) != 1 or data is None:
        raise BadRequest(f"{ENCODED} must be BYTES of shape [N], sent as binary data")
    found: list[Buffer] = []
    while data and len(found) <= shape[0]:  # one too many is enough: they may be empty
        if len(data) < BYTES_LENGTH:
            raise BadRequest(f"{ENCODED} ends within an element")
        (size,) = struct.unpack("<I", data[:BYTES_LENGTH])
        if BYTES_LENGTH + size > len(data):
            raise BadRequest(f"{ENCODED} ends within an element")
        found.append(data[BYTES_LENGTH : BYTES_LENGTH + size])
        data = data[BYTES_LENGTH + size :]
    if len(found) != shape[0]:
        more = " or more" if data else ""
        raise BadRequest(f"{ENCODED} must have {shape[0]} elements, got {len(found)}{more}")
    return found


def read_outputs(values: Mapping[str, Any], info: ModelInfo) -> list[Wanted]:
    """The outputs of a request; by default the model's first."""
    known = output_shapes(info)
    default = flag(values.get("parameters"), "binary_data_output")
    wanted = values.get("outputs") or [{"name": next(iter(known))}]
    if not isinstance(wanted, list) or not all(isinstance(one, dict) for one in wanted):
        raise BadRequest("outputs must be a list of objects")
    found = []
    for one in wanted:
        if not isinstance(one.get("name"), str) or one["name"] not in known:
            raise BadRequest(
                f"an output must be {' or '.join(known)}, got {short(one.get('name'))}"
            )
        parameters = one.get("parameters")
        if isinstance(parameters, dict) and parameters.get("classification"):
            raise BadRequest("classification is not supported: use /v1/predict")
        found.append(Wanted(one["name"], flag(parameters, "binary_data", default=default)))
    if len({one.name for one in found}) < len(found):
        raise BadRequest("every output may be wanted once")
    return found


def flag(parameters: object, name: str, *, default: bool = False) -> bool:
    value = parameters.get(name, default) if isinstance(parameters, dict) else default
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, got {short(value)}")
    return value


def output_shapes(info: ModelInfo) -> dict[str, list[int]]:
    """The outputs that a model has."""
    found = {"logits": [-1, info.classes], "pooled": [-1, info.features]}
    return {name: shape for name, shape in found.items() if shape[1]}


def render_infer(
    model: str, request: InferRequest, values: Mapping[str, Sequence[NDArray[np.float32]]]
) -> tuple[list[bytes], int | None]:
    """The parts of an answer, and the length of its JSON where bytes follow it."""
    outputs, binary = list[dict[str, Any]](), list[bytes]()
    for wanted in request.outputs:
        array = np.stack(values[wanted.name])
        described: dict[str, Any] = {
            "name": wanted.name, "datatype": "FP32", "shape": list(array.shape)
        }  # fmt: skip
        if wanted.is_binary:
            binary.append(array.astype("<f4").tobytes())
            described["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            described["data"] = array.ravel().tolist()
        outputs.append(described)
    header: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": outputs}
    if request.id:
        header["id"] = request.id
    text = json.dumps(header, allow_nan=False).encode()
    return [text, *binary], len(text) if binary else None


def short(value: object) -> str:
    """A value as a sentence can hold it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
