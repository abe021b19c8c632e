"""Braces in the names of shards, as shells write them: {000..012} counts, {train,val} chooses."""

import re
from itertools import product

from vitrail.core.errors import UserError

INNERMOST = re.compile(r"\{([^{}]*)\}")
MOST_NAMES = 1_000_000


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern means.

    >>> expand_braces("{train,val}-{08..10}.tar")[:4]
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'val-08.tar']
    """
    pieces, choices, end = [], [], 0
    for found in INNERMOST.finditer(pattern):
        pieces.append(pattern[end : found.start()])
        choices.append(choices_of(found[1], pattern))
        end = found.end()
    rest = pattern[end:]
    if any(brace in piece for piece in (*pieces, rest) for brace in "{}"):
        raise UserError(f"{pattern}: the braces cannot be read: expected {{000..012}} or {{a,b}}")
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MOST_NAMES:
        raise UserError(f"{pattern}: means {total:,} names, more than {MOST_NAMES:,}")
    return [
        "".join(piece + word for piece, word in zip(pieces, words, strict=True)) + rest
        for words in product(*choices)
    ]


def choices_of(inside: str, pattern: str) -> list[str]:
    span = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if span is not None:
        first, last = int(span[1]), int(span[2])
        if abs(last - first) >= MOST_NAMES:
            raise UserError(f"{pattern}: means more than {MOST_NAMES:,} names")
        width = max(len(span[1]), len(span[2])) if "0" in (span[1][0], span[2][0]) else 0
        step = 1 if last >= first else -1
        return [str(number).zfill(width) for number in range(first, last + step, step)]
    if "," in inside:
        return inside.split(",")
    raise UserError(f"{pattern}: the braces cannot be read: expected {{000..012}} or {{a,b}}")
