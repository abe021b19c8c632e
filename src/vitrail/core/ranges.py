"""Numbers that a person gives, each within its range or refused in one sentence."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from vitrail.core.errors import UserError


def check(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse a number outside its range, and what is no number.

    >>> check("smoothing", 0.1, at_least=0, below=1)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} must be a number, got {value!r}")
    number: Any = value  # as it is: a float would round a large seed
    low = [("above", above)] if above is not None else [("at least", at_least)]
    high = [("below", below)] if below is not None else [("at most", at_most)]
    if number != number or abs(number) == float("inf"):
        raise UserError(f"{name} must be a finite number, got {value}")
    fits = (above is None or number > above) and (at_least is None or number >= at_least)
    fits = fits and (below is None or number < below) and (at_most is None or number <= at_most)
    if not fits:
        known = [(word, bound) for word, bound in (*low, *high) if bound is not None]
        bounds = [f"{word} {number_text(bound)}" for word, bound in known]
        raise UserError(f"{name} must be {' and '.join(bounds)}, got {value}")


def number_text(value: float) -> str:
    """
    >>> number_text(2**20), number_text(0.5), number_text(1.0)
    ('1,048,576', '0.5', '1')
    """
    return f"{value:,}" if isinstance(value, int) and abs(value) > 9999 else f"{value:g}"


def check_count(
    name: str,
    value: Any,
    *,
    at_least: int = 0,
    below: int | None = None,
    at_most: int | None = None,
) -> None:
    """Refuse what is no whole number, and one outside its range.

    >>> check_count("top", 2.5, at_least=1)
    Traceback (most recent call last):
    vitrail.core.errors.UserError: top must be a whole number, got 2.5
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} must be a whole number, got {value!r}")
    check(name, value, at_least=at_least, below=below, at_most=at_most)


def check_counts(name: str, values: Any, *, at_least: int = 0) -> tuple[int, ...]:
    """Several whole numbers; one alone is a list of one.

    >>> check_counts("shots", 5), check_counts("shots", [1, 5])
    ((5,), (1, 5))
    """
    if isinstance(values, Integral):
        values = (values,)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"{name} must be whole numbers like [1, 5], got {values!r}")
    counts = tuple(values)
    for value in counts:
        check_count(name, value, at_least=at_least)
    return counts
