"""Templates: every value is escaped, and no name from a file can steer a page."""

import math
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitrail.core.errors import printable
from vitrail.core.language import chosen_language
from vitrail.pages.translation import (
    count,
    page_text,
    script_texts,
    template_text,
    translated_sentence,
)

_SPLIT = "\0split\0"
_BREAKS = re.compile(r"(?<=[/_|])(?=[^/_|])")  # where a name may go on in the next line


@dataclass(frozen=True)
class Section:
    """A part of a page: the id that links name, its title, and its HTML."""

    id: str
    title: str
    body: Markup


def render(template: str, /, **values: Any) -> Markup:
    """A file of `templates/`, filled in; every value that is no Markup is escaped.

    >>> render("facts.html", facts={"seed": "<0>"}).strip()
    Markup('<dl class="facts"><div><dt>seed</dt><dd>&lt;0&gt;</dd></div></dl>')
    """
    return Markup(environment().get_template(template).render(**values))


def render_page(
    title: str, sections: Sequence[Section], *, kind: str = "", lead: Markup | None = None
) -> str:
    """A whole page, one file that asks nothing of the network. `kind` stands behind the title in
    the browser's tab; `lead` stands under the heading, before the links to the sections.

    >>> "<h1>a &amp; b</h1>" in render_page("a & b", [])
    True
    """
    kept = [Section(one.id, page_text(one.title), one.body) for one in sections if one.body.strip()]
    return str(
        render(
            "base.html",
            language=chosen_language().code,
            texts=script_texts(),
            title=title,
            kind=page_text(kind),
            lead=lead or Markup(),
            sections=kept,
            style=Markup(_text("style.css")),
            script=Markup(_text("script.js")),
            script_hash=_digest(_text("script.js")),
        )
    )


def page_around(
    title: str, sections: Sequence[Section], *, kind: str = "", lead: Markup | None = None
) -> list[str]:
    """The page in pieces: one more than there are sections whose body is `HOLE`. Whoever writes
    megabytes of images puts them between the pieces, one by one.

    >>> len(page_around("t", [Section("images", "Images", HOLE)]))
    2
    """
    return render_page(title, sections, kind=kind, lead=lead).split(_SPLIT)


HOLE = Markup(_SPLIT)


def as_iframe(page: str, height: int = 640) -> str:
    """A page for a notebook, where its style must not reach what is around it."""
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


@cache
def environment() -> Environment:
    """The templates with their filters."""
    made = Environment(
        loader=PackageLoader("vitrail.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.globals["t"] = template_text
    made.filters |= {
        "percent": percent,
        "number": number,
        "either": either,
        "count": count,
        "name": breakable,
        "sentence": sentence,
        "translated": translated_sentence,
        "setting": setting,
    }
    return made


def _finalize(value: Any) -> Any:
    """Text without what steers: controls, marks that turn the direction of writing, bytes that are
    no UTF-8."""
    if isinstance(value, Markup):
        return value
    return printable(value) if isinstance(value, str) else value


def breakable(name: str) -> Markup:
    """A name that may be broken after / _ | and nowhere within a word.

    >>> breakable("a/b_c<")
    Markup('a/<wbr>b_<wbr>c&lt;')
    """
    return Markup("<wbr>").join(_BREAKS.split(printable(str(name))))


def sentence(text: str) -> str:
    """Text in the chosen language that begins with a capital letter and, if it is more than a few
    words, ends in a stop.

    >>> sentence("training report"), sentence("use more images, or a val folder")
    ('Training report', 'Use more images, or a val folder.')
    """
    text = translated_sentence(text)
    stop = "" if text.endswith((".", "!", "?", ":")) or len(text.split()) < 4 else "."
    return f"{text[:1].upper()}{text[1:]}{stop}"


def percent(share: float | None) -> str:
    """A share of 1 for people; what is not all or nothing never looks like it.

    >>> percent(0.9612), percent(1), percent(0.99999), percent(0.00001), percent(None)
    ('96.1%', '100%', '>99.9%', '<0.1%', '–')
    """
    if share is None or math.isnan(share):
        return "–"
    if share in (0, 1):
        return f"{share:.0%}"
    if not 0.0005 <= share < 0.9995 and 0 < share < 1:
        return "<0.1%" if share < 0.5 else ">99.9%"
    return f"{share:.1%}"


def number(value: float | None) -> str:
    """
    >>> number(0.00025), number(1.23456), number(12345), number(13439.6), number(None)
    ('0.00025', '1.235', '12,345', '13,440', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"


def either(value: float | None, share: bool) -> str:
    """In percent or as a number."""
    return percent(value) if share else number(value)


def setting(value: Any) -> str:
    """A value of a recipe as a person writes it.

    >>> setting((0.9, 0.999)), setting(None), setting({"a": True})
    ('0.9, 0.999', 'none', 'a: yes')
    """
    match value:
        case None:
            return page_text("none")
        case bool():
            return page_text("yes" if value else "no")
        case float():
            return f"{value:g}"
        case dict():
            named = (f"{name}: {setting(each)}" for name, each in value.items())
            return ", ".join(named) or page_text("none")
        case list() | tuple():
            return ", ".join(setting(each) for each in value) or page_text("none")
    return str(value)


@cache
def _text(name: str) -> str:
    return (files("vitrail.pages") / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """What the page's policy allows to run: this script and nothing else."""
    return b64encode(sha256(script.encode()).digest()).decode()
