"""Errors for users: one sentence each."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

LONGEST = 1000  # letters


class UserError(Exception):
    """A user's mistake in one sentence: what must hold, what was got, how to fix it.

    It is no `ValueError`, because pydantic would wrap one raised in `__post_init__`. Whatever the
    names and values of a file put into it, it stays one line of a length that people read, and
    nothing in it steers a terminal.
    """

    def __init__(self, sentence: str) -> None:
        if len(sentence) > LONGEST:
            sentence = f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"
        super().__init__(printable(sentence))


def printable(text: str) -> str:
    """One line in which nothing steers a terminal.

    >>> printable("cat\\x1b[2J.jpg")
    'cat\\\\x1b[2J.jpg'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def nearest(word: str, known: Iterable[str], listed: str = "known are") -> str:
    """A hint that names the closest known word, or all of them when they are few.

    >>> nearest("vit_b16", ["vit_b_16", "vit_l_16"])
    'did you mean vit_b_16?'
    """
    known = sorted(known)
    if not known:
        return "there is none"
    lowered = {name.lower(): name for name in known}
    match = get_close_matches(word, known, n=1, cutoff=0.6) or [
        lowered[close] for close in get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    ]
    if match:
        return f"did you mean {match[0]}?"
    if len(known) <= 12:
        return f"{listed} {', '.join(known)}"
    return f"{listed} {', '.join(known[:8])} and {len(known) - 8} more"


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Say in one sentence that a directory or a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from None
