"""Numbers that a person gives, each within its range or refused in one sentence."""

from vitrail.core.errors import UserError


def check(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse a number outside its range, and what is no number.

    >>> check("smoothing", 0.1, at_least=0, below=1)
    """
    low = [("above", above)] if above is not None else [("at least", at_least)]
    high = [("below", below)] if below is not None else [("at most", at_most)]
    fits = value == value and abs(value) != float("inf")
    fits = fits and (above is None or value > above) and (at_least is None or value >= at_least)
    fits = fits and (below is None or value < below) and (at_most is None or value <= at_most)
    if not fits:
        bounds = [f"{word} {bound:g}" for word, bound in (*low, *high) if bound is not None]
        raise UserError(f"{name} must be {' and '.join(bounds)}, got {value}")
