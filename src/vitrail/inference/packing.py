"""Native resolution: images of different sizes packed into one sequence, computed by PyTorch."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.ranges import check_count
from vitrail.inference.engines.catalogue import AUTO, EAGER
from vitrail.inference.engines.runner import RunnerOutput
from vitrail.inference.pruning import is_observed
from vitrail.models.model import Model
from vitrail.models.packing import is_vit, native_size_of, packed_features, packed_logits


class PackedRunner:
    """Logits or features of images, each at its native size, several in one sequence. They equal
    those of the model loaded with that `image_size` to rounding, which the others may change."""

    def __init__(
        self, model: Model, output: RunnerOutput, *, max_tokens: int | None = None
    ) -> None:
        assert output != "tokens", "images of different sizes have different numbers of tokens"
        self.native = native_size_of(model, max_tokens)
        assert is_vit(model)
        self.model, self.output = model, output

    @torch.inference_mode()
    def __call__(self, images: Sequence[Float[Tensor, "C _ _"]]) -> NDArray[np.float32]:
        if is_observed(self.model):
            raise UserError(
                "native_resolution must not be observed by hooks or capture, because tokens of "
                "several images are computed together: load the model with the image_size of one"
            )
        like = next(self.model.parameters())
        compute = packed_logits if self.output == "logits" else packed_features
        values = compute(self.model, [image.to(like) for image in images], prune=True)
        return np.asarray(values.float().cpu().numpy())


def check_native(native: bool, max_tokens: int | None, engine: str, **others: bool) -> None:
    """Refuse what does not go with native resolution: other engines than eager, and `others` that
    are given, such as speed_up and int8."""
    if max_tokens is not None:
        check_count("max_tokens", max_tokens, at_least=1)
        if not native:
            raise UserError(
                "max_tokens is for images at native resolution: add native_resolution=True"
            )
    if not native:
        return
    if engine not in (AUTO, EAGER):
        raise UserError(
            f"native_resolution needs the engine eager, got {engine}: other engines compute "
            "batches of one size"
        )
    for name, given in others.items():
        if given:
            raise UserError(
                f"{name} must be left out with native_resolution=True: it needs images of one size"
            )
