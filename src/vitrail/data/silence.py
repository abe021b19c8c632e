"""Decoding in silence: what is wrong with an image is in `BadImage`, and nowhere else.

Pillow warns through `warnings` and `logging`, libtiff prints on standard error. These are switches
of the whole process, and several threads decode at once, so they are thrown by the first of them
and put back by the last. The filters match only in threads that decode, so that they hide nobody
else's warnings (`warnings.catch_warnings` would: it is not made for threads).
"""

import ctypes
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

_lock = threading.Lock()
_decoding = 0  # threads
_handlers: list[Any] = []  # libtiff's, while ours are in their place
_here = threading.local()


class _WhileDecoding:
    """What a filter of `warnings` has in place of a pattern for the message."""

    def match(self, message: str) -> bool:
        return getattr(_here, "decoding", False)


def _not_here(record: logging.LogRecord) -> bool:
    return not getattr(_here, "decoding", False)


_LOGGER = logging.getLogger("PIL.TiffImagePlugin")  # the only one that logs errors
_FILTER: Any = ("ignore", _WhileDecoding(), Warning, None, 0)


@contextmanager
def silence() -> Iterator[None]:
    """Nothing that libraries say in this thread reaches a person."""
    global _decoding
    before = getattr(_here, "decoding", False)
    with _lock:
        _decoding += 1
        if _FILTER not in warnings.filters[:1]:  # also where somebody has put his before it
            warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]
        if _decoding == 1:
            _handlers[:] = [setter(None) for setter in _setters()]
            _LOGGER.addFilter(_not_here)
    _here.decoding = True
    try:
        yield
    finally:
        _here.decoding = before
        with _lock:
            _decoding -= 1
            if not _decoding:
                for setter, handler in zip(_setters(), _handlers, strict=True):
                    setter(handler)
                _LOGGER.removeFilter(_not_here)
                while _FILTER in warnings.filters:
                    with suppress(ValueError):
                        warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]


@cache
def _setters() -> tuple[Any, ...]:
    """libtiff's own functions, in the library that Pillow uses; none where it has no libtiff, or
    one that shows no names."""
    os.register_at_fork(after_in_child=_reset)
    try:
        library = ctypes.CDLL(import_module("PIL._imaging").__file__)
        setters = library.TIFFSetWarningHandler, library.TIFFSetErrorHandler
    except (AttributeError, ImportError, OSError, TypeError):
        return ()
    for setter in setters:
        setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
    return setters


def _reset() -> None:
    """A process that was forked while threads decoded has none of them."""
    global _lock, _decoding
    _lock, _decoding = threading.Lock(), 0
