"""No path of this machine in an answer: names of files below their folder, sentences and records
with the last part of a path alone."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

# An absolute path within a sentence, up to a space, a quote or a mark at its end; addresses of the
# service (/v1/embed) and those of the web are none.
ABSOLUTE = re.compile(
    r"""(?<![\w/.:*-])(?:~|[A-Za-z]:)?[/\\](?!v[12]\b)(?:[^\s/\\'"`,;:()]+[/\\])+([^\s/\\'"`,;:()]*)"""
)

ADDRESS = "://"


def hide_paths(sentence: str, known: Iterable[str] = ()) -> str:
    """A sentence with names in place of absolute paths; `known` are paths that may have spaces.

    >>> hide_paths("/srv/models/pets/config.json: cannot be read, see /v1/models")
    'config.json: cannot be read, see /v1/models'
    """
    for path in sorted(filter(is_telling, known), key=len, reverse=True):
        sentence = sentence.replace(path, last_part(path))
    return ABSOLUTE.sub(lambda found: found[1] or last_part(found[0]), sentence)


def is_telling(path: str) -> bool:
    """Whether a path tells of directories above the one that the service was started in.

    >>> is_telling("/srv/pets"), is_telling("../pets"), is_telling("runs/pets"), is_telling("a/b c")
    (True, True, False, False)
    """
    parts = PurePath(path)
    return parts.is_absolute() or path.startswith("~") or ".." in parts.parts


def last_part(path: str) -> str:
    return PurePath(path).name or "a folder"


def public_values(value: Any) -> Any:
    """A record with the last part of each path in place of the path."""
    match value:
        case str():
            whole = is_telling(value) and "\n" not in value
            return last_part(value) if whole else hide_paths(value)
        case Mapping():
            return {name: public_values(one) for name, one in value.items()}
        case list() | tuple():
            return [public_values(one) for one in value]
    return value


def common_folder(names: Iterable[str]) -> str:
    """The folder that all names of files are in, as deep as it goes; "" where there is none, or
    only the root of the file system. Addresses are passed over.

    >>> common_folder(["/data/pets/cat/1.png", "/data/pets/dog/1.png"]), common_folder(["cat.png"])
    ('/data/pets', '')
    """
    found: str | None = None
    for name in names:
        if ADDRESS in name:
            continue
        folder = os.path.dirname(name)
        if found is None or found == folder:
            found = folder
            continue
        try:
            found = os.path.commonpath([found, folder])
        except ValueError:  # one absolute, one relative
            return ""
    return "" if found is None or os.path.dirname(found) == found else found


def public_name(name: str, folder: str) -> str:
    """The name of a file below its folder; what is elsewhere keeps its last part alone.

    >>> public_name("/data/pets/cat/1.png", "/data/pets"), public_name("/srv/1.png", "")
    ('cat/1.png', '1.png')
    >>> public_name("https://example.org/1.png", "")
    'https://example.org/1.png'
    """
    if ADDRESS in name:
        return name
    below = os.path.relpath(name, folder) if folder else name
    return last_part(name) if is_telling(below) else below
