"""What an operation works on: a model, and the data that were given along with it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.models.model import Model

if TYPE_CHECKING:
    from vitrail.serving.operations.data_context import DataContext


@dataclass(frozen=True)
class Context:
    """`model` is in evaluation mode, in eager PyTorch; `name` is what people call it, `source` what
    it was loaded from, as it was given; `data_problem` why the data that were given are not
    there."""

    model: Model
    data: "DataContext | None" = None
    name: str = "model"
    source: str = ""
    data_problem: str = ""
