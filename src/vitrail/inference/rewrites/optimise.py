"""Every rewrite at once: a model for one kind of output, without the work that nobody reads."""

from collections.abc import Callable, Sequence
from typing import Literal, assert_never

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.inference.merging import merge_tokens
from vitrail.inference.pruning import is_observed
from vitrail.inference.rewrites.activations import fuse_activations
from vitrail.inference.rewrites.batch_norms import fold_batch_norms
from vitrail.inference.rewrites.biases import bake_biases
from vitrail.inference.rewrites.channels_last import use_channels_last
from vitrail.inference.rewrites.kernels import bake_kernels
from vitrail.inference.rewrites.last_block import prune_last_block
from vitrail.inference.rewrites.norms import flatten_norms
from vitrail.inference.rewrites.patches import multiply_patches
from vitrail.inference.rewrites.positions import bake_positions
from vitrail.inference.rewrites.projections import fuse_projections
from vitrail.inference.rewrites.sharing import share_weights
from vitrail.inference.rewrites.windows import gather_windows
from vitrail.models.model import Model

OutputKind = Literal["logits", "scores", "pooled", "tokens"]

REWRITES: tuple[Callable[[Model], Model], ...] = (
    fold_batch_norms,
    bake_kernels,
    multiply_patches,
    bake_positions,
    bake_biases,
    fuse_projections,
    flatten_norms,
    gather_windows,
)
EAGER_REWRITES: tuple[Callable[[Model], Model], ...] = (use_channels_last, fuse_activations)


class Optimised(nn.Module):
    """images -> one kind of output of a rewritten model."""

    def __init__(self, model: Model, output: OutputKind) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B ..."]:
        return compute(self.model, images, self.output)


def optimise(
    model: Model, *, output: OutputKind = "scores", r: int | Sequence[int] = 0
) -> Optimised:
    """The model for inference: batch norms folded, kernels, positions and biases computed once,
    patches embedded by a matrix product, and a last block for the tokens that `output` needs.

    "scores" are probabilities, "logits" what they are made of, "pooled" what the head reads,
    "tokens" what the blocks give. The result equals the model to rounding, unless `r` pairs of
    tokens are merged in every block (`inference/merging.py`).

    The model itself stays as it is. Weights that no rewrite changes are shared, not copied. What a
    rewrite computed from weights does not follow them: after a training step, a new head or
    `load_state_dict`, call `optimise` again. Convert and move the model before, not after:
    constants are computed in its precision.

    >>> fast = optimise(model, output="logits")
    >>> torch.allclose(fast(images), model(images), atol=1e-4)
    True
    """
    if model.training:
        raise UserError("optimise needs a model in evaluation mode: call model.eval() first")
    if is_observed(model):
        raise UserError(
            "optimise needs a model without hooks that is not compiled, because hooks would miss "
            "the work that is removed: remove them, or use the model itself"
        )
    if output in ("logits", "scores") and model.config.num_classes == 0:
        raise UserError('this model has no head: use output="pooled", or load it with num_classes')
    fast = share_weights(model)
    for rewrite in REWRITES:
        fast = rewrite(fast)
    if r != 0:
        fast = merge_tokens(fast, r)
    fast = fast if output == "tokens" else prune_last_block(fast)
    return Optimised(fast, output).eval().requires_grad_(False)


def optimise_for_eager(
    model: Model, *, output: OutputKind = "scores", r: int | Sequence[int] = 0
) -> Optimised:
    """The same, and on a CPU what eager PyTorch gains and other engines do by themselves. Some of
    it only without gradients: use `torch.inference_mode`."""
    optimised = optimise(model, output=output, r=r)
    if next(model.parameters()).device.type != "cpu":
        return optimised
    fast = optimised.model
    for rewrite in EAGER_REWRITES:
        fast = rewrite(fast)
    return Optimised(fast, output).eval().requires_grad_(False)


def compute(
    model: Model, images: Float[Tensor, "B C H W"], output: OutputKind
) -> Float[Tensor, "B ..."]:
    """One kind of output of a model."""
    match output:
        case "tokens":
            return model.encode(images)
        case "pooled":
            return model.features(images)
        case "logits":
            return model(images)
        case "scores":
            logits = model(images)
            return logits.sigmoid() if model.passport.multi_label else logits.softmax(dim=1)
        case _ as never:
            assert_never(never)
