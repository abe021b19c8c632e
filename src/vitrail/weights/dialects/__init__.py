"""Every dialect that is read and written, most specific first: the first that claims a file reads it."""

from vitrail.core.errors import UserError, nearest
from vitrail.weights.dialect import Dialect, Foreign
from vitrail.weights.dialects import timm

DIALECTS: tuple[Dialect, ...] = (timm.TIMM,)


def find_dialect(name: str) -> Dialect:
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    raise UserError(f"unknown dialect {name!r}, {nearest(name, [d.name for d in DIALECTS])}")


def recognise(foreign: Foreign) -> Dialect:
    """The dialect whose names these are."""
    for dialect in DIALECTS:
        if dialect.claims(foreign):
            return dialect
    known = ", ".join(dialect.name for dialect in DIALECTS)
    some = ", ".join(list(foreign.tensors)[:3]) or "no tensors at all"
    raise UserError(
        f"{foreign.source}: its tensors ({some}, …) are in none of the known dialects ({known})"
    )
