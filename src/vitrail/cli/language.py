"""The language of help and messages: English, or another that has a catalogue.

Rooms write English sentences with values in them. A catalogue holds the sentences with `{}` in the
place of values, so a message is found by its words, and its values are put into the translation:

    image side 225 is not a multiple of patch 16: use 224 or 240
    image side {} is not a multiple of patch {}: use {} or {}
    이미지 변 {}은(는) 패치 {}의 배수가 아닙니다. {} 또는 {}을(를) 쓰세요

`python -m tools.messages` collects the sentences of the source code into the catalogue.
"""

import gettext
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from vitrail.core.errors import UserError, nearest
from vitrail.core.language import ENGLISH, Language, choose_language, chosen_language, fill

LOCALE = Path(__file__).parent / "locale"
VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set decides
OPTION = "--lang"
VALUE = "{}"
AROUND = ("{} (see {} --help)",)
CONTEXT = "\x04"  # stands between a context and its text in compiled catalogues
PAGE = "page"  # the context of texts of HTML pages, which are looked up whole


def languages() -> list[str]:
    """English and every language with a catalogue.

    >>> languages()
    ['en', 'ko']
    """
    return [ENGLISH, *sorted(folder.name for folder in LOCALE.iterdir() if folder.is_dir())]


def split_language(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The language of a command line, and its other words: by --lang, or by the system's locale.

    >>> split_language(["predict", "--lang", "ko"], {}), split_language(["info"], {"LANG": "ko_KR"})
    (('ko', ['predict']), ('ko', ['info']))
    """
    rest = list(words)
    for place, word in enumerate(rest):
        if word == OPTION or word.startswith(f"{OPTION}="):
            width = 2 if word == OPTION else 1
            chosen = "".join(rest[place + 1 : place + 2]) if width == 2 else word.partition("=")[2]
            if chosen not in languages():
                known = nearest(chosen, languages())
                raise UserError(f"{OPTION} must name a language, got {chosen!r}: {known}")
            return chosen, rest[:place] + rest[place + width :]
    setting = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    code = re.split(r"[_.@]", setting)[0]
    return (code if code in languages() else ENGLISH), rest


def use_language(language: str) -> None:
    """Translate what this context prints, and the pages that it writes, from here on."""
    if language == ENGLISH:
        choose_language(Language())
    else:
        page_text, sentence = partial(page_text_in, language), partial(translate_to, language)
        choose_language(Language(language, page_text, sentence))


def current_language() -> str:
    return chosen_language().code


def environment_language() -> str:
    return split_language([], os.environ)[0]


def translate(text: str) -> str:
    """A sentence in the chosen language; one that no catalogue has stays English."""
    return chosen_language().sentence(text)


def page_text_in(language: str, text: str) -> str:
    """A text of a page, `{}` in the place of its values.

    >>> page_text_in("ko", "Confusions"), page_text_in("ko", "no such text")
    ('혼동', 'no such text')
    """
    return read_page_texts(language).get(text, text)


def translate_to(language: str, text: str) -> str:
    """
    >>> translate_to("ko", "no such sentence")
    'no such sentence'
    """
    if (found := read_catalogue(language).get(text)) is not None:
        return found
    if not any(map(str.isalpha, text)):
        return text
    for pattern, translation in patterns(language):
        if (match := pattern.fullmatch(text)) is not None:
            # a value may be a sentence itself: "unknown model x, did you mean y?"
            values = [translate_to(language, value) for value in match.groups()]
            return fill(translation, values)
    place, colon, sentence = text.partition(": ")  # config.json: unknown field x
    return f"{place}{colon}{translate_to(language, sentence)}" if colon else text


@cache
def read_catalogue(language: str) -> dict[str, str]:
    """Translations by their English sentences."""
    return {text: one for text, one in read_entries(language).items() if CONTEXT not in text}


@cache
def read_page_texts(language: str) -> dict[str, str]:
    """Translations of texts of pages."""
    start = f"{PAGE}{CONTEXT}"
    entries = read_entries(language).items()
    return {text.removeprefix(start): one for text, one in entries if text.startswith(start)}


def read_entries(language: str) -> dict[str, str]:
    found = gettext.translation("vitrail", LOCALE, [language])
    assert isinstance(found, gettext.GNUTranslations)
    known: dict[str, str] = found._catalog  # type: ignore[attr-defined]  # gettext has no way to list
    return {text: translation for text, translation in known.items() if text and translation}


@cache
def patterns(language: str) -> list[tuple[re.Pattern[str], str]]:
    """Sentences with values as patterns, those with most words of their own first, but before them
    what stands around any sentence."""
    known = [one for one in read_catalogue(language).items() if VALUE in one[0]]
    known.sort(key=lambda one: (one[0] not in AROUND, -len(one[0].replace(VALUE, ""))))
    return [(to_pattern(text), translation) for text, translation in known]


def to_pattern(text: str) -> re.Pattern[str]:
    parts = [re.escape(part) for part in text.split(VALUE)]
    return re.compile("(.*?)".join(parts), re.DOTALL)  # a value may be empty
