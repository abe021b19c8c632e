"""One image through a convolutional network: the chosen block is a step, with the numbers of a
cell after each of its convolutions."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.explanation.hooks import grid_layouts
from vitrail.explanation.source_lines import method_line
from vitrail.explanation.walk_ends import Pixels, first_steps, last_steps
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

ENDS = ("stem", "norm", "last", "head")
# what families call the convolutions of a block, in their order, and the one beside them
INVERTED, PLAIN, SHORTCUT = ("expand", "filter", "project"), ("conv1", "conv2", "conv3"), "shortcut"
SMALL = "₀₁₂₃"


@torch.no_grad()
def walk_blocks(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    *,
    block: int,
    patch: tuple[int, int] | None,
    token: int | None,
    pixels: Pixels | None,
) -> tuple[tuple[Step, ...], Query, Float[Tensor, "1 K"]]:
    """The steps, the cell that they follow, and the logits at their end. A last convolution of
    single cells is a step of `last_steps`."""
    layouts = grid_layouts(model)
    names = list(layouts)
    if not 0 <= block < len(names):
        raise UserError(f"block must be from 0 to {len(names) - 1}, got {block}")
    name = names[block]
    query = find_query(name, layouts[name], 0, patch=patch, token=token)
    roots = [root for root in (*ENDS, name) if root in dict(model.named_modules())]
    inside = [
        each
        for each, _ in model.named_modules()
        if any(each == root or each.startswith(f"{root}.") for root in roots)
    ]
    with record_calls(model, [*inside, last_block(model)]) as calls:
        logits: Tensor = model(image)
    steps = [
        *first_steps(model, image, pixels, query, calls),
        *(earlier_step(model, query, calls, block) if block else []),
        *([] if name == "last" else [block_step(model, query, calls, block)]),
        *later_step(model, calls, len([each for each in names[block + 1 :] if each != "last"])),
        *last_steps(model, logits, query, calls),
    ]
    return tuple(steps), query, logits


def at_cell(x: Float[Tensor, "1 D H W"], query: Query) -> Float[Tensor, " D"]:
    row, column = query.cell_on((x.shape[2], x.shape[3]))
    return x[0, :, row, column]


def earlier_step(model: nn.Module, query: Query, calls: Calls, count: int) -> list[Step]:
    """The blocks before: what comes into the chosen one."""
    x = calls[query.attention][-1].input
    code = method_line(model, "encode", r"self\.stages")
    facts = {"count": count, "name": query.attention, "convolves": True}
    values = {"token": vector(at_cell(x, query))}
    return [Step("earlier", "x_ℓ = block_ℓ(x_ℓ₋₁)", shape_of(x), code, values, facts)]


def block_step(model: nn.Module, query: Query, calls: Calls, number: int) -> Step:
    """The convolutions of one block, and what it gives."""
    name = query.attention
    call, block = calls[name][-1], model.get_submodule(name)
    values = {}
    for part in (*INVERTED, *PLAIN, SHORTCUT):
        made = calls.get(f"{name}.{part}")
        if made and not isinstance(block.get_submodule(part), nn.Identity):
            values[part] = vector(at_cell(made[-1].output, query))
    projected = SHORTCUT in values
    adds = projected or call.input.shape == call.output.shape
    inverted = "filter" in values
    facts = {
        "name": name,
        "count": number + 1,
        "adds": adds,
        "residual": not inverted,
        "projected": projected,
        "grid": list(call.output.shape[2:]),
        "channels": call.output.shape[1],
    }
    values["result"] = vector(at_cell(call.output, query))
    if inverted:
        wide = "φ(W₁ · x)" if "expand" in values else "x"
        equation = f"y = {'x + ' if adds else ''}W₃ · φ(DWConv₃ₓ₃({wide}))"
    else:
        count = sum(part in values for part in PLAIN)
        equation = plain_equation(count, projected=projected, norm_first=hasattr(block, "norm1"))
    code = method_line(block, "branch", "return") or method_line(block, "forward", "return")
    return Step("residual", equation, shape_of(call.output), code, values, facts)


def plain_equation(count: int, *, projected: bool, norm_first: bool) -> str:
    """Convolutions with ReLU between them, added to what came in. A batch norm follows each, and
    ReLU the sum; or a group norm and ReLU come before each (arXiv:1603.05027).

    >>> plain_equation(2, projected=False, norm_first=False)
    'y = ReLU(x + BN(conv₂(ReLU(BN(conv₁(x))))))'
    >>> plain_equation(2, projected=True, norm_first=True)
    'y = conv_s(ReLU(GN(x))) + conv₂(ReLU(GN(conv₁(ReLU(GN(x))))))'
    """
    inner = "ReLU(GN(x))" if norm_first else "x"
    beside = "x" if not projected else f"conv_s({inner})" if norm_first else f"BN(conv_s({inner}))"
    for place in range(1, count + 1):
        made = f"conv{SMALL[place]}({inner})"
        made = made if norm_first else f"BN({made})"
        inner = made if place == count else f"ReLU(GN({made}))" if norm_first else f"ReLU({made})"
    total = f"{beside} + {inner}"
    return f"y = {total}" if norm_first else f"y = ReLU({total})"


def later_step(model: nn.Module, calls: Calls, count: int) -> list[Step]:
    """The blocks after, as many as `count`: what comes out of the last one."""
    if not count:
        return []
    x = calls[last_block(model)][-1].output
    code = method_line(model, "encode", r"self\.stages")
    facts = {"count": count, "convolves": True}
    return [Step("later", "x_L = block_L(… block_ℓ₊₁(x_ℓ))", shape_of(x), code, {}, facts)]
