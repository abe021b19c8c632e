"""Texts of pages in the language that was chosen: in Python, in templates and in the script."""

import json
import re
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape

from vitrail.core.errors import printable
from vitrail.core.language import ENGLISH, chosen_language, fill

SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z0-9])")
SCRIPT_TEXT = re.compile(r"""\bt\("((?:[^"\\]|\\.)*)\"""")


def page_text(text: str, *values: object) -> str:
    """A text with its values in the place of each {}.

    >>> page_text("{} to {}", 1, 2)
    '1 to 2'
    """
    return fill(chosen_language().page_text(text), [str(value) for value in values])


def template_text(text: str, *values: object) -> Markup:
    """The same for a template, whose own text may have markup; values are escaped.

    >>> template_text("of <code>{}</code>", "<a>")
    Markup('of <code>&lt;a&gt;</code>')
    """
    found = chosen_language().page_text(" ".join(text.split()))
    return Markup(fill(found, [str(_escaped(value)) for value in values]))


def translated_sentence(text: str) -> str:
    """A finished sentence of another room."""
    return chosen_language().sentence(text)


def translated_sentences(text: str) -> str:
    """Several finished sentences, each looked up by itself.

    >>> translated_sentences("Of 12 layers 3 are shown. 4 images are few.")
    'Of 12 layers 3 are shown. 4 images are few.'
    """
    return " ".join(map(translated_sentence, SENTENCE_END.split(text)))


def count(amount: int, thing: str) -> str:
    """
    >>> count(1, "image"), count(2000, "class")
    ('1 image', '2,000 classes')
    """
    if amount == 1 and chosen_language().code == ENGLISH:
        return f"1 {thing}"
    return page_text(counted(thing), f"{amount:,}")


def counted(thing: str) -> str:
    """
    >>> counted("class"), counted("run")
    ('{} classes', '{} runs')
    """
    return f"{{}} {thing}es" if thing.endswith("s") else f"{{}} {thing}s"


def script_texts() -> str:
    """Texts of the script in the chosen language, as JSON; "" in English, which it has itself."""
    if chosen_language().code == ENGLISH:
        return ""
    found = {text: chosen_language().page_text(text) for text in texts_in_script()}
    return json.dumps(found, ensure_ascii=False)


@cache
def texts_in_script() -> tuple[str, ...]:
    """Every text that the script asks for."""
    code = (files("vitrail.pages") / "script.js").read_text(encoding="utf-8")
    return tuple(dict.fromkeys(SCRIPT_TEXT.findall(code)))


def _escaped(value: object) -> Markup:
    return escape(value if isinstance(value, Markup) else printable(str(value)))
