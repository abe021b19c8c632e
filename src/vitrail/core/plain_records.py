"""Records from plain values without pydantic, which takes longer to import than a model to run.

It builds what pydantic would, or nothing: whatever is unusual is left to pydantic, which also says
what is wrong with it.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 2**53  # whole numbers up to here are floats without loss


class UnusualError(Exception):
    """This value or type is left to pydantic."""


def build_record(kind: Any, values: Any) -> Any:
    """The record `kind` of these values, or None where pydantic has to decide.

    >>> from vitrail.core.layout import TokenLayout
    >>> build_record(TokenLayout, {"grid": [14, 14], "stride": 16})
    TokenLayout(grid=(14, 14), stride=16, prefix=0, window=None, shift=(0, 0),\
 rolled_first=False, fold=None, separable=False)
    >>> build_record(TokenLayout, {"grid": [14, 14], "stride": "16"}) is None
    True
    """
    try:
        return _build(kind, values) if is_dataclass(kind) else None
    except (UnusualError, NameError, TypeError, ValueError, RecursionError):
        return None


def _build(kind: Any, value: Any) -> Any:
    """One value of one type."""
    if kind is Any:
        return _plain(value)
    if kind in (str, int, bool, float, NoneType):
        return _scalar(kind, value)
    if is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, value)
    parts, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        if any(type(value) is type(one) and value == one for one in parts):
            return value
    elif origin in (Union, UnionType):
        if len(parts) == 2 and NoneType in parts:  # which of several others is meant is unclear
            other = parts[parts[0] is NoneType]
            return None if value is None else _build(other, value)
        if len(parts) == 2 and parts[0] is int and get_origin(parts[1]) is tuple:
            return _build(parts[type(value) in (list, tuple)], value)
    elif origin is tuple and type(value) in (list, tuple):
        if parts[1:] == (...,):
            return tuple(_build(parts[0], one) for one in value)
        return tuple(_build(part, one) for part, one in zip(parts, value, strict=True))
    elif origin is dict and parts[0] is str and isinstance(value, dict):
        return {_scalar(str, name): _build(parts[1], one) for name, one in value.items()}
    raise UnusualError


def _record(kind: type, value: Any) -> Any:
    known, types = _fields(kind)
    if not isinstance(value, Mapping) or not all(
        name in value or not required for name, required in known.items()
    ):
        raise UnusualError
    found = {}
    for name, one in value.items():
        if name not in known:
            raise UnusualError
        found[name] = _build(types[name], one)
    return kind(**found)


@cache
def _fields(kind: type) -> tuple[dict[str, bool], dict[str, Any]]:
    """Which fields a record must be given, and their types."""
    every: tuple[Field[Any], ...] = fields(kind)
    if not all(one.init for one in every):
        raise UnusualError
    required = {
        one.name: one.default is MISSING and one.default_factory is MISSING for one in every
    }
    return required, get_type_hints(kind, include_extras=True)


def _scalar(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int and abs(value) <= LARGEST:
        return float(value)
    if type(value) is not kind or not _is_ordinary(value):
        raise UnusualError
    return value


def _plain(value: Any) -> Any:
    """A copy of JSON values."""
    if type(value) is dict:
        return {_scalar(str, name): _plain(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return [_plain(one) for one in value]
    if type(value) in (str, int, bool, float, NoneType) and _is_ordinary(value):
        return value
    raise UnusualError


def _is_ordinary(value: Any) -> bool:
    """Whether JSON can hold it: finite, no bytes that are no UTF-8, no endless digits."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    return not isinstance(value, int) or abs(value) <= LARGEST
