"""Records at the door: what comes in becomes a typed record, or one sentence why it cannot."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from vitrail.core.errors import UserError, nearest

T = TypeVar("T")


def validate(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Build the record `kind` from plain values, strictly, or say what does not fit.

    >>> from vitrail.core.layout import TokenLayout
    >>> validate(TokenLayout, {"grid": [14, 14], "stride": 16}, where="layout.json").tokens
    196
    """
    try:
        text = json.dumps(values, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: not plain JSON values: {error}") from None
    try:
        # through JSON, where a list is a fine tuple but "3" is no number and true is no integer
        record: T = _adapter(kind).validate_json(text, strict=True, extra="forbid")  # type: ignore[arg-type]
        return record
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(kind, error.errors(include_url=False)[0])}") from None


def _plain(value: Any) -> Any:
    """What JSON does not know and Python code has at hand: records, and numpy's numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no plain value")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # building one takes longer than using it
    return TypeAdapter(kind)


def _known(kind: Any, path: Sequence[int | str]) -> list[str]:
    """The fields of a record, or of the one that lies inside it at a path, with that path."""
    for part in path:
        inside = get_type_hints(kind).get(str(part))
        options = (inside, *get_args(inside))
        kind = next((one for one in options if is_dataclass(one)), None)
        if kind is None:
            return []
    return [".".join([*map(str, path), known.name]) for known in fields(kind)]


def _sentence(kind: type[Any], error: ErrorDetails) -> str:
    field = ".".join(str(part) for part in error["loc"]) or kind.__name__
    if error["type"] == "unexpected_keyword_argument":
        return f"unknown field {field!r}, {nearest(field, _known(kind, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    got = repr(error["input"])
    got = got if len(got) <= 60 else got[:57] + "..."
    message = error["msg"]
    if message.startswith("Input should "):
        return f"{field} must {message.removeprefix('Input should ')}, got {got}"
    return f"{field} is {got}, but {message[0].lower()}{message[1:]}"
