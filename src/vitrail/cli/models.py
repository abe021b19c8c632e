"""`vitrail models`: which models there are."""

from __future__ import annotations

import json as machine
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.models.variant import Variant


@dataclass(frozen=True)
class Models:
    """Which models to list, and how."""

    pattern: str = "*"
    """A shell pattern for names: 'vit_b_*'."""
    _: KW_ONLY
    json: bool = False
    """Print a JSON list."""


def models(asked: Models) -> None:
    """List families and variants: parameters, multiply-adds, tokens and default image size."""
    from rich.console import Console
    from rich.table import Table

    from vitrail.core.errors import UserError, nearest
    from vitrail.models.catalogue import FAMILIES, list_models

    names = set(list_models(asked.pattern))
    if not names:
        raise UserError(
            f"no model matches {asked.pattern!r}, {nearest(asked.pattern, list_models())}"
        )
    rows = [
        (family, name, variant)
        for family, known in FAMILIES.items()
        for name, variant in known.variants.items()
        if name in names
    ]
    if asked.json:
        keys = ("family", "model", "params", "macs", "tokens", "image_size")
        print(machine.dumps([dict(zip(keys, figures(*row), strict=True)) for row in rows]))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("family")
    table.add_column("model")
    for column in ("parameters", "multiply-adds", "tokens", "image"):
        table.add_column(column, justify="right")
    for row in rows:
        family, name, params, macs, tokens, (height, width) = figures(*row)
        shown = (f"{params:,}", f"{macs / 1e9:,.2f} G", str(tokens), f"{height}x{width}")
        table.add_row(family, name, *shown)
    Console(width=max(Console().width, 90)).print(table)


def figures(
    family: str, name: str, variant: Variant[Any]
) -> tuple[str, str, int, int, int, tuple[int, int]]:
    config = variant.config
    return family, name, variant.params, variant.macs, config.tokens, config.image_size
