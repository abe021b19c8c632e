"""Names with placeholders, compiled: matched, and formatted again with the values that they had."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import cached_property, lru_cache

from vitrail.weights.rows import Row

# A value of a placeholder: a number, or the place of a pair (theirs, ours) in its list.
Bound = dict[str, int]
Pairs = tuple[tuple[str, str], ...]
THEIRS, OURS = 0, 1

_PLACEHOLDER = re.compile(r"{(?:(\d+)\*)?([A-Za-z_]+)([+-]\d+)?}")
_NUMBER = "(0|[1-9][0-9]{0,5})"
PARTS: Pairs = (("weight", "weight"), ("bias", "bias"))


def pairs_of(values: Mapping[str, Iterable[str | tuple[str, str]]]) -> dict[str, Pairs]:
    """Every placeholder with listed values, as pairs of theirs and ours."""
    listed = {
        name: tuple(one if isinstance(one, tuple) else (one, one) for one in listed)
        for name, listed in values.items()
    }
    return {"p": PARTS, **listed}


class Pattern:
    """One name with placeholders, on their side or on ours.

    >>> pattern = Pattern("features.{2*s+1}.norm.{p}", THEIRS, pairs_of({}))
    >>> pattern.match("features.5.norm.bias")
    {'s': 2, 'p': 1}
    >>> pattern.format({"s": 3, "p": 0})
    'features.7.norm.weight'
    """

    def __init__(
        self, template: str, side: int, pairs: Mapping[str, Pairs], *, glob: bool = False
    ) -> None:
        self.template, self.side, self.pairs = template, side, pairs
        self.parts = list(_PLACEHOLDER.finditer(template))
        self.names = {part[2] for part in self.parts}
        pieces, end = [], 0
        for part in self.parts:
            pieces.append(_literal(template[end : part.start()], glob))
            listed = pairs.get(part[2])
            among = listed and "|".join(re.escape(pair[side]) for pair in listed)
            pieces.append(f"({among})" if listed else _NUMBER)
            end = part.end()
        pieces.append(_literal(template[end:], glob))
        self.text = "".join(pieces)
        literal = _PLACEHOLDER.sub("\0", template)
        # what every name that matches contains; compiling takes longer than looking for it
        self.needle = max(re.split(r"[\0*?\[\]]" if glob else "\0", literal), key=len)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.text, re.DOTALL)

    def is_like(self, name: str) -> bool:
        """Whether a name has the pattern's form; its numbers may still contradict each other."""
        return self.needle in name and self.regex.fullmatch(name) is not None

    def match(self, name: str) -> Bound | None:
        """The values with which the pattern is this name."""
        found = self.regex.fullmatch(name) if self.needle in name else None
        if found is None:
            return None
        bound: Bound = {}
        for part, text in zip(self.parts, found.groups(), strict=True):
            value = self._value(part, text)
            if value is None or bound.setdefault(part[2], value) != value:
                return None
        return bound

    def _value(self, part: re.Match[str], text: str) -> int | None:
        listed = self.pairs.get(part[2])
        if listed:
            return next(i for i, pair in enumerate(listed) if pair[self.side] == text)
        value, rest = divmod(int(text) - int(part[3] or 0), int(part[1] or 1))
        return None if rest or value < 0 else value

    def format(self, bound: Mapping[str, int | str]) -> str | None:
        """The name with these values; text stands for itself. None where a value is missing, or
        gives no number."""
        pieces, end = [], 0
        for part in self.parts:
            pieces.append(self.template[end : part.start()])
            end, value = part.end(), bound.get(part[2])
            listed = self.pairs.get(part[2])
            if value is None or isinstance(value, str):
                text = value
            elif listed:
                text = listed[value][self.side]
            else:
                number = int(part[1] or 1) * value + int(part[3] or 0)
                text = str(number) if number >= 0 else None
            if text is None:
                return None
            pieces.append(text)
        return "".join([*pieces, self.template[end:]])


def _literal(text: str, glob: bool) -> str:
    return translate(text).removeprefix("(?s:").removesuffix(r")\Z") if glob else re.escape(text)


class CompiledRow:
    """A row and its patterns."""

    def __init__(self, row: Row, pairs: Mapping[str, Pairs]) -> None:
        self.row = row
        glob = not row.ours and row.make is None
        self.theirs = [Pattern(name, THEIRS, pairs, glob=glob) for name in row.theirs]
        self.ours = [Pattern(name, OURS, pairs) for name in row.ours]
        self.like = Pattern(row.like, OURS, pairs) if row.like else None
        self.beside = Pattern(row.beside, THEIRS, pairs) if row.beside else None


class Table:
    """The rows of a dialect, compiled, and what its placeholders run over."""

    def __init__(
        self, rows: Iterable[Row], values: Mapping[str, Iterable[str | tuple[str, str]]]
    ) -> None:
        self.pairs = pairs_of(values)
        self.rows = [CompiledRow(row, self.pairs) for row in rows]
        theirs = {pattern.text: pattern for row in self.rows for pattern in row.theirs}
        self._uses = lru_cache(maxsize=1 << 14)(
            lambda name: any(pattern.is_like(name) for pattern in theirs.values())
        )

    def uses(self, name: str) -> bool:
        """Whether a row has a tensor of this name, if only to drop it or to refuse it."""
        return self._uses(name)

    def uses_all(self, names: Iterable[str]) -> bool:
        return all(self.uses(name) for name in names)
