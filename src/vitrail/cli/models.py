"""`vitrail models`: which models there are."""

import json as machine
from dataclasses import KW_ONLY, dataclass


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
        {
            "family": family,
            "model": name,
            "params": variant.params,
            "macs": variant.macs,
            "tokens": variant.config.layout.tokens,
            "image_size": variant.config.image_size,
        }
        for family, table in FAMILIES.items()
        for name, variant in table.variants.items()
        if name in names
    ]
    if asked.json:
        print(machine.dumps(rows))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("family")
    table.add_column("model")
    for column in ("parameters", "multiply-adds", "tokens", "image"):
        table.add_column(column, justify="right")
    for row in rows:
        height, width = row["image_size"]  # type: ignore[misc]
        table.add_row(
            str(row["family"]),
            str(row["model"]),
            f"{row['params']:,}",
            f"{row['macs'] / 1e9:,.2f} G",  # type: ignore[operator]
            str(row["tokens"]),
            f"{height}x{width}",
        )
    Console(width=max(Console().width, 90)).print(table)
