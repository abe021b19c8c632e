"""Records at the door: what comes in becomes a typed record, or one sentence why it cannot."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from vitrail.core.errors import UserError, nearest
from vitrail.core.plain_records import build_record

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")


def validate(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Build the record `kind` from plain values, strictly, or say what does not fit.

    >>> from vitrail.core.layout import TokenLayout
    >>> validate(TokenLayout, {"grid": [14, 14], "stride": 16}, where="layout.json").tokens
    196
    """
    record: T | None = build_record(kind, values)
    return validate_by_pydantic(kind, values, where=where) if record is None else record


def validate_by_pydantic(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """The same for values that are unusual or wrong."""
    from pydantic import ValidationError  # here: few values need it, and it is slow to import

    try:
        if (field := _not_finite(values)) is not None:
            raise UserError(f"{where}: {field} must be a finite number, got NaN or infinity")
        text = json.dumps(values, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: not plain JSON values: {error}") from None
    try:
        # through JSON, where a list is a fine tuple but "3" is no number and true is no integer
        record: T = _adapter(kind).validate_json(text, strict=True, extra="forbid")  # type: ignore[arg-type]
        return record
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(kind, error.errors(include_url=False)[0])}") from None


def _not_finite(value: Any, place: str = "") -> str | None:
    """The place of the first number that is NaN or infinite.

    >>> _not_finite({"optimiser": {"lr": float("nan")}})
    'optimiser.lr'
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list | tuple):
        inside = enumerate(value)
    found = (_not_finite(one, f"{place}.{name}" if place else str(name)) for name, one in inside)
    return next((one for one in found if one is not None), None)


def _plain(value: Any) -> Any:
    """What JSON does not know and Python code has at hand: records, and numpy's numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    import numpy as np  # here: what is read from files has none of its numbers

    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no plain value")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # building one takes longer than using it
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _without_tags(kind: Any, path: Sequence[int | str]) -> tuple[list[int | str], list[str]]:
    """The place of an error without the tags that pydantic adds for one of several records, and the
    fields of the record that it lies in, with their place."""
    place, tagged = list[int | str](), list[Any]()
    plain_union = False  # the last part is then the type that was tried: lr.float
    for part in path[:-1]:
        if tagged:  # this part is the tag of one of several records
            kind, tagged = _tagged_as(tagged, part), []
            continue
        place.append(part)
        inside = get_type_hints(kind).get(str(part)) if is_dataclass(kind) else None
        records = [one for one in (inside, *get_args(inside)) if is_dataclass(one)]
        plain_union = get_origin(inside) in (Union, UnionType) and not records
        kind, tagged = (records[0] if records else None), records if len(records) > 1 else []
    if tagged or plain_union:
        return place, []
    known = [known.name for known in fields(kind)] if is_dataclass(kind) else []
    names = [".".join([*map(str, place), name]) for name in known]
    return [*place, *path[-1:]], names


def _tagged_as(records: Sequence[Any], tag: int | str) -> Any:
    """The record of which a field may have this value."""
    for record in records:
        if any(tag in get_args(hint) for hint in get_type_hints(record).values()):
            return record
    return None


def _sentence(kind: type[Any], error: ErrorDetails) -> str:
    place, known = _without_tags(kind, error["loc"])
    field = ".".join(str(part) for part in place) or kind.__name__
    if error["type"] == "unexpected_keyword_argument":
        return f"unknown field {field!r}, {nearest(field, known)}"
    if error["type"] == "union_tag_invalid":
        tag, expected = error["ctx"]["tag"], error["ctx"]["expected_tags"]
        name = error["ctx"]["discriminator"].strip("'")
        return f"{field}.{name} must be one of {expected}, got {tag!r}"
    if error["type"] == "missing" and isinstance(error["loc"][-1], int):
        return f"{'.'.join(map(str, place[:-1]))} must have at least {error['loc'][-1] + 1} values"
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    if error["type"] == "too_long":
        most, length = error["ctx"]["max_length"], error["ctx"]["actual_length"]
        return f"{field} must have at most {most} values, got {length}"
    got = repr(error["input"])
    got = got if len(got) <= 60 else got[:57] + "..."
    message = error["msg"]
    if message.startswith("Input should "):
        return f"{field} must {message.removeprefix('Input should ')}, got {got}"
    return f"{field} is {got}, but {message[0].lower()}{message[1:]}"
