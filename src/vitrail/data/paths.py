"""Which images are meant: files, directories, patterns, addresses, and names on standard input.

An image's name is what was given, or for a directory the given name with the path below it; it is
the image's id wherever results are written.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from glob import has_magic, iglob

from vitrail.core.addresses import is_address as is_address
from vitrail.core.errors import UserError

STDIN = "/dev/stdin"
NONE_GIVEN = (
    "no images: give files, directories, patterns, addresses, or - for names on standard input"
)


def list_images(paths: Sequence[str]) -> Iterator[str]:
    """Every image that is meant, in order; of a directory the names of one folder at a time.

    A directory means the images below it, sorted, hidden ones aside; a pattern, where no file has
    that very name, means what it matches, sorted.

    >>> list(list_images(["cat.jpg", "https://example.org/dog.jpg"]))
    ['cat.jpg', 'https://example.org/dog.jpg']
    """
    none = True
    for path in paths:
        for name in expand(path):
            none = False
            yield name
    if none:
        listed = ", ".join("standard input" if path == STDIN else path for path in paths)
        raise UserError(f"{listed}: no images found")


def count_images(paths: Sequence[str]) -> int | None:
    """How many images are meant, unless their names come on standard input and must be waited for.

    >>> count_images(["cat.jpg"]), count_images([STDIN])
    (1, None)
    """
    return None if STDIN in paths else sum(1 for _ in list_images(paths))


def expand(path: str) -> Iterator[str]:
    """The images that one path, pattern or address means."""
    if path == STDIN:
        if sys.stdin is None:
            raise UserError("- reads names from standard input, which is closed")
        yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    elif is_address(path):
        yield path
    elif os.path.isdir(path):
        yield from _below(path, ())
    elif is_pattern(path):
        for match in sorted(iglob(path, recursive=True)):
            yield from _below(match, ()) if os.path.isdir(match) else (match,)
    else:
        yield path


def check_paths(paths: Sequence[str]) -> None:
    """Refuse, before anything is loaded, what cannot mean an image. A file that was named and does
    not exist is a mistake; one that is listed on standard input is a row with its reason."""
    if not paths:
        raise UserError(NONE_GIVEN)
    for path in paths:
        if is_pattern(path):
            if next(iglob(path, recursive=True), None) is None:
                raise UserError(f"no file matches {path!r}")
        elif path != STDIN and not is_address(path) and not os.path.lexists(path):
            raise UserError(f"{path}: no such file")


def is_one(path: str) -> bool:
    """Whether a path means one image, rather than what is in a directory or matches a pattern."""
    return path != STDIN and not os.path.isdir(path) and not is_pattern(path)


def is_pattern(path: str) -> bool:
    return has_magic(path) and not is_address(path) and not os.path.lexists(path)


def _below(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """The images in a folder and below it, in the order of their paths; links are followed,
    circles are not."""
    from vitrail.data.sources.files import is_image
    from vitrail.data.sources.places import is_hidden

    try:
        facts = os.stat(folder)
        with os.scandir(folder) as entries:  # names only: an entry is ten times as large
            names = sorted(
                (entry.name, entry.is_dir()) for entry in entries if not is_hidden(entry.name)
            )
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed: {error.strerror or error}") from None
    here = (facts.st_dev, facts.st_ino)
    if here in above:
        return
    for name, is_folder in names:
        path = os.path.join(folder, name)
        if is_folder:
            yield from _below(path, (*above, here))
        elif is_image(path):
            yield path
