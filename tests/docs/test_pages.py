"""Pages of the documentation: lines that fit, links that lead somewhere, all of them in the nav."""

import re
import unicodedata
from pathlib import Path
from typing import Any

import yaml
from tools.site import mark_korean

from tests.docs.blocks import FENCE, ROOT, blocks, pages, read

LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
LONGEST = 120
# Files that the site is built from, but for README and others at the root.
AT_ROOT = {
    "index.md": "README.md",
    "index.ko.md": "README.ko.md",
    "examples.md": "examples/README.md",
}
GENERATED = ("reference/", "changelog.md", "contributing.md", "security.md")


def test_korean_pages_of_the_site_say_so(tmp_path: Path) -> None:
    for name in ("index.html", "index.ko/index.html", "ko/tour/index.html"):
        page = tmp_path / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text('<!doctype html>\n<html lang="en" class="no-js">', encoding="utf-8")
    mark_korean(tmp_path)
    found = {page.parent.name: page.read_text("utf-8")[22:31] for page in tmp_path.rglob("*.html")}
    assert found == {tmp_path.name: 'lang="en"', "index.ko": 'lang="ko"', "tour": 'lang="ko"'}


def test_lines_fit() -> None:
    long = [
        f"{page}:{number}"
        for page in pages()
        for number, line in enumerate(read(page).splitlines(), 1)
        if len(line) > LONGEST and "https://" not in line
    ]
    assert not long, long


def test_links_lead_somewhere() -> None:
    assert not (lost := [f"{page}: {link}" for page in pages() for link in lost_links(page)]), lost


def lost_links(page: str) -> list[str]:
    """Links to files or headings that are not there."""
    lost = []
    for match in LINK.finditer(FENCE.sub("", read(page))):
        target, _, anchor = (match[1] or match[2]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        if "reference/" in target:
            continue  # is generated, and checked when the site is built
        if not path.exists():
            lost.append(target)
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text("utf-8")):
            lost.append(f"{target}#{anchor}")
    return lost


def anchors(text: str) -> set[str]:
    """What GitHub and the site make of headings.

    >>> sorted(anchors("# Fast: `bench` & more"))
    ['fast-bench--more', 'fast-bench-more']
    """
    found = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        plain = unicodedata.normalize("NFKC", re.sub(r"[`*]", "", heading)).strip().lower()
        words = re.sub(r"[^\w\s-]", "", plain)
        found |= {re.sub(r"\s", "-", words), re.sub(r"[-\s]+", "-", words)}
    return found


def test_the_nav_has_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = set(leaves(nav))
    for name in named:
        if not name.startswith(GENERATED):
            source = ROOT / AT_ROOT[name] if name in AT_ROOT else ROOT / "docs" / name
            assert source.exists(), f"{name} is in the nav, and not in docs/"
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert not written - named, f"not in the nav: {sorted(written - named)}"


def leaves(entry: Any) -> list[str]:
    """The files that a nav names."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [leaf for part in parts for leaf in leaves(part)]


def test_the_readmes_are_in_step() -> None:
    """The Korean one has the sections, blocks, pictures and verbs of the English one."""
    english, korean = read("README.md"), read("README.ko.md")
    for pattern in (r"^## ", r"^```\w*$", r"^\| \[?\w+\]?.*`vitrail "):
        counts = [len(re.findall(pattern, text, re.MULTILINE)) for text in (english, korean)]
        assert counts[0] == counts[1], f"{pattern}: {counts}"
    pictures = [re.findall(r"\]\((docs/[^)]+\.(?:png|jpg))\)", text) for text in (english, korean)]
    assert pictures[0] == pictures[1]
    for text in (english, korean):
        assert len(text) < 12_000, "a front page is short"


def test_the_tours_are_in_step() -> None:
    """The Korean one has the sections, blocks and pictures of the English one."""
    english, korean = "docs/tour.md", "docs/ko/tour.md"
    found = [[(one.language, one.text) for one in blocks(page)] for page in (english, korean)]
    assert found[0] == found[1]
    sections = [re.findall(r"^## (\d*)", read(page), re.MULTILINE) for page in (english, korean)]
    assert sections[0] == sections[1]
    pictures = [re.findall(r"!\[.+\]\((?:\.\./)?(.+)\)", read(page)) for page in (english, korean)]
    assert pictures[0] == pictures[1]
