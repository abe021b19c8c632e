"""The files of the web page: texts complete in both languages, no inline script, imports that are
there, and an offline page that is whole."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from vitrail.core.language import Language, choose_language, chosen_language
from vitrail.pages import window
from vitrail.pages.window import IMPORT, OfflineImage, offline_modules, offline_page, target

PAGE = Path(window.__file__).parent / "window"
MODULES = sorted(path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*.js"))
CATALOGUES = sorted((PAGE / "strings").glob("*.json"))
OWN = ("frame", "attention", "lens")  # first words of the keys in strings/frame.json
PLACE = re.compile(r"\{(\w+)\}")
HANGUL = re.compile("[가-힣]")
# the same in both languages: names
NAMES = (
    "attention.method.gradcam",
    "attention.method.hirescam",
    "attention.method.smoothgrad",
    "attention.png",
    "attention.svg",
    "frame.language.en",
    "frame.language.ko",
    "frame.title",
)


def catalogue(file: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("file", CATALOGUES, ids=lambda file: file.stem)
def test_both_languages_have_every_text(file: Path) -> None:
    texts = catalogue(file)
    assert list(texts) == ["en", "ko"]
    assert list(texts["en"]) == list(texts["ko"])
    for key, english in texts["en"].items():
        korean = texts["ko"][key]
        assert english.strip(), key
        assert korean.strip(), key
        assert sorted(set(PLACE.findall(english))) == sorted(set(PLACE.findall(korean))), key


def test_korean_is_korean() -> None:
    texts = catalogue(PAGE / "strings" / "frame.json")["ko"]
    assert not [key for key, text in texts.items() if not HANGUL.search(text) and key not in NAMES]


def test_every_key_that_is_used_has_a_text_and_no_text_is_left_over() -> None:
    """Of the frame, Attention and Lens; keys that are put together count by their beginning."""
    code = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in (*MODULES, "index.html"))
    keys = set(catalogue(PAGE / "strings" / "frame.json")["en"])
    used = set(re.findall(rf'"((?:{"|".join(OWN)})\.[\w.]+)"', code))
    begun = set(re.findall(rf"`((?:{'|'.join(OWN)})\.[\w.]+)\$\{{", code))
    begun.add("attention.say.patch")
    assert begun
    texts = {*keys, *(key for file in CATALOGUES for key in catalogue(file)["en"])}
    assert not {key for key in used if key not in texts}
    assert not {
        key for key in keys if key not in used and not any(key.startswith(one) for one in begun)
    }


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_files_that_are_there_and_writes_no_markup(name: str) -> None:
    code = (PAGE / name).read_text(encoding="utf-8")
    for match in IMPORT.finditer(code):
        assert (PAGE / target(name, match[2])).is_file(), match[2]
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in code
    assert not re.search(r"https?://(?!www\.w3\.org/)", code)
    assert code.startswith("//"), "a module says its idea first"
    assert len(code.splitlines()) <= 450


def test_the_page_has_no_inline_script_or_style() -> None:
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>", html) == re.findall(r"<script[^>]* src=[^>]*>", html)
    assert not re.search(r"\son\w+=|\sstyle=|<style", html)
    for path in re.findall(r'"static/([^"]+)"', html):
        assert (PAGE / path).is_file()


def test_offline_modules_are_all_that_the_entry_needs() -> None:
    modules = offline_modules()
    assert {"vitrail/app/offline.js", "vitrail/app/views/attention.js"} <= set(modules)
    for name, address in modules.items():
        code = base64.b64decode(address.partition("base64,")[2]).decode()
        assert not IMPORT.search(code), name  # no file is imported any more
        for imported in re.findall(r'^import\b[^;"]*"([^"]+)";', code, re.MULTILINE):
            assert imported in modules, name
    assert "vitrail/app/views/walk.js" not in modules  # which needs a server


def test_an_offline_page_starts_in_the_language_of_who_wrote_it() -> None:
    assert '<html lang="en">' in "".join(offline_page([], {"name": "model"}))
    before = chosen_language()
    try:
        choose_language(Language("ko"))
        page = "".join(offline_page([], {"name": "model"}))
    finally:
        choose_language(before)
    assert '<html lang="ko" data-language="ko">' in page


def test_an_offline_page_is_one_file_that_asks_nobody() -> None:
    name = "</script><img src=x onerror=alert(1)>"
    image = OfflineImage(name, "data:image/png;base64,AA==", b"\x00\x01")
    html = "".join(offline_page([image, image], {"name": "model"}))
    assert "static/" not in html
    assert name not in html
    assert "default-src 'none'" in html
    data: Any = re.search(r'id="offline">(.*?)</script>', html)
    facts = json.loads(data[1])
    assert [one["name"] for one in facts["images"]] == [name, name]
    assert base64.b64decode(facts["images"][0]["packed"]) == b"\x00\x01"
    assert set(facts["strings"]) == {"en", "ko"}
    loaded = re.findall(r'(?:src|href)="([^"]*)', html)
    assert all(address.startswith("data:") for address in loaded)
