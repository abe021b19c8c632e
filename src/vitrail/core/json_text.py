"""JSON that any reader takes: every script as it is, nothing that steers a terminal, no NaN."""

import json
import math
from typing import Any


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON with letters as they are, so that people can read their own labels in it; what is not
    printable (controls, marks that turn the direction of writing, bytes that are no UTF-8) is
    escaped; a number that is not finite is null.

    >>> to_json({"고양이": [1.5, float("nan")]})
    '{"고양이": [1.5, null]}'
    """
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text)


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(one) for name, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
    return value
