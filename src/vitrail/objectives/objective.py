"""What the loop trains: a module from a batch to losses, around a model."""

from typing import ClassVar

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.core.native_size import NativeSize
from vitrail.models.model import Model

Losses = dict[str, Tensor]
Drawn = Shaped[Tensor, "B ..."]


class Objective(nn.Module):
    """`forward` gives losses, of which "loss" is minimised; `outputs` is what is scored. One that
    learns labels also counts "labelled" images and the "hits" among them, for the log.

    One that learns without labels draws what it hides of each image, gets that in the place of
    targets, and outputs a number for each of its `metric_names`, the loss first. What it
    needs beside the model (a mask token, a decoder) is its own.
    """

    metric_names: ClassVar[tuple[str, ...]] = ()
    native: NativeSize | None = None  # at which size it reads images, if not at the model's

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def teacher(self) -> Model | None:
        """A model that it learns from and leaves as it is, such as a teacher."""
        return None

    def draw(self, seed: int, epoch: int, indices: NDArray[np.int64]) -> Drawn | None:
        """What chance decides for each image, by these numbers alone; None where it has no say."""
        return None

    def forward(self, images: Float[Tensor, "B C H W"], targets: Drawn) -> Losses:
        raise NotImplementedError

    def outputs(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn | None = None
    ) -> Float[Tensor, "B K"]:
        return self.model(images)

    def val_losses(
        self, outputs: Float[np.ndarray, "S K"], targets: Float[np.ndarray, "S K"]
    ) -> Float[np.ndarray, " S"] | None:
        """The loss of each validation image, without what only training adds to it; None where
        `scores` has it already."""
        return None

    def scores(self, outputs: Float[np.ndarray, "S K"]) -> dict[str, float]:
        """The mean of each metric, of all that were judged."""
        columns = zip(self.metric_names, outputs.T, strict=True)
        return {name: float(column.mean()) for name, column in columns}

    def warning(self, outputs: Float[np.ndarray, "S K"]) -> str | None:
        """What a person should know now rather than later, if there is anything."""
        return None

    def illustrate(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn
    ) -> dict[str, Float[Tensor, "B C H W"]]:
        """What a person wants to see of it, by name, in pixels as the model reads them."""
        return {}
