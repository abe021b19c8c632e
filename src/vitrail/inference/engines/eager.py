"""The engine that calls PyTorch: any device, any precision, hooks are seen."""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inference.engines.runner import RunnerOutput
from vitrail.inference.pruning import is_observed
from vitrail.inference.rewrites.optimise import Optimised, compute, optimise_for_eager
from vitrail.models.model import Model

EXACT = (torch.float32, torch.float64)  # a rewrite's constants lose nothing in these


class EagerRunner:
    """The model itself, for batches of any size. As long as nothing observes it, work that nobody
    reads is left out (`inference/rewrites`): so its weights must stay as they are."""

    def __init__(self, model: Model, output: RunnerOutput) -> None:
        self.model, self.output = model, output
        self.fast: Optimised | None = None
        is_exact = next(model.parameters()).dtype in EXACT
        if is_exact and not model.training and not is_observed(model):
            self.fast = optimise_for_eager(model, output=output)

    @torch.inference_mode()
    def __call__(self, images: Float[Tensor, "B C H W"]) -> NDArray[np.float32]:
        values = self.forward(images.to(next(self.model.parameters())))
        return np.asarray(values.float().cpu().numpy())

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        if self.fast is None or is_observed(self.model):  # hooks come and go
            return compute(self.model, images, self.output)
        return self.fast(images)
