"""The way from pixels to the first block, and from the last block to the classes, step by step.

Parts of a model are found by the names that families give them: `stem`, `patches`, `cls`,
`positions`, `embed_norm`, `norm`, `last`, `head`. A step whose part there is not is left out.
"""

from typing import Any

import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from torch import Tensor, nn

from vitrail.core.passport import Passport
from vitrail.explanation.attention_sinks import prefix_names
from vitrail.explanation.source_lines import method_line
from vitrail.explanation.walk_attention import LAYER_NORM, norm_width
from vitrail.explanation.walk_record import Calls, Query, Step, Value, shape_of, vector

Pixels = UInt8[ndarray, "H W C"]

GROUP_NORM = "y = φ(γ · (x − μ_g) / √(σ_g² + ε) + β)"

POOLED = {
    "cls": "y = z⁰",
    "mean": "y = (1/N) · Σᵢ zⁱ",
    "all": "y = (1/(1+N)) · Σᵢ zⁱ over every token",
    "cls+mean": "y = [z⁰; (1/N) · Σᵢ zⁱ]",
}

# what the line that computes it looks like
POOLED_BY = {
    "cls": r"x\[:, 0\]$",
    "mean": r"(patches|\)|1:\])\.mean\(",
    "all": r"return x\.mean\(",
    "cls+mean": r"torch\.cat\(",
}


def part_of(model: nn.Module, name: str) -> nn.Module | None:
    """A module of the model by its name; nothing where it does nothing."""
    part = getattr(model, name, None)
    return part if isinstance(part, nn.Module) and not isinstance(part, nn.Identity) else None


def first_steps(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    pixels: Pixels | None,
    query: Query,
    calls: Calls,
) -> list[Step]:
    """Everything before the first block."""
    patches, stem = part_of(model, "patches"), part_of(model, "stem")
    steps = []
    if patches is None or stem is not None:
        steps.append(image_step(model, image, pixels, query))
    if stem is not None:
        steps.append(stem_step(model, stem, query, calls))
    if patches is not None and "patches" in calls:
        steps += patch_steps(model, patches, image, pixels, query, calls)
    steps += class_token_step(model, query)
    steps += position_step(model, query, calls)
    return [*steps, *embed_norm_step(model, query, calls)]


def image_step(
    model: nn.Module, image: Float[Tensor, "1 C H W"], pixels: Pixels | None, query: Query
) -> Step:
    """The pixels under the query, as they are and as the model reads them."""
    grid = query.layout.grid
    row, column = query.cell_on(grid)
    high, wide = (max(side // count, 1) for side, count in zip(image.shape[2:], grid, strict=True))
    values = under(image, pixels, (row * high, column * wide), (high, wide))
    facts = {"row": row, "column": column, "size": [high, wide], **normalisation(model)}
    lines = (method_line(model, name, r"self\.check\(") for name in ("embed", "encode"))
    code = next((line for line in lines if line is not None and "check" in line.text), None)
    return Step("image", "x = (pixel / 255 − mean) / std", shape_of(image), code, values, facts)


def under(
    image: Float[Tensor, "1 C H W"],
    pixels: Pixels | None,
    start: tuple[int, int],
    size: tuple[int, int],
) -> dict[str, Value]:
    (top, left), (high, wide) = start, size
    box = slice(top, top + high), slice(left, left + wide)
    values = {"input": vector(image[0, :, box[0], box[1]])}
    if pixels is not None:
        values = {"pixels": vector(torch.from_numpy(pixels[box].copy())), **values}
    return values


def normalisation(model: nn.Module) -> dict[str, Any]:
    passport = getattr(model, "passport", None)
    if not isinstance(passport, Passport):
        return {}
    how = passport.preprocessing
    return {"mean": list(how.mean), "std": list(how.std)}


def stem_step(model: nn.Module, stem: nn.Module, query: Query, calls: Calls) -> Step:
    """Convolutions that read pixels before anything else does."""
    output = calls["stem"][-1].output
    grid = (output.shape[2], output.shape[3])
    row, column = query.cell_on(grid)
    values = {"output": vector(output[0, :, row, column])}
    count = sum(isinstance(part, nn.Conv2d) for part in stem.modules())
    facts = {"convolutions": count, "grid": list(grid), "channels": output.shape[1]}
    code = method_line(model, "embed", r"self\.stem\(") or method_line(
        model, "encode", r"self\.stem\("
    )
    return Step("stem", "x ← φ(W ∗ x)", shape_of(output), code, values, facts)


def patch_steps(
    model: nn.Module,
    patches: nn.Module,
    image: Float[Tensor, "1 C H W"],
    pixels: Pixels | None,
    query: Query,
    calls: Calls,
) -> list[Step]:
    """The image, or the map of a stem, cut into patches, and each projected."""
    call, conv = calls["patches"][-1], patches.get_submodule("projection")
    assert isinstance(conv, nn.Conv2d)
    size, source = conv.kernel_size[0], call.input
    grid = (source.shape[2] // size, source.shape[3] // size)
    row, column = query.cell_on(grid)
    start = row * size, column * size
    count, length = grid[0] * grid[1], source.shape[1] * size * size
    facts: dict[str, Any] = {
        "row": row, "column": column, "rows": grid[0], "columns": grid[1],
        "size": size, "length": length, "count": count, **normalisation(model),
    }  # fmt: skip
    whole = source.shape == image.shape
    values = under(source, pixels if whole else None, start, (size, size))
    code = method_line(patches, "forward", "unshuffle|projection")
    cut = "x ∈ ℝ^(H×W×C) → x_p ∈ ℝ^(N×(P²·C))"
    steps = [Step("patches", cut, (count, length), code, values, facts)]
    normed = part_of(patches, "pixel_norm") is not None
    patch = source[0, :, start[0] : start[0] + size, start[1] : start[1] + size].flatten()
    values = {"patch": vector(patch), "kernel": vector(conv.weight[0].flatten())}
    values["embedding"] = vector(call.output[0, row * grid[1] + column])
    facts = {**facts, "dim": call.output.shape[2], "normed": normed}
    equation = (
        "z = LN(E · LN(x_p) + b)" if normed else "z = E · x_p" + " + b" * (conv.bias is not None)
    )
    code = method_line(patches, "forward", r"[^.]linear\(" if normed else r"self\.projection\(")
    return [*steps, Step("projection", equation, shape_of(call.output), code, values, facts)]


def prefix_vectors(model: nn.Module) -> Float[Tensor, "P D"] | None:
    """The class token, the distillation token and registers, in their order."""
    tokens = [getattr(model, name, None) for name in ("cls", "distillation", "registers")]
    found = [token[0] for token in tokens if isinstance(token, Tensor) and token.ndim == 3]
    return torch.cat(found) if found else None


def class_token_step(model: nn.Module, query: Query) -> list[Step]:
    found = prefix_vectors(model)
    if found is None:
        return []
    names, count = prefix_names(model, query.layout.prefix), len(found)
    rows, columns = query.layout.grid
    shape = (count + rows * columns, found.shape[1])
    values = {"class_token": vector(found[0])}
    code = method_line(model, "embed", r"torch\.cat")
    facts = {"names": list(names), "count": count, "tokens": shape[0]}
    return [Step("class_token", "[x_class; z¹; …; zᴺ]", shape, code, values, facts)]


def position_step(model: nn.Module, query: Query, calls: Calls) -> list[Step]:
    """What is added to a token for its place."""
    if not calls.get("positions"):
        return []
    table = calls["positions"][-1].output
    prefix, (rows, columns) = query.layout.prefix, query.layout.grid
    slots = table.shape[1] - rows * columns  # prefix tokens that have a place in the table
    patches = calls["patches"][-1].output
    if query.token < prefix:
        tokens = prefix_vectors(model)
        assert tokens is not None
        before = tokens[query.token]
        index = query.token if query.token < slots else None
    else:
        before, index = patches[0, query.token - prefix], slots + query.token - prefix
    position = torch.zeros_like(before) if index is None else table[0, index]
    values = {
        "embedding": vector(before),
        "position": vector(position),
        "sum": vector(before + position),
    }
    shape = (prefix + rows * columns, table.shape[2])
    code = method_line(model, "embed", r"self\.positions\(\)\)")
    facts = {"has_position": index is not None, "learned": bool(list(positions_of(model)))}
    return [Step("positions", "z₀ = [x_class; z¹; …; zᴺ] + E_pos", shape, code, values, facts)]


def positions_of(model: nn.Module) -> list[Tensor]:
    part = part_of(model, "positions")
    return [] if part is None else list(part.parameters())


def embed_norm_step(model: nn.Module, query: Query, calls: Calls) -> list[Step]:
    norm = part_of(model, "embed_norm")
    if norm is None or not calls.get("embed_norm"):
        return []
    call = calls["embed_norm"][-1]
    if call.input.shape[1] == query.layout.prefix + query.layout.grid[0] * query.layout.grid[1]:
        place = query.token
    else:  # the patches of the first stage, before they are laid out on their grid
        rows, columns = getattr(getattr(model, "config", None), "grid", query.layout.grid)
        row, column = query.cell_on((rows, columns))
        place = row * columns + column
    values = {"before": vector(call.input[0, place]), "after": vector(call.output[0, place])}
    code = method_line(model, "embed", "embed_norm")
    if code is None or "embed_norm" not in code.text:
        code = method_line(model, "forward_blocks", "embed_norm")
    return [Step("embed_norm", LAYER_NORM, shape_of(call.output), code, values)]


def last_steps(
    model: nn.Module, logits: Float[Tensor, "1 K"], query: Query, calls: Calls
) -> list[Step]:
    """Everything after the last block."""
    pooled_norm = bool(calls.get("norm")) and calls["norm"][-1].input.ndim == 2
    norm = final_norm_step(model, query, calls)
    pool = pool_step(model, logits, query, calls)
    steps = [*last_conv_step(model, query, calls)]
    steps += [*pool, *norm] if pooled_norm else [*norm, *pool]
    return [*steps, *head_step(model, logits, calls)]


def final_norm_step(model: nn.Module, query: Query, calls: Calls) -> list[Step]:
    norm = part_of(model, "norm")
    if norm is None or not calls.get("norm"):
        return []
    call = calls["norm"][-1]
    width, is_pooled = norm_width(norm), call.input.ndim == 2
    before, after = (
        x[0] if is_pooled else query.in_map(x, width) if x.ndim == 4 else x[0, read_token(query, x)]
        for x in (call.input, call.output)
    )
    values = {"before": vector(before), "after": vector(after)}
    code = next(
        (
            line
            for name in ("forward_blocks", "features_of", "features", "encode")
            if (line := method_line(model, name, r"self\.norm")) and "self.norm" in line.text
        ),
        None,
    )
    equation = GROUP_NORM if isinstance(norm, nn.GroupNorm) else LAYER_NORM
    return [Step("norm", equation, shape_of(call.output), code, values, {"pooled": is_pooled})]


def read_token(query: Query, x: Float[Tensor, "1 N D"]) -> int:
    """The query among the tokens that are normed; the first where fewer are."""
    return query.token if query.token < x.shape[1] else 0


def last_conv_step(model: nn.Module, query: Query, calls: Calls) -> list[Step]:
    """A last convolution of single cells, to the width that the head reads."""
    if part_of(model, "last") is None or not calls.get("last"):
        return []
    output = calls["last"][-1].output
    row, column = query.cell_on((output.shape[2], output.shape[3]))
    values = {"output": vector(output[0, :, row, column])}
    code = method_line(model, "encode", r"self\.last\(")
    return [Step("last", "y = φ(W · x)", shape_of(output), code, values)]


def pool_step(
    model: nn.Module, logits: Float[Tensor, "1 K"], query: Query, calls: Calls
) -> list[Step]:
    """What is read out of all tokens."""
    config = getattr(model, "config", None)
    has_prefix = bool(query.layout.prefix)
    kind = getattr(config, "pool", "cls") if has_prefix else "mean"
    features = read_features(logits, calls)
    if calls.get("norm") and calls["norm"][-1].input.ndim == 2:
        features = calls["norm"][-1].input[0]  # pooled first, then normed
    facts = {"pool": kind, "distilled": bool(getattr(config, "distilled", False))}
    equation = "y = z⁰,  y_d = z¹" if facts["distilled"] else POOLED.get(kind, "y = pool(z)")
    pattern = r":2\]" if facts["distilled"] else POOLED_BY[kind]
    found = (method_line(model, name, pattern) for name in ("pool", "features", "features_of"))
    code = next((line for line in found if line is not None), None)
    values = {"features": vector(features)}
    return [Step("pool", equation, tuple(features.shape), code, values, facts)]


def read_features(logits: Float[Tensor, "1 K"], calls: Calls) -> Float[Tensor, " D"]:
    """What the head reads; without a head that is what the model returns."""
    if not calls.get("head"):
        return logits[0]
    features: Tensor = calls["head"][-1].input[0]
    return features


def head_step(model: nn.Module, logits: Float[Tensor, "1 K"], calls: Calls) -> list[Step]:
    """Classes from features; none without a head."""
    if not getattr(getattr(model, "config", None), "num_classes", 1) or not calls.get("head"):
        return []
    multi_label = bool(getattr(getattr(model, "passport", None), "multi_label", False))
    scores = logits[0].sigmoid() if multi_label else logits[0].softmax(dim=0)
    best, classes = int(logits[0].argmax()), torch.arange(logits.shape[1])
    values = {"features": vector(calls["head"][-1].input[0])}
    layers = [part for part in model.get_submodule("head").modules() if isinstance(part, nn.Linear)]
    if layers:
        values["weights"] = vector(layers[-1].weight[best])
    values |= {"logits": vector(logits[0], classes), "scores": vector(scores, classes)}
    distilled = calls.get("head_distilled")
    if distilled:
        values["head_logits"] = vector(calls["head"][-1].output[0], classes)
        values["distilled_logits"] = vector(distilled[-1].output[0], classes)
    facts = {
        "best": best,
        "classes": logits.shape[1],
        "multi_label": multi_label,
        "hidden": len(layers) > 1,
        "distilled": bool(distilled),
    }
    equation = "logits = W₂ · tanh(W₁ · y + b₁) + b₂" if len(layers) > 1 else "logits = W · y + b"
    if distilled:
        equation = "logits = ½ · (W · y + b + W_d · y_d + b_d)"
    name = "logits_of" if hasattr(model, "logits_of") else "forward"
    code = method_line(model, name, r"both_logits_of" if distilled else r"self\.head\(")
    return [Step("head", equation, (logits.shape[1],), code, values, facts)]
