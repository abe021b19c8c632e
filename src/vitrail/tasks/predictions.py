"""The records of `vitrail.predict`: predictions in memory, or the file they were written to."""

from dataclasses import asdict, dataclass
from typing import Any

from vitrail.core.broken import BrokenImage
from vitrail.core.html_text import html_table
from vitrail.inference.prediction import Prediction, format_line
from vitrail.inference.quantisation import Quantisation
from vitrail.tasks.html_record import HtmlRecord
from vitrail.tasks.image_pages import show_predictions

SHOWN = 5  # predictions in a repr


class Predictions(list[Prediction], HtmlRecord):
    """Predictions in the order of the images; `speed_up` has the tokens that were merged in every
    block and how many times as fast that was, if it was wanted, and `quantisation` what int8
    cost."""

    model = ""
    speed_up: dict[str, Any] | None = None
    quantisation: Quantisation | None = None

    def html(self) -> str:
        return show_predictions(self, self.model)

    def facts(self) -> list[dict[str, Any]]:
        """Plain values for JSON, one object an image."""
        return [one.facts() for one in self]

    def __repr__(self) -> str:
        more = [f"… {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        return "\n".join(["Predictions", *map(format_line, self[:SHOWN]), *more])


@dataclass(frozen=True)
class PredictionFile:
    """A file of predictions: how many images it has, which of these could not be read, and what
    was measured of int8 and of merged tokens, if they were wanted."""

    out: str
    images: int
    broken: tuple[BrokenImage, ...]
    quantisation: Quantisation | None = None
    speed_up: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        int8 = {} if self.quantisation is None else {"quantisation": self.quantisation.facts()}
        merged = {} if self.speed_up is None else {"speed_up": self.speed_up}
        broken = [asdict(one) for one in self.broken]
        return {"out": self.out, "images": self.images, "broken": broken, **int8, **merged}

    def __repr__(self) -> str:
        return (
            f"PredictionFile({self.out}, {self.images} images, {len(self.broken)} cannot be read)"
        )

    def _repr_html_(self) -> str:
        return html_table("Predictions", {**self.facts(), "broken": len(self.broken)})
