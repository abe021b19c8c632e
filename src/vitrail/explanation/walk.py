"""One image through a model in the steps of its paper, with the numbers of one patch and head.

A block of stages has its own steps before its attention: merged or convolved cells, windows, folds.
Nothing here knows a family: parts are found by their names, and steps that a model lacks are none.
"""

import re
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.explanation.attention_levels import count_heads
from vitrail.explanation.capture import find_attentions
from vitrail.explanation.hooks import is_convolutional, named_blocks
from vitrail.explanation.propagation import attention_groups
from vitrail.explanation.readout import check_model
from vitrail.explanation.source_lines import method_line, source_line
from vitrail.explanation.walk_attention import block_steps
from vitrail.explanation.walk_blocks import walk_blocks
from vitrail.explanation.walk_ends import Pixels, first_steps, last_steps, part_of
from vitrail.explanation.walk_record import (
    Calls,
    Query,
    Step,
    find_query,
    last_block,
    record_calls,
    shape_of,
    vector,
)
from vitrail.layers.fold import fold, unfold

# every step that some family has, in the order in which they may come
STEP_IDS = (
    "image", "stem", "patches", "projection", "class_token", "positions", "embed_norm",
    "earlier", "residual", "merge", "conv", "downsample", "local", "unfold",
    "block.norm1", "window", "qkv", "bias", "scores", "softmax", "sum", "out",
    "block.norm2", "mlp", "fold", "later", "last", "norm", "pool", "head",
)  # fmt: skip
ENDS = ("stem", "patches", "positions", "embed_norm", "norm", "last", "head", "head_distilled")


@dataclass(frozen=True)
class Walk:
    """The steps, the query that they follow, and the logits at their end."""

    steps: tuple[Step, ...]
    query: Query
    logits: Float[Tensor, "1 K"]

    def step(self, id: str) -> Step:
        return next(one for one in self.steps if one.id == id)


@torch.no_grad()
def walk(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    *,
    attention: int = 0,
    head: int = 0,
    patch: tuple[int, int] | None = None,
    token: int | None = None,
    pixels: Pixels | None = None,
) -> Walk:
    """Follow a patch of an attention's grid (or a token) through the attention of that number, in
    one head; of a convolutional network, a cell through the block of that number. `pixels` are
    those of the image before it was normalised, to be shown.

    >>> found = walk(model, images[:1], attention=3, head=1, patch=(7, 7))
    >>> found.step("softmax").values["weights"].numbers.shape
    torch.Size([197])
    """
    check_model(model)
    if is_convolutional(model):
        return Walk(
            *walk_blocks(model, image, block=attention, patch=patch, token=token, pixels=pixels)
        )
    names = list(find_attentions(model))
    if not 0 <= attention < len(names):
        raise UserError(f"block must be from 0 to {len(names) - 1}, got {attention}")
    name = names[attention]
    heads = count_heads(model, name)
    if not 0 <= head < heads:
        raise UserError(f"head of {name} must be from 0 to {heads - 1}, got {head}")
    layout = find_attentions(model)[name].layout
    query = find_query(name, layout, head, patch=patch, token=token)
    with record_calls(model, modules_to_record(model, name)) as calls:
        logits: Tensor = model(image)
    steps = [
        *first_steps(model, image, pixels, query, calls),
        *before_block(model, query, calls, attention),
        *block_steps(query, calls, model),
        *after_block(model, query, calls, attention, len(names)),
        *last_steps(model, logits, query, calls),
    ]
    return Walk(tuple(steps), query, logits)


def modules_to_record(model: nn.Module, attention: str) -> list[str]:
    """The ends of the model, the last block, and everything within the block, what is around it,
    the merging that begins its stage, and the convolution before it."""
    block, around = attention.rpartition(".")[0], outer_block(model, attention)
    wanted = [block, around, merge_of(model, attention), conv_before(model, attention)]
    roots = [name for name in (*ENDS, *wanted) if name and has_part(model, name)]
    inside = [
        name
        for name, _ in model.named_modules()
        if any(name == root or name.startswith(f"{root}.") for root in roots)
    ]
    return [*inside, last_block(model)]


def has_part(model: nn.Module, name: str) -> bool:
    try:
        model.get_submodule(name)
    except AttributeError:
        return False
    return True


def outer_block(model: nn.Module, attention: str) -> str:
    """The block of `blocks_by_depth` that an attention lies in."""
    around = [name for name in named_blocks(model) if f"{attention}.".startswith(f"{name}.")]
    return around[0] if around else attention.rpartition(".")[0]


def merge_of(model: nn.Module, attention: str) -> str:
    """The merging that a stage of windows begins with, if it does."""
    stage = re.match(r"stages\.\d+", attention)
    name = "" if stage is None else f"{stage.group()}.merge"
    return name if name in named_blocks(model) else ""


def conv_before(model: nn.Module, attention: str) -> str:
    """The last block before an attention that convolves and does not attend."""
    found, inside = "", outer_block(model, attention)
    attentions = [name.rpartition(".")[0] for name in find_attentions(model)]
    for name, block in named_blocks(model).items():
        if name == inside:
            break
        convolves = any(isinstance(part, nn.Conv2d) for part in block.modules())
        if convolves and not any(f"{one}.".startswith(f"{name}.") for one in attentions):
            found = name
    return found


def before_block(model: nn.Module, query: Query, calls: Calls, attention: int) -> list[Step]:
    """What leads from the embedded image to the chosen block."""
    outer = outer_block(model, query.attention)
    earlier, conv = earlier_step(model, query, calls, attention), conv_step(model, query, calls)
    start = merge_step(model, query, calls)
    if query.layout.fold is not None:
        start = [*start, *conv, *fold_steps(model, outer, query, calls)]
    elif follows_conv(model, query):
        start = [*start, *conv]
    else:
        earlier = [*conv, *earlier]
    steps = [*earlier, *start] if begins_stage(model, query) else [*start, *earlier]
    return [*steps, *downsample_step(model, query, calls)]


def follows_conv(model: nn.Module, query: Query) -> bool:
    """Whether the block before the one of an attention convolves."""
    blocks, before = list(named_blocks(model)), conv_before(model, query.attention)
    outer = outer_block(model, query.attention)
    return bool(before) and blocks.index(before) + 1 == blocks.index(outer)


def begins_stage(model: nn.Module, query: Query) -> bool:
    """Whether no other attention lies between a block and the merging, convolution or fold that its
    stage begins with."""
    stage = re.match(r"stages\.\d+", query.attention)
    start = "" if stage is None else f"{stage.group()}."
    every = list(find_attentions(model))
    before = every[: every.index(query.attention)]
    return bool(start) and not any(name.startswith(start) for name in before)


def earlier_step(model: nn.Module, query: Query, calls: Calls, attention: int) -> list[Step]:
    """The blocks before: what comes into the chosen one, or into what its stage begins with."""
    if not attention:
        return []
    name = query.attention.rpartition(".")[0]
    entry = name
    if begins_stage(model, query):
        before = conv_before(model, query.attention) if follows_conv(model, query) else ""
        entry = merge_of(model, query.attention) or before or name
    x = calls[entry][-1].input
    if query.layout.fold is not None and entry == name:
        token = query.in_group(x)
    elif x.ndim == 3 or query.layout.window is not None:
        token = query.in_map(x, x.shape[-1])
    else:
        token = at_cell(x, query)
    code = method_line(model, "forward_blocks", r"x = (block|stage)\(") or method_line(
        model, "encode", "stage"
    )
    facts = {"count": attention, "name": name}
    value = {"token": vector(token)}
    return [Step("earlier", "z_ℓ = block_ℓ(z_ℓ₋₁)", shape_of(x), code, value, facts)]


def merge_step(model: nn.Module, query: Query, calls: Calls) -> list[Step]:
    name = merge_of(model, query.attention)
    if not name or not calls.get(name):
        return []
    call, merge = calls[name][-1], model.get_submodule(name)
    order = [each for each in ("norm", "reduction") if calls.get(f"{name}.{each}")]
    first = min(order, key=lambda each: -calls[f"{name}.{each}"][-1].input.shape[-1])
    cells = calls[f"{name}.{first}"][-1].input  # four cells side by side
    width = call.output.shape[-1]
    values = {"cells": vector(query.in_map(cells, cells.shape[-1]))}
    values["result"] = vector(query.in_map(call.output, width))
    after = calls[f"{name}.norm"][-1].input.shape[-1] == width
    four = "[x₀₀; x₁₀; x₀₁; x₁₁]"
    equation = f"y = LN(W · {four})" if after else f"y = W · LN({four})"
    facts = {
        "from": list(call.input.shape[1:3]),
        "to": list(call.output.shape[1:3]),
        "width": width,
    }
    code = method_line(merge, "forward", "return")
    return [Step("merge", equation, shape_of(call.output), code, values, facts)]


def conv_step(model: nn.Module, query: Query, calls: Calls) -> list[Step]:
    """An inverted residual: wide, filtered in each channel by itself, narrow."""
    name = conv_before(model, query.attention)
    if not name or not calls.get(name):
        return []
    output, block = calls[name][-1].output, model.get_submodule(name)
    values = {}
    for part in ("expand", "filter", "depthwise", "project"):
        for inside in (part, f"branch.{part}"):
            if made := calls.get(f"{name}.{inside}"):
                values[part] = vector(at_cell(made[-1].output, query))
    values["result"] = vector(at_cell(output, query))
    came = calls[name][-1].input
    facts = {
        "name": name,
        "count": list(named_blocks(model)).index(name) + 1,
        "adds": came.shape == output.shape,
        "grid": list(output.shape[2:]),
        "channels": output.shape[1],
    }
    equation = "y = W₃ · φ(DWConv₃ₓ₃(φ(W₁ · x)))"
    equation = equation.replace("y =", "y = x +") if facts["adds"] else equation
    code = method_line(block, "forward", "self\\.(project|branch)|return")
    return [Step("conv", equation, shape_of(output), code, values, facts)]


def at_cell(x: Float[Tensor, "1 D H W"], query: Query) -> Float[Tensor, " D"]:
    row, column = query.cell_on((x.shape[2], x.shape[3]))
    return x[0, :, row, column]


def downsample_step(model: nn.Module, query: Query, calls: Calls) -> list[Step]:
    """A pool in front of attention, where a stage begins."""
    name = query.attention.rpartition(".")[0]
    block = model.get_submodule(name)
    if part_of(block, "pool") is None or not calls.get(f"{name}.pool"):
        return []
    call = calls[f"{name}.pool"][-1]
    values = {
        "before": vector(at_cell(call.input, query)),
        "after": vector(at_cell(call.output, query)),
    }
    facts = {"from": list(call.input.shape[2:]), "to": list(call.output.shape[2:])}
    code = method_line(block, "attention_branch", r"self\.pool\(")
    return [Step("downsample", "y = pool(LN(x))", shape_of(call.output), code, values, facts)]


def fold_steps(model: nn.Module, outer: str, query: Query, calls: Calls) -> list[Step]:
    """A convolution nearby, then the map cut into patches whose places meet."""
    block, steps = model.get_submodule(outer), list[Step]()
    if calls.get(f"{outer}.local") and calls.get(f"{outer}.embed"):
        local, embedded = (calls[f"{outer}.{part}"][-1].output for part in ("local", "embed"))
        values = {
            "local": vector(at_cell(local, query)),
            "embedding": vector(at_cell(embedded, query)),
        }
        code = method_line(block, "forward", r"self\.local\(")
        steps.append(Step("local", "x_L = W₁ₓ₁ · φ(W₃ₓ₃ ∗ x)", shape_of(embedded), code, values))
    groups = attention_groups(query.layout)
    x = calls[query.attention.rpartition(".")[0]][-1].input
    assert query.layout.fold is not None
    facts = {
        "places": len(groups),
        "patches": groups.shape[1],
        "place": query.group,
        "patch": query.place,
        "size": list(query.layout.fold),
    }
    values = {"token": vector(query.in_group(x))}
    code = source_line(unfold, "permute")
    equation = "x ∈ ℝ^(H×W×d) → x_U ∈ ℝ^(P×N×d)"
    return [*steps, Step("unfold", equation, shape_of(x), code, values, facts)]


def after_block(
    model: nn.Module, query: Query, calls: Calls, attention: int, count: int
) -> list[Step]:
    """Back to the map where it was folded, and the blocks that follow."""
    outer, steps = outer_block(model, query.attention), list[Step]()
    if query.layout.fold is not None and calls.get(f"{outer}.project"):
        block, output = model.get_submodule(outer), calls[outer][-1].output
        projected = calls[f"{outer}.project"][-1].output
        values = {"projected": vector(at_cell(projected, query))}
        values["result"] = vector(at_cell(output, query))
        fused = f"{outer}.fuse" in calls
        equation = "y = φ(W₃ₓ₃ ∗ [x; φ(W₁ₓ₁ · x_F)])" if fused else "y = W₁ₓ₁ · x_F"
        code = method_line(
            block, "forward", r"self\.(fuse|project)\(fold|self\.fuse\("
        ) or source_line(fold, "permute")
        steps.append(Step("fold", equation, shape_of(output), code, values, {"fused": fused}))
    if attention + 1 < count:
        facts = {"count": count - attention - 1}
        x = calls[last_block(model)][-1].output
        code = method_line(model, "forward_blocks", r"x = (block|stage|last)\(") or method_line(
            model, "encode", "stage"
        )
        steps.append(Step("later", "z_L = block_L(… block_ℓ₊₁(z_ℓ))", shape_of(x), code, {}, facts))
    return steps
