"""Records at the door: what comes from a file, a command or a request is a typed record or one sentence."""

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from vitrail.core.errors import UserError, nearest

T = TypeVar("T")


def validate(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Build the record `kind` from plain values, strictly, or say what does not fit.

    >>> validate(Preprocessing, {"size": [224, 224]}, where="preprocessor_config.json")
    """
    try:
        text = json.dumps(values)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: not plain JSON values: {error}") from None
    try:
        # through JSON, where a list is a fine tuple but "3" is no number and true is no integer
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(kind, error.errors(include_url=False)[0])}") from None


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def _sentence(kind: type[Any], error: ErrorDetails) -> str:
    field = ".".join(str(part) for part in error["loc"]) or kind.__name__
    if error["type"] == "unexpected_keyword_argument":
        return f"unknown field {field!r}, {nearest(field, [known.name for known in fields(kind)])}"
    if error["type"] == "missing":
        return f"field {field!r} is missing"
    got = repr(error["input"])
    got = got if len(got) <= 60 else got[:57] + "..."
    return f"{field} is {got}, but {error['msg'][0].lower()}{error['msg'][1:]}"
