"""Where a model reads out, and the tokens that it reads: where every explanation begins."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout, height_and_width, simplify_sides
from vitrail.explanation.capture import list_attentions, no_attention, refuse_compiled
from vitrail.explanation.propagation import Cells, attention_groups, count_tokens, on_pixels

MIN_STRIDE = 4  # pixels a side of a cell: the first maps of small images are as fine as pixels


@dataclass(frozen=True)
class Relevance:
    """How much each patch matters to what a model says, by one method.

    The grid is the one of the finest attention, or of the layer that a method looked at; `layout`
    tells. `target` are the classes that were explained, where the method explains one; `delta` is
    how far the map's sum is from what it should be, where a method promises one.
    """

    map: Float[Tensor, "B rows columns"]
    layout: TokenLayout
    method: str
    target: Int[Tensor, "B"] | None = None
    delta: Float[Tensor, "B"] | None = None

    def on_pixels(
        self, size: tuple[int, int], *, mode: Literal["bilinear", "nearest"] = "bilinear"
    ) -> Float[Tensor, "B H W"]:
        """The map as large as images of this size, each cell where its layout has it."""
        return on_pixels(self.map, size, layout=self.layout, mode=mode)


def cell_area(layout: TokenLayout) -> int:
    """Pixels of one cell."""
    return math.prod(layout.strides)


def finest_layout(model: nn.Module) -> TokenLayout:
    """Where maps of pixels are summed: of the attention with the smallest cells, or of a
    convolutional network, of the block with the smallest cells of at least `MIN_STRIDE` pixels."""
    attentions = list_attentions(model)
    if attentions:
        return min((a.layout for a in attentions.values()), key=cell_area)
    every = block_layouts(model)
    coarse = [layout for layout in every if min(layout.strides) >= MIN_STRIDE]
    return min(coarse, key=cell_area) if coarse else every[-1]


def block_layouts(model: nn.Module) -> list[TokenLayout]:
    """Where the cells of each block's map lie in images of the model's own size."""
    info, config = getattr(model, "feature_info", ()), getattr(model, "config", None)
    if not info or config is None:
        raise UserError(no_attention())
    height, width = config.image_size
    strides = [one.reduction for one in info]
    sides = [height_and_width(stride) for stride in strides]
    grids = [(-(-height // high), -(-width // wide)) for high, wide in sides]
    return [
        TokenLayout(grid=grid, stride=stride) for grid, stride in zip(grids, strides, strict=True)
    ]


def check_model(model: nn.Module) -> None:
    """A model as it is used, not as it is trained or compiled."""
    refuse_compiled(model)
    if model.training:
        raise UserError(
            "the model must be in evaluation mode, got training mode, in which dropout is random: "
            "call model.eval() first"
        )


def sum_target_logits(
    logits: Float[Tensor, "B K"], target: Int[Tensor, "B"] | None
) -> tuple[Float[Tensor, ""], Int[Tensor, "B"]]:
    """The logits of the target classes, summed over the batch, since images do not interact; and
    the targets, by default the predicted classes."""
    if logits.ndim != 2:
        raise UserError(f"the model gave {tuple(logits.shape)}, expected (batch, classes)")
    batch, classes = logits.shape
    if target is None:
        target = logits.argmax(dim=1)
    if target.shape != (batch,) or target.dtype not in (torch.int64, torch.int32):
        raise UserError(
            f"target is {tuple(target.shape)} of {target.dtype}, expected a class index for each "
            f"of {batch} images"
        )
    if not 0 <= int(target.min()) <= int(target.max()) < classes:
        raise UserError(f"target must be a class from 0 to {classes - 1}, got {target.tolist()}")
    target = target.long().to(logits.device)
    return logits.gather(1, target[:, None]).sum(), target


def readout(model: nn.Module, layout: TokenLayout, like: Float[Tensor, "B ..."]) -> Cells:
    """Where the head looks, as shares that sum to one: on the class token (and the distillation
    token), evenly on the patches, or on both, as the config says by `pool`."""
    config = getattr(model, "config", None)
    pool = getattr(config, "pool", "cls") if layout.prefix else "mean"
    tokens = like.new_zeros(like.shape[0], count_tokens(layout))
    reads = 2 if getattr(config, "distilled", False) else 1
    patches = tokens.shape[1] - layout.prefix
    match pool:
        case "cls":
            tokens[:, :reads] = 1 / reads
        case "mean":
            tokens[:, layout.prefix :] = 1 / patches
        case "all":
            tokens[:] = 1 / tokens.shape[1]
        case "cls+mean":
            tokens[:, 0], tokens[:, layout.prefix :] = 0.5, 0.5 / patches
        case _:
            raise UserError(f"the model's pooling must be cls, mean or all, got {pool!r}")
    return Cells.of(tokens, layout)


def readout_by_gradient(
    tokens: Float[Tensor, "B N D"], gradient: Float[Tensor, "B N D"], layout: TokenLayout
) -> Cells:
    """Where the head looks for one class: each token's share of the positive contributions, token
    times gradient. If none is positive, all tokens that the head reads count the same."""
    contribution = (tokens * gradient).sum(dim=-1).clamp(min=0)
    is_read = (gradient != 0).any(dim=-1).to(contribution)
    none_positive = contribution.sum(dim=1, keepdim=True) == 0
    contribution = torch.where(none_positive, is_read, contribution)
    total = contribution.sum(dim=1, keepdim=True)
    return Cells.of(contribution / torch.where(total > 0, total, 1), layout)


@dataclass
class RecordedOutputs:
    """The last map of tokens that a module returned; inputs and outputs of the named modules."""

    last: Tensor | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)


@contextmanager
def record_outputs(model: nn.Module, *names: str) -> Iterator[RecordedOutputs]:
    """The tokens that the head reads, which are the last that any module gave; and what goes into
    the modules of these names and comes out of them."""
    seen, thread, handles = RecordedOutputs(), threading.get_ident(), []

    def remember_last(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread and isinstance(output, Tensor) and output.ndim > 2:
            seen.last = output

    for module in model.modules():
        handles.append(module.register_forward_hook(remember_last))
    for name in names:

        def remember(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            if threading.get_ident() == thread:
                seen.inputs[name], seen.outputs[name] = args[0] if args else None, output

        handles.append(find_layer(model, name).register_forward_hook(remember))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def find_layer(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        steps = getattr(model, "blocks_by_depth", dict)
        known = ", ".join(list(steps())[-3:]) or "none"
        raise UserError(f"no layer is called {name!r}; the last ones are {known}") from None


def to_tokens(
    x: Any, layouts: list[TokenLayout], size: tuple[int, int]
) -> tuple[Float[Tensor, "B N D"], TokenLayout]:
    """The tokens of a layer, in reading order, whatever order its axes have, and their layout.

    A layer has tokens (B, N, D), a grid (B, rows, columns, D) or (B, D, rows, columns), or places
    of a fold (B, P, n, D) or (B, D, P, n), of one of the model's attentions; any other map is one
    of channels first, on a grid of its own.
    """
    if not isinstance(x, Tensor) or x.ndim not in (3, 4):
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"the layer must return a map of tokens, got {shape}: choose another")
    for layout in reversed(layouts):
        if x.ndim == 3 and x.shape[1] == count_tokens(layout):
            return x, ungrouped(layout)
        if x.ndim == 3 or layout.prefix:
            continue
        if x.shape[1:3] == layout.grid:
            return x.flatten(1, 2), ungrouped(layout)
        if x.shape[2:] == layout.grid:
            return x.flatten(2).mT, ungrouped(layout)
        if layout.fold is not None:
            groups = attention_groups(layout).to(x.device)
            order = groups.flatten().argsort()
            if x.shape[1:3] == groups.shape:
                return x.flatten(1, 2)[:, order], ungrouped(layout)
            if x.shape[2:] == groups.shape:
                return x.flatten(2).mT[:, order], ungrouped(layout)
    if x.ndim == 3:
        raise UserError(f"the layer gives {tuple(x.shape)}, which are the tokens of no attention")
    rows, columns = x.shape[2:]
    strides = max(-(-size[0] // rows), 1), max(-(-size[1] // columns), 1)
    return x.flatten(2).mT, TokenLayout(grid=(rows, columns), stride=simplify_sides(strides))


def refuse_ambiguous(model: nn.Module, layer: str) -> None:
    """Within a block that folds its map, tokens may be in the order of the map or of the fold. The
    shape tells, but where there are as many places as rows."""
    every: dict[str, nn.Module] = getattr(model, "blocks_by_depth", dict)()
    blocks = [name for name in every if layer.startswith(f"{name}.")]
    for name, attend in list_attentions(model).items():
        layout = attend.layout
        inside = any(name.startswith(f"{block}.") for block in blocks)
        if inside and layout.fold and attention_groups(layout).shape == layout.grid:
            rows, columns = layout.grid
            raise UserError(
                f"the tokens of {layer} may be folded or not, which a grid of {rows}x{columns} "
                f"does not tell: take {blocks[0]}, or an image of another size"
            )


def ungrouped(layout: TokenLayout) -> TokenLayout:
    """The same grid, of tokens that stand each for itself; that it was stretched is still known."""
    return TokenLayout(
        grid=layout.grid, stride=layout.stride, prefix=layout.prefix, fold=layout.fold
    )
