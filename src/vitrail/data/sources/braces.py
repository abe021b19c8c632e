"""Braces in the names of shards, as shells write them: {000..012} counts, {train,val} chooses."""

import re

from vitrail.core.errors import UserError

MOST_NAMES = 1_000_000


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern means; braces may hold braces.

    >>> expand_braces("{train-{08..10},val}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'val.tar']
    """
    before, brace, rest = pattern.partition("{")
    if "}" in before:
        raise unreadable(pattern)
    if not brace:
        return [pattern]
    inside, after = split_at_closing(rest, pattern)
    parts = split_at_commas(inside)
    if len(parts) == 1:
        chosen = count_through(inside, pattern)
    else:
        chosen = [name for part in parts for name in expand_braces(part)]
    ends = expand_braces(after)
    if len(chosen) * len(ends) > MOST_NAMES:
        raise UserError(f"{pattern}: means more than {MOST_NAMES:,} names")
    return [before + name + end for name in chosen for end in ends]


def split_at_closing(text: str, pattern: str) -> tuple[str, str]:
    """What stands before the brace that closes, and after it."""
    depth = 1
    for place, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if not depth:
            return text[:place], text[place + 1 :]
    raise unreadable(pattern)


def split_at_commas(text: str) -> list[str]:
    """Parts between commas that are not inside of further braces."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def count_through(inside: str, pattern: str) -> list[str]:
    span = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if span is None:
        raise unreadable(pattern)
    first, last = int(span[1]), int(span[2])
    if abs(last - first) >= MOST_NAMES:
        raise UserError(f"{pattern}: means more than {MOST_NAMES:,} names")
    width = max(len(span[1]), len(span[2])) if "0" in (span[1][0], span[2][0]) else 0
    step = 1 if last >= first else -1
    return [str(number).zfill(width) for number in range(first, last + step, step)]


def unreadable(pattern: str) -> UserError:
    return UserError(f"{pattern}: the braces cannot be read: expected {{000..012}} or {{a,b}}")
