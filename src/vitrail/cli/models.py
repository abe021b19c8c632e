"""`vitrail models`: which models there are."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import OutputOptions
from vitrail.cli.output import say_json, say_table

if TYPE_CHECKING:
    from vitrail.models.variant import Variant


@dataclass(frozen=True)
class Models(OutputOptions):
    """Which models to list, and how."""

    pattern: str = "*"
    """A shell pattern for names: 'vit_b_*'."""
    _: KW_ONLY


def models(options: Models) -> None:
    """List families and variants: parameters, multiply-adds, tokens and default image size.

    Examples:
      vitrail models
      vitrail models 'vit_b_*' --json
    """
    from vitrail.core.errors import UserError, nearest
    from vitrail.models.catalogue import families, list_models

    names = set(list_models(options.pattern))
    if not names:
        raise UserError(
            f"no model matches {options.pattern!r}, {nearest(options.pattern, list_models())}"
        )
    rows = [
        (family, name, variant)
        for family, known in families().items()
        for name, variant in known.variants.items()
        if name in names
    ]
    if options.json:
        keys = ("family", "model", "params", "macs", "tokens", "image_size")
        say_json([dict(zip(keys, figures(*row), strict=True)) for row in rows])
        return
    titles = ("family", "model", "parameters", "multiply-adds", "tokens", "image")
    cells = []
    for row in rows:
        family, name, params, macs, tokens, (height, width) = figures(*row)
        shown = (f"{params:,}", f"{macs / 1e9:,.2f} G", str(tokens), f"{height}x{width}")
        cells.append((family, name, *shown))
    say_table(titles, cells, right=4)


def figures(
    family: str, name: str, variant: Variant[Any]
) -> tuple[str, str, int, int, int, tuple[int, int]]:
    config = variant.config
    return family, name, variant.params, variant.macs, config.tokens, config.image_size
