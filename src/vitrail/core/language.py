"""The language that people read: whoever starts a task chooses it, and pages ask for it.

Rooms write English. A text of a page is looked up with `{}` in the place of its values; a finished
sentence, such as a warning of another room, is looked up by its words. Where no catalogue has it,
it stays English.
"""

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

ENGLISH = "en"


def unchanged(text: str) -> str:
    return text


@dataclass(frozen=True)
class Language:
    """Its code, and how texts of pages and finished sentences are looked up in it."""

    code: str = ENGLISH
    page_text: Callable[[str], str] = unchanged
    sentence: Callable[[str], str] = unchanged


_ENGLISH = Language()
_language: ContextVar[Language] = ContextVar("language", default=_ENGLISH)


def choose_language(language: Language) -> None:
    """Of all that this context writes from here on."""
    _language.set(language)


def chosen_language() -> Language:
    return _language.get()


def fill(translation: str, values: Sequence[str]) -> str:
    """Values into their places, in order or by number; other braces stay, as in names of files.

    >>> fill("{1}개 중 {0}", ["3", "10"]), fill("{}: {a,b}", ["x"]), fill("run{}", [])
    ('10개 중 3', 'x: {a,b}', 'run{}')
    """
    if not values:
        return translation
    rest = iter(values)
    return re.sub(r"\{(\d*)\}", lambda m: values[int(m[1])] if m[1] else next(rest), translation)
