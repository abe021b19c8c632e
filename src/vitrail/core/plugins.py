"""What other installed packages add, by entry points; read when it is first needed, not before."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from vitrail.core.errors import UserError

_loaded: set[str] = set()  # groups


def load_plugins(group: str, register: Callable[[str, Any], None]) -> None:
    """Call `register(name, object)` for every entry point of a group, once for each process. A
    package declares them in its pyproject.toml:

        [project.entry-points."vitrail.families"]
        tiny = "my_package.tiny:FAMILY"
    """
    if group in _loaded:
        return
    _loaded.add(group)
    for point in entry_points(group=group):
        try:
            found = point.load()
        except Exception as error:  # somebody else's module may raise anything
            package = point.dist.name if point.dist else point.value
            raise UserError(
                f"{group}: {point.name} of the package {package} cannot be imported "
                f"({type(error).__name__}: {error}): update the package, or uninstall it"
            ) from error
        register(point.name, found)
