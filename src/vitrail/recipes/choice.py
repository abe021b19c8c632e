"""The options that a recipe depends on, the data, and what every recipe reads from the two."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from vitrail.core.errors import UserError
from vitrail.data.source import Source
from vitrail.models.catalogue import find, variant_of

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options that a recipe depends on, and the data."""

    data: str
    train: Source
    model: str | None = None  # --model
    start: str | None = None  # --from: a checkpoint
    batch_size: int | None = None  # --batch-size; recipes that scale lr with the batch follow it
    image_size: tuple[int, int] | None = None
    native_resolution: bool = False  # images of different sizes are packed: no stem

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {self.batch_size}")

    @property
    def count(self) -> int:
        """Images to train on."""
        return len(self.train)

    def steps(self, epochs: float, batch: int) -> int:
        """Steps of that many epochs, each of full batches, or of one partial batch."""
        return max(round(epochs * max(self.count // batch, 1)), 1)

    def fields(self, **values: Any) -> dict[str, Any]:
        """Fields of the model's config, with the image size that was given in its place."""
        return values | ({} if self.image_size is None else {"image_size": self.image_size})

    def checkpoint(self, recipe: str) -> str:
        """What to begin from, for the recipes that make no sense without it."""
        if self.start is None:
            raise UserError(f"{recipe} fine-tunes a checkpoint: give start=CHECKPOINT")
        return self.start


def canonical(model: str) -> str:
    """Our name for what may be another library's.

    >>> canonical("vit_base_patch16_384.augreg_in21k_ft_in1k")
    'vit_b_16'
    """
    try:
        return variant_of(find(model)) or model
    except UserError:
        return model  # whether there is such a model is checked where it is built


def row_of(rows: Mapping[str, Row], model: str, recipe: str) -> Row:
    """The row of a paper's table for a model, under whichever name."""
    row = rows.get(model, rows.get(canonical(model)))
    if row is None:
        raise UserError(f"{recipe} has no row for {model!r}: its paper has {', '.join(rows)}")
    return row
