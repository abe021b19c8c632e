"""Images that could not be read: one form in every record and in its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BrokenImage:
    """An image by its name, and why it could not be read."""

    image: str
    reason: str


def list_broken(reasons: Mapping[str, str]) -> tuple[BrokenImage, ...]:
    """By name, from the reason of each.

    >>> list_broken({"b.png": "empty", "a.png": "cut off"})[0]
    BrokenImage(image='a.png', reason='cut off')
    """
    return tuple(BrokenImage(*one) for one in sorted(reasons.items()))
