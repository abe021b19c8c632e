"""JSON that any reader takes: every script as it is, nothing that steers a terminal, no NaN."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON with letters as they are, so that people can read their own labels in it; what is not
    printable (controls, marks that turn the direction of writing, bytes that are no UTF-8) is
    escaped; a number that is not finite is null.

    >>> to_json({"고양이": [1.5, float("nan")]})
    '{"고양이": [1.5, null]}'
    """
    text = json.dumps(plain_values(value), indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text)


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def plain_values(value: Any) -> Any:
    """What JSON makes of a value, in Python: tuples are lists, a number that is not finite is None.

    >>> plain_values({"interval": (0.5, float("nan"))})
    {'interval': [0.5, None]}
    """
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): plain_values(one) for name, one in value.items()}
        case list() | tuple():
            return [plain_values(one) for one in value]
    return value


def utf8_name(name: str) -> str:
    """A name as UTF-8 can hold it: a byte of a file's name that is none is written out. No two
    names become one: where a name itself looks written out, its backslashes are doubled.

    >>> utf8_name("caf\\udce9.jpg")
    'caf\\\\udce9.jpg'
    """
    if "\\udc" not in name and not any("\ud800" <= letter <= "\udfff" for letter in name):
        return name
    return name.replace("\\", "\\\\").encode("utf-8", "backslashreplace").decode()
