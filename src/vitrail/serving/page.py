"""The page: files of the package, found among their names and never by a path of a request."""

import hashlib
from dataclasses import dataclass
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
MAX_PARTS = 8


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
    found: Traversable = files("vitrail.pages") / "window"
    for part in (parts or [INDEX])[:MAX_PARTS]:
        # compared with the names that are there: "..", links and separators are none of them
        named = {one.name: one for one in found.iterdir()} if found.is_dir() else {}
        if part not in named:
            return None
        found = named[part]
    media = MEDIA.get(f".{found.name.rpartition('.')[2]}")
    if media is None or len(parts) > MAX_PARTS or not found.is_file():
        return None
    content = found.read_bytes()
    return PageFile(content, media, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
