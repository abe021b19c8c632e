"""Dialects of other packages: registered by a call, or found through their entry points.

A package that declares an entry point of the group `vitrail.dialects`, whose value is a `Dialect`,
is known to `load`, `convert` and the command line once it is installed.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from vitrail.core.errors import UserError
from vitrail.models.catalogue import find_family
from vitrail.weights.dialect import Dialect

GROUP = "vitrail.dialects"
_REGISTERED: dict[str, Dialect] = {}


def register_dialect(dialect: Dialect) -> None:
    """Make a dialect known to `load` and `convert`; it claims files that no built-in one claims.

    >>> from dataclasses import replace
    >>> from vitrail.weights.dialects.torchvision import TORCHVISION
    >>> register_dialect(replace(TORCHVISION, name="mine"))
    """
    check_dialect(dialect, "register_dialect")
    if _REGISTERED.get(dialect.name, dialect) is not dialect:
        raise UserError(f"dialect {dialect.name!r} is registered already: choose another name")
    _REGISTERED[dialect.name] = dialect


def registered_dialects() -> tuple[Dialect, ...]:
    """Those of installed packages, then those that were registered by a call."""
    return (*installed_dialects(), *_REGISTERED.values())


@cache
def installed_dialects() -> tuple[Dialect, ...]:
    return tuple(load_dialect(point) for point in entry_points(group=GROUP))


def load_dialect(point: EntryPoint) -> Dialect:
    where = f"entry point {point.name} of {point.dist.name if point.dist else 'a package'}"
    try:
        found = point.load()
    except Exception as error:  # somebody else's code
        raise UserError(f"{where} cannot be loaded: {error}: uninstall or fix it") from error
    check_dialect(found, where)
    assert isinstance(found, Dialect)
    return found


def check_dialect(found: object, where: str) -> None:
    if not isinstance(found, Dialect):
        raise UserError(f"{where}: expected a vitrail Dialect, got {type(found).__name__}")
    find_family(found.family)
