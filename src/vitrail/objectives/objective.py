"""What the loop trains: a module from a batch to losses, around a model."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models.model import Model

Losses = dict[str, Tensor]


class Objective(nn.Module):
    """`forward` gives losses, of which "loss" is minimised; `answer` is what is judged."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B C H W"], targets: Float[Tensor, "B K"]) -> Losses:
        raise NotImplementedError

    def answer(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.model(images)
