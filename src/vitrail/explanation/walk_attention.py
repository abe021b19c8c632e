"""One attention step by step, for one query and one head: where it looks, and what it brings back.

Parts of a block are found by the names that all families give them: `norm1`, `attention` with `qkv`
and `out` around an `Attend`, `norm2`, `mlp`. A step whose part a block does not have is left out.
"""

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import at_least_float32, bind_arguments
from vitrail.explanation.hooks import ATTEND_ARGUMENTS
from vitrail.explanation.source_lines import method_line, source_line
from vitrail.explanation.walk_record import Calls, Query, Step, scalar, shape_of, vector
from vitrail.layers.attention import SeparableAttend, attend_unfused
from vitrail.layers.window import APART, window_partition

LAYER_NORM = "y = (x − μ) / √(σ² + ε) · γ + β"


def window_step(query: Query, block: nn.Module) -> list[Step]:
    """Which window the query lies in."""
    layout = query.layout
    if layout.window is None:
        return []
    (high, wide), columns = layout.window, layout.padded[1] // layout.window[1]
    windows = (layout.padded[0] // high) * columns
    facts = {
        "window": [high, wide],
        "shift": list(layout.shift),
        "row": query.group // columns,
        "column": query.group % columns,
        "cells": int((query.keys >= 0).sum()),
        "padding": int((query.keys < 0).sum()),
        "windows": windows,
    }
    shifted = any(layout.shift)
    equation = "x → roll(x, −s) → windows of M × M" if shifted else "x → windows of M × M"
    code = source_line(window_partition, r"x\.roll" if shifted else r"return x\.reshape")
    return [Step("window", equation, (windows, high * wide), code, {}, facts)]


def norm_step(
    id: str, name: str, query: Query, calls: Calls, block: nn.Module, branch: str
) -> list[Step]:
    """A norm of the block that was called."""
    if name not in calls:
        return []
    part = name.rpartition(".")[2]
    norm, call = block.get_submodule(part), calls[name][0]
    width = norm_width(norm)
    before, after = (query.in_block(x, width) for x in (call.input, call.output))
    wide = before.double()
    values = {"before": vector(before), "after": vector(after)}
    grouped = isinstance(norm, nn.GroupNorm)  # over all tokens
    spread = call.input.double() if grouped else wide
    values |= {"mean": scalar(spread.mean().item())}
    values |= {"variance": scalar(spread.var(correction=0).item())}
    facts = {"over": "tokens" if grouped else "channels", "eps": float(getattr(norm, "eps", 0.0))}
    code = method_line(block, branch, part)
    return [Step(id, LAYER_NORM, shape_of(call.output), code, values, facts)]


def norm_width(norm: nn.Module) -> int:
    """Channels of a LayerNorm or GroupNorm."""
    if isinstance(norm, nn.GroupNorm):
        return norm.num_channels
    shape: tuple[int, ...] = getattr(norm, "normalized_shape", (0,))
    return shape[-1]


def attention_steps(query: Query, calls: Calls, attention: nn.Module) -> list[Step]:
    """From queries, keys and values to the sum, of the chosen head."""
    name = f"{query.attention}.attend"
    attend, call = attention.get_submodule("attend"), calls[name][0]
    if isinstance(attend, SeparableAttend):
        return separable_steps(query, attention, attend, call.args, call.output)
    given = bind_arguments(ATTEND_ARGUMENTS, call.args, call.named)
    q, k, v = (with_groups(given[part])[0, query.group, query.head] for part in ("q", "k", "v"))
    output = with_groups(call.output)[0, query.group, query.head]
    scale = given.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    keys, place = query.keys, query.place
    products = scaled_products(q[place], k, scale)
    row = None if given.get("bias") is None else bias_row(given["bias"], query)
    scores = products if row is None else products + row
    weights = scores.softmax(dim=-1)
    heads, count = with_groups(call.output).shape[2], len(keys)
    facts = {"head": query.head, "heads": heads, "dim": q.shape[-1], "keys": count}
    steps = [qkv_step(query, calls, attention, (q, k, v), facts)]
    steps += bias_steps(query, attention, row, facts)
    cosine = getattr(attention, "logit_scale", None) is not None
    product = "s = τ · cos(q, k)" if cosine else "s = q·kᵀ / √d"
    steps.append(
        Step(
            "scores",
            product if row is None else f"{product} + B",
            (heads, count, count),
            source_line(attend_unfused, "baddbmm"),
            {"products": vector(products, keys), "scores": vector(scores, keys)},
            {**facts, "scale": scale, "has_bias": row is not None},
        )
    )
    steps.append(softmax_step(weights, query, (heads, count, count), facts))
    values = {"values": vector(v[weights.argmax()]), "output": vector(output[place])}
    values["sum"] = vector(weights @ at_least_float32(v))
    code = source_line(attend_unfused, "@ v")
    return [*steps, Step("sum", "o = Σⱼ Aⱼ · vⱼ", (heads, count, v.shape[-1]), code, values, facts)]


def with_groups(x: Float[Tensor, "1 ..."]) -> Float[Tensor, "1 G h n d"]:
    return x if x.ndim == 5 else x[:, None]


def scaled_products(
    q: Float[Tensor, " d"], k: Float[Tensor, "n d"], scale: float
) -> Float[Tensor, " n"]:
    return at_least_float32(k) @ (at_least_float32(q) * scale)


def bias_row(bias: Float[Tensor, "..."], query: Query) -> Float[Tensor, " n"]:
    """What is added to the scores of the query, in its head and window."""
    group = query.group if bias.ndim == 4 and bias.shape[0] > 1 else 0
    each = bias[group] if bias.ndim == 4 else bias
    return at_least_float32(each[query.head if each.shape[0] > 1 else 0, query.place])


def qkv_step(
    query: Query,
    calls: Calls,
    attention: nn.Module,
    parts: tuple[Tensor, Tensor, Tensor],
    facts: dict[str, Any],
) -> Step:
    q, k, v = (part[query.place] for part in parts)
    values = {"q": vector(q), "k": vector(k), "v": vector(v)}
    made = calls.get(f"{query.attention}.qkv", [])
    shape: tuple[int, ...] = (3, facts["heads"], facts["keys"], facts["dim"])
    if made:
        values = {"input": vector(query.in_group(made[0].input)), **values}
    scale = getattr(attention, "logit_scale", None)
    equation = "[q, k, v] = y · U_qkv"
    if isinstance(scale, Tensor):
        temperature = scale.detach()[query.head].clamp(max=math.log(100)).exp().item()
        facts = {**facts, "temperature": temperature}
        equation += ",  q ← τ · q / |q|,  k ← k / |k|"
    code = method_line(attention, "forward", r"self\.(qkv|project)\(")
    return Step("qkv", equation, shape, code, values, facts)


def bias_steps(
    query: Query, attention: nn.Module, row: Tensor | None, facts: dict[str, Any]
) -> list[Step]:
    """What is added to the scores: by how far two cells are apart, and in shifted windows so that
    cells that were no neighbours stay apart."""
    if row is None:
        return []
    apart = row < APART / 2
    facts = {**facts, "apart": int(apart.sum()), "shifted": any(query.layout.shift)}
    code = method_line(attention, "forward", r"self\.(bias|mask|distances)\(|bias")
    shape = (facts["heads"], facts["keys"], facts["keys"])
    by_query = getattr(attention, "distances", None) is not None
    equation = "B = q · r[i − j] / √d" if by_query else "B = B̂[Δrow, Δcolumn]"
    equation += " − 100 between regions" if facts["shifted"] else ""
    return [Step("bias", equation, shape, code, {"bias": vector(row, query.keys)}, facts)]


def softmax_step(
    weights: Float[Tensor, " n"], query: Query, shape: tuple[int, ...], facts: dict[str, Any]
) -> Step:
    keys = query.keys
    best = int(weights.argmax())
    facts = {
        **facts,
        "largest": float(weights[best]),
        "largest_token": int(keys[best]),
        "half": keys_for_half(weights),
        "cell": cell_of(int(keys[best]), query.layout),
    }
    code = source_line(attend_unfused, "softmax")
    return Step("softmax", "A = softmax(s)", shape, code, {"weights": vector(weights, keys)}, facts)


def keys_for_half(weights: Float[Tensor, " n"]) -> int:
    """How few keys get half of the attention.

    >>> keys_for_half(torch.tensor([0.1, 0.6, 0.3]))
    1
    """
    total = weights.sort(descending=True).values.cumsum(dim=0)
    return int((total < 0.5 * total[-1]).sum()) + 1


def cell_of(token: int, layout: TokenLayout) -> list[int] | None:
    number = token - layout.prefix
    return None if number < 0 or token < 0 else list(divmod(number, layout.grid[1]))


def separable_steps(
    query: Query,
    attention: nn.Module,
    attend: SeparableAttend,
    args: tuple[Tensor, ...],
    output: Float[Tensor, "1 D P 1"],
) -> list[Step]:
    """One score a token, one context for all of a group, and each value times the context."""
    scores_PN, keys_DPN = (at_least_float32(part[0]) for part in args)
    row, every = scores_PN[0, query.group], keys_DPN[:, query.group]
    weights = row.softmax(dim=-1)
    count, dim = len(row), every.shape[0]
    facts = {"head": 0, "heads": 1, "dim": dim, "keys": count, "shared": True}
    values = {"score": scalar(row[query.place].item()), "k": vector(every[:, query.place])}
    shape = (2 * dim + 1, *scores_PN.shape[1:])
    code = method_line(attention, "forward", r"self\.qkv\(")
    first = Step("qkv", "[s, k, v] = y · U", shape, code, values, facts)
    context = {"scores": vector(row, query.keys)}
    line = method_line(attend, "forward", "softmax")
    second = Step("scores", "s = y · w_s", (1, count), line, context, facts)
    third = softmax_step(weights, query, (1, count), facts)
    third = Step("softmax", third.equation, third.shape, line, third.values, third.facts)
    total = {"output": vector(output[0, :, query.group, 0]), "sum": vector(every @ weights)}
    fourth = Step("sum", "c = Σⱼ Aⱼ · kⱼ", (dim, 1), line, total, facts)
    return [first, second, third, fourth]


def out_step(query: Query, calls: Calls, block: nn.Module, name: str) -> list[Step]:
    """Heads joined, projected and added to what came in: the first half of a block."""
    made, added = calls.get(f"{query.attention}.out", []), calls.get(f"{name}.drop_path", [])
    attention = block.get_submodule(query.attention.rpartition(".")[2])
    if not made or not added:
        return []
    width = made[0].output.shape[1 if query.layout.separable else -1]
    heads, projected = (query.in_group(x) for x in (made[0].input, made[0].output))
    values = {"heads": vector(heads), "projected": vector(projected)}
    result, came = added[0].output, added[0].input
    values["result"] = vector(query.in_block(result, width))
    same = came.shape == result.shape
    if same:
        values["residual"] = vector(query.in_block(came, width))
    separable = query.layout.separable
    joined = "(ReLU(v) ⊙ c) · W" if separable else "[o₁; …; o_h] · U_msa"
    facts = {
        "width": width,
        "has_shortcut": same,
        "scaled": isinstance(getattr(block, "scale1", None), nn.Module)
        and not isinstance(getattr(block, "scale1", None), nn.Identity),
        "norm_after": norm_after(block),
    }
    target = "y′" if is_post_norm(block) else "z′"
    equation = f"{target} = {'z' if same else 'shortcut(z)'} + {wrap(facts, joined)}"
    code = method_line(attention, "forward", r"self\.out\(")
    return [Step("out", equation, shape_of(result), code, values, facts)]


def wrap(facts: dict[str, Any], text: str) -> str:
    text = f"LN({text})" if facts["norm_after"] else text
    return f"γ ⊙ ({text})" if facts["scaled"] else text


def norm_after(block: nn.Module) -> bool:
    """Whether a branch is normed after it was computed (Swin V2): norms stand behind what they
    norm."""
    order = [name for name, _ in block.named_children() if name in ("norm1", "attention")]
    return order == ["attention", "norm1"]


def is_post_norm(block: nn.Module) -> bool:
    """Whether the sum of branch and shortcut is normed (arXiv:1706.03762), not the branch."""
    return getattr(block, "norm_placement", "pre") == "post"


def mlp_step(query: Query, calls: Calls, block: nn.Module, name: str) -> list[Step]:
    """Each token by itself through two layers, and added."""
    added, mlp = calls.get(f"{name}.drop_path", []), getattr(block, "mlp", None)
    made = calls.get(f"{name}.mlp", [])
    if not isinstance(mlp, nn.Module) or not made or len(added) < 2:
        return []
    result, hidden = added[1].output, calls.get(f"{name}.mlp.fc2", [])
    width = made[0].output.shape[1 if query.layout.separable else -1]
    values = {
        "input": vector(query.in_block(made[0].input, width)),
        "output": vector(query.in_block(made[0].output, width)),
        "residual": vector(query.in_block(added[1].input, width)),
        "result": vector(query.in_block(result, width)),
    }
    if hidden:
        inner = hidden[0].input
        inside = inner.shape[1 if query.layout.separable else -1]
        values["hidden"] = vector(query.in_block(inner, inside))
    scale = getattr(block, "scale2", None)
    facts = {
        "width": width,
        "hidden": values["hidden"].numbers.numel() if hidden else None,
        "scaled": isinstance(scale, nn.Module) and not isinstance(scale, nn.Identity),
        "norm_after": norm_after(block),
    }
    post = is_post_norm(block)
    body = "W₂ · φ(W₁ · {} + b₁) + b₂".format("z′" if facts["norm_after"] or post else "LN(z′)")
    code = method_line(mlp, "forward", "return")
    equation = f"{'y' if post else 'z'} = z′ + {wrap(facts, body)}"
    return [Step("mlp", equation, shape_of(result), code, values, facts)]


def block_steps(query: Query, calls: Calls, model: nn.Module) -> list[Step]:
    """All steps of the block around an attention, in the order in which it runs."""
    name = query.attention.rpartition(".")[0]
    block, attention = model.get_submodule(name), model.get_submodule(query.attention)
    post = is_post_norm(block)
    branches = ("forward", "forward") if post else ("attention_branch", "mlp_branch")
    norm1 = norm_step("block.norm1", f"{name}.norm1", query, calls, block, branches[0])
    norm2 = norm_step("block.norm2", f"{name}.norm2", query, calls, block, branches[1])
    inner = [*window_step(query, block), *attention_steps(query, calls, attention)]
    out = out_step(query, calls, block, name)
    mlp = mlp_step(query, calls, block, name)
    if post:
        return [*inner, *out, *norm1, *mlp, *norm2]
    if norm_after(block):
        return [*inner, *norm1, *out, *mlp, *norm2]
    return [*norm1, *inner, *out, *norm2, *mlp]
