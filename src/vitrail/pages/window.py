"""The web page of `vitrail serve`, written into one offline file with its images and attention."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from posixpath import dirname, join, normpath
from typing import Any

from vitrail.core.json_text import to_json
from vitrail.core.language import ENGLISH, chosen_language

ENTRY = "app/offline.js"
STRINGS = ("strings/frame.json",)  # of the views that an offline page has
# nothing is loaded and nothing is sent: all that the page needs is in it
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' data:"
)
IMPORT = re.compile(r'^(import\b[^;"]*")(\.{1,2}/[^"]+)(";)', re.MULTILINE)
HEAD_LINK = re.compile(r'^<(?:link|script)\b[^>]*"static/[^>]*>(?:</script>)?\n', re.MULTILINE)


@dataclass(frozen=True)
class OfflineImage:
    """One image of an offline page: a small picture of it as a data address, its inspection as
    packed bytes in gzip, and the maps of methods as POST /v1/explain gives them."""

    name: str
    picture: str
    packed: bytes
    explanations: Sequence[Mapping[str, Any]] = ()


def offline_page(images: Sequence[OfflineImage], model: Mapping[str, Any]) -> Iterator[str]:
    """The Attention and Lens views as one file, piece by piece; `model` has its `name`."""
    before, after = HEAD_LINK.sub("", read_text("index.html")).split("</head>")
    if (code := chosen_language().code) != ENGLISH:
        before = before.replace('<html lang="en">', f'<html lang="{code}" data-language="{code}">')
    yield before
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield f'<link rel="icon" href="{data_address(read_text("icon.svg"), "image/svg+xml")}">\n'
    yield f"<style>\n{read_text('style.css')}</style>\n"
    yield f'<script type="importmap">{to_json({"imports": offline_modules()})}</script>\n</head>'
    body, end = after.split("</body>")
    yield body
    facts = {"strings": offline_strings(), "model": dict(model)}
    yield f'<script type="application/json" id="offline">{script_json(facts)[:-1]}, "images": ['
    for number, image in enumerate(images):
        yield (", " if number else "") + script_json(image_facts(number, image))
    yield f']}}</script>\n<script type="module">import "vitrail/{ENTRY}";</script>\n</body>{end}'


def image_facts(number: int, image: OfflineImage) -> dict[str, Any]:
    return {
        "id": str(number),
        "name": image.name,
        "picture": image.picture,
        "packed": base64.b64encode(image.packed).decode(),
        "explanations": list(image.explanations),
    }


def offline_modules() -> dict[str, str]:
    """Every module that the offline page imports, as a data address under a name of its own: a
    browser refuses to import files beside a page that was opened from disk."""
    found: dict[str, str] = {}
    waiting = [ENTRY]
    while waiting:
        path = waiting.pop()
        if f"vitrail/{path}" in found:
            continue
        code = read_text(path)
        imported = [target(path, match[2]) for match in IMPORT.finditer(code)]
        named = IMPORT.sub(lambda m, at=path: f"{m[1]}vitrail/{target(at, m[2])}{m[3]}", code)  # type: ignore[misc]
        found[f"vitrail/{path}"] = data_address(named, "text/javascript")
        waiting += imported
    return found


def target(path: str, specifier: str) -> str:
    """The file that a module imports.

    >>> target("app/views/lens.js", "../draw.js")
    'app/draw.js'
    """
    return normpath(join(dirname(path), specifier))


def offline_strings() -> dict[str, dict[str, str]]:
    """The texts of the page by language and key."""
    texts: dict[str, dict[str, str]] = {}
    for name in STRINGS:
        for language, words in json.loads(read_text(name)).items():
            texts.setdefault(language, {}).update(words)
    return texts


def read_text(path: str) -> str:
    """A file of the page."""
    return files("vitrail.pages").joinpath("window", *path.split("/")).read_text(encoding="utf-8")


def data_address(text: str, media: str) -> str:
    return f"data:{media};base64,{base64.b64encode(text.encode()).decode()}"


def script_json(value: Any) -> str:
    """JSON that cannot end the element it stands in.

    >>> script_json({"name": "</script>"})
    '{"name": "\\\\u003c/script>"}'
    """
    return to_json(value).replace("<", "\\u003c")
