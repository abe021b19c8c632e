"""LayerNorms of grids and folds computed on sequences: OpenVINO fuses those of rank 3 alone."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import replace_modules
from vitrail.layers.attention import Attend
from vitrail.models.model import Model


class SequenceNorm(nn.Module):
    """A LayerNorm of tokens on any number of axes, which lie behind each other in memory."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Float[Tensor, "B ... D"]) -> Float[Tensor, "B ... D"]:
        return self.norm(x.flatten(1, -2)).reshape(x.shape) if x.ndim > 3 else self.norm(x)


def flatten_norms(model: Model) -> Model:
    """The model with its LayerNorms on sequences, where tokens have axes of windows or folds."""
    layouts = [module.layout for module in model.modules() if isinstance(module, Attend)]
    if not any(layout.window or layout.fold for layout in layouts):
        return model
    flat = replace_modules(
        model, lambda module: SequenceNorm(module) if type(module) is nn.LayerNorm else None
    )
    assert isinstance(flat, Model)
    return flat
