"""The record of a quantisation: how it was done, what it cost, and whether that is too much."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.html_text import html_table
from vitrail.core.json_text import plain_values

MAX_ERROR = 0.05  # of the outputs on calibration images; above it, layers are kept in float
MAX_DROP = 1.0  # percentage points


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """How a model was quantised, and what that cost.

    `kept` are the layers left in float, each with the relative error of the outputs that it alone
    causes in int8. `error` is the relative error of the outputs on `images` that played no part in
    the decisions, `agreement` the share of these with the same label; where an image may have
    several, the share of labels above one half before or after that are so both times; None without
    a head, and for a single class. `accuracy` before and after where their labels are known, `size`
    bytes before and after.
    """

    method: str
    bits: int
    reduced_range: bool
    balanced: bool
    layers: int
    kept: Mapping[str, float] = field(default_factory=dict)
    images: int
    error: float
    agreement: float | None
    accuracy: tuple[float, float] | None
    size: tuple[int, int]

    @property
    def drop(self) -> float | None:
        """Percentage points of accuracy, or of agreement where labels are not known."""
        if self.accuracy is not None:
            before, after = self.accuracy
            return 100 * (before - after)
        return None if self.agreement is None else 100 * (1 - self.agreement)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = asdict(self)
        for name in ("accuracy", "size"):
            before, after = facts.pop(name) or (None, None)
            facts |= {f"{name}_before": before, f"{name}_after": after}
        return plain_values(facts | {"drop": self.drop})

    def lines(self) -> list[str]:
        """For people."""
        before, after = self.size
        how = f"{self.method} int{self.bits}" + (", 7-bit weights" if self.reduced_range else "")
        quality = f"relative error {self.error:.1%} on {self.images} images"
        if self.accuracy is not None:
            was, now = self.accuracy
            quality += f", accuracy {was:.2%} before, {now:.2%} after"
        elif self.agreement is not None:
            quality += f", the same label for {self.agreement:.1%}"
        kept = [f"kept in float: {name} ({error:.1%} alone)" for name, error in self.kept.items()]
        return [
            f"{how}: {self.layers} layers, {before / 1e6:,.1f} MB to {after / 1e6:,.1f} MB",
            quality,
            *kept,
        ]

    def __repr__(self) -> str:
        return "\n".join(["Quantisation", *self.lines()])

    def _repr_html_(self) -> str:
        return html_table("Quantisation", {**self.facts(), "kept": ", ".join(self.kept) or "none"})


def check_drop(
    record: Quantisation, max_drop: float, *, instead: str = 'use precision="float16"'
) -> None:
    """Refuse a model that lost more than this many percentage points, or, where no labels tell, one
    whose outputs changed by more than the error allowed; 100 allows everything. The sentence names
    what to do `instead`."""
    if record.drop is None:
        if record.error <= MAX_ERROR or max_drop >= 100:
            return
        raise UserError(
            f"int8 may change outputs by {MAX_ERROR:.0%}, but changes them by {record.error:.1%} "
            f"on {record.images} images: {instead}"
        )
    if record.drop <= max_drop:
        return
    what = "accuracy" if record.accuracy is not None else "label agreement"
    raise UserError(
        f"int8 may lose {max_drop:g} points of {what}, but loses {record.drop:.2f} on "
        f"{record.images} images: raise max_drop, or {instead}"
    )
