"""Learning labels from images at their native resolution, packed (NaViT, arXiv:2307.06304)."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitrail.models.model import Model
from vitrail.models.packing import is_vit, native_size_of, packed_logits
from vitrail.objectives.objective import Losses
from vitrail.objectives.supervised import Supervised, agreement


class PackedSupervised(Supervised):
    """`Supervised` for images of different sizes, several in one sequence, each of which counts the
    same; the learned positions are resized to each image's grid, and learn through that."""

    def __init__(self, model: Model, *, max_tokens: int | None = None, **options: Any) -> None:
        super().__init__(model, **options)
        self.native = native_size_of(model, max_tokens)

    def forward(  # type: ignore[override]
        self, images: Sequence[Float[Tensor, "C _ _"]], targets: Float[Tensor, "B K"]
    ) -> Losses:
        logits = self.outputs(images)
        return {"loss": self.cost(logits, targets), **agreement(logits, targets)}

    def outputs(  # type: ignore[override]
        self, images: Sequence[Float[Tensor, "C _ _"]], drawn: None = None
    ) -> Float[Tensor, "B K"]:
        assert is_vit(self.model)
        return packed_logits(self.model, images)
