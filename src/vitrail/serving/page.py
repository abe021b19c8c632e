"""The page: files of the package, found among their names and never by a path of a request."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
INDEX = "index.html"


@dataclass(frozen=True)
class PageFile:
    """A file as it is sent; `tag` changes with its content."""

    content: bytes
    media: str
    tag: str


def find_page(path: str) -> PageFile | None:
    """The file of an address like /app/main.js or /static/app/main.js, if the page has one.

    >>> find_page("/../settings.py") is None
    True
    """
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["static"]:
        parts = parts[1:]
    return page_files().get("/".join(parts) or INDEX)


@cache
def page_files() -> dict[str, PageFile]:
    """All of them by name: read once, a few hundred kilobytes."""
    return dict(read_folder(files("vitrail.pages") / "window", ""))


def read_folder(folder: Traversable, before: str) -> Iterator[tuple[str, PageFile]]:
    for one in folder.iterdir():
        name = before + one.name
        if one.is_dir():
            yield from read_folder(one, f"{name}/")
        elif media := MEDIA.get(f".{one.name.rpartition('.')[2]}"):
            content = one.read_bytes()
            yield name, PageFile(content, media, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
