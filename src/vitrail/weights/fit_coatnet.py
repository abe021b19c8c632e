"""Fitting a CoAtNet: the biases of its attention to the grids of another image size."""

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.coatnet import CoAtNetConfig
from vitrail.weights.offsets import Along, far_lines, linear, resize_offsets
from vitrail.weights.rows import Tensors

METHODS: dict[ResizeMethod, Along] = {"paper": linear, "timm": far_lines}  # the paper: A.1


def fit_coatnet(
    state: Tensors, old: CoAtNetConfig, new: CoAtNetConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """The tables of every stage that has any; biases that are computed need nothing."""
    state, done = dict(state), []
    for stage, (before, after) in enumerate(zip(old.layouts, new.layouts, strict=True)):
        names = [f"stages.{stage}.{i}.attention.bias.table" for i in range(old.depths[stage])]
        tables = [name for name in names if name in state]
        if not tables or before.grid == after.grid:
            continue
        if method not in METHODS:
            known = " or ".join(METHODS)
            raise UserError(f"offsets of attention are not resized by {method!r}: use {known}")
        for name in tables:
            state[name] = resize_offsets(state[name], before.grid, after.grid, METHODS[method])
        sizes = "{}x{} to {}x{}".format(*before.grid, *after.grid)
        done.append(f"relative bias of stage {stage + 1} resized from {sizes} ({method})")
    return state, done
