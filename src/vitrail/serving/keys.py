"""API keys: read from a file, and compared in constant time."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal, TypeAlias

from vitrail.core.errors import UserError

MIN_LENGTH = 16  # letters
ADMIN = "admin"  # the word behind a key that may load and unload models

Role: TypeAlias = Literal["user", "admin"]


@dataclass(frozen=True)
class Keys:
    """Digests of keys, so that all have one length and none is in memory."""

    users: tuple[bytes, ...]
    admins: tuple[bytes, ...]

    def role(self, key: str | None) -> Role | None:
        """Who has this key. Every known key is compared, whichever fits."""
        given = digest(key or "")
        users = sum(hmac.compare_digest(given, known) for known in self.users)
        admins = sum(hmac.compare_digest(given, known) for known in self.admins)
        if key is None:
            return None
        return "admin" if admins else "user" if users else None


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: str | Path) -> Keys:
    """A key a line; `admin` behind it where it may load and unload models; a word that begins with
    # begins a comment."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # editors of Windows write a mark first
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: API keys cannot be read: {error}") from None
    return parse_keys(text.splitlines(), where=str(path))


def parse_keys(lines: Iterable[str], *, where: str) -> Keys:
    """
    >>> found = parse_keys(["0123456789abcdef", "fedcba9876543210 admin"], where="keys")
    >>> found.role("0123456789abcdef"), found.role("fedcba9876543210"), found.role("guess")
    ('user', 'admin', None)
    """
    users, admins = list[bytes](), list[bytes]()
    for number, line in enumerate(lines, start=1):
        words = list(takewhile(lambda word: not word.startswith("#"), line.split()))
        if not words:
            continue
        if len(words) > 2 or (len(words) == 2 and words[1] != ADMIN):
            raise UserError(f"{where}:{number}: must be a key, or a key and the word {ADMIN}")
        if len(words[0]) < MIN_LENGTH:
            raise UserError(f"{where}:{number}: a key must have at least {MIN_LENGTH} letters")
        if not (words[0].isascii() and words[0].isprintable()):
            raise UserError(f"{where}:{number}: a key must be printable ASCII, as headers are")
        (admins if len(words) == 2 else users).append(digest(words[0]))
    if not users and not admins:
        raise UserError(f"{where}: holds no API key: write one a line")
    return Keys(tuple(users), tuple(admins))


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of a request: `Authorization: Bearer KEY`, or `X-API-Key: KEY`."""
    for name, value in headers:
        if name == b"x-api-key" and value.strip():
            return value.decode("latin-1").strip()
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                return key.strip()
    return None
