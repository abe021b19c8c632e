"""What a diagnosis comes to: mistakes, differences by choice, and steps that nothing explains."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from vitrail.explanation.check.assembly import is_post_norm
from vitrail.explanation.check.diagnosis import Diagnosis
from vitrail.explanation.check.reference import (
    AttentionChoices,
    BlockChoices,
    Choices,
    Merge,
    NormPlace,
    PositionRows,
    Weights,
)
from vitrail.explanation.check.trace import Event, Trace

Kind: TypeAlias = Literal["mistake", "difference", "unknown"]
LARGEST = 10**9  # of a step that is not in the order


@dataclass(frozen=True)
class Expected:
    """The reference: the paper's choices, or those of a model with a name. `sizes`: its sizes,
    where they are compared."""

    name: str = "paper"
    activation: str = "gelu"
    norm_eps: float = 1e-6
    pool: str = "cls"
    norm_placement: str = "pre"
    qkv_bias: bool = True
    sizes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """`step`: the first that it changes; `blocks`: those that have it, none for the rest of the
    model; `values`: what its sentence quotes."""

    code: str
    kind: Kind
    step: str
    line: int | None = None
    blocks: tuple[int, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)


def find_all(
    found: Diagnosis,
    traced: Trace,
    expected: Expected,
    unused: tuple[str, ...],
    steps: Iterable[str],
) -> list[Finding]:
    """Everything worth a sentence, in the order of the steps, mistakes first."""
    order = {name: place for place, name in enumerate(steps)}
    order |= {
        f"block {number} attention": order[f"block {number} merged heads"]
        for number, block in enumerate(found.layers.blocks)
        if block.out is not None
    }
    every = [
        *embedding_mistakes(found, unused),
        *merge_blocks(found),
        *end_mistakes(found),
        *(Finding("unknown", "unknown", step, found.lines.get(step)) for step in found.unknown),
    ]
    if traced.dropout:
        every.append(Finding("dropout_in_eval", "mistake", "output"))
    with_lines = [
        one if one.line is not None else replace(one, line=found.lines.get(one.step))
        for one in every
    ]
    with_lines.sort(key=lambda one: order.get(one.step, LARGEST))
    return [*with_lines, *differences(found, expected, unused)]


def embedding_mistakes(found: Diagnosis, unused: tuple[str, ...]) -> Iterator[Finding]:
    choices = found.choices
    if choices.patch_order == "unswapped":
        yield Finding("patch_order", "mistake", "patches")
    if choices.token_order == "unswapped":
        yield Finding("token_order", "mistake", "projection")
    if choices.position_rows == "shifted" and "positions" not in found.unknown:
        yield Finding("position_shift", "mistake", "positions")
    if choices.position_rows == "none" and "embedding" not in found.weights.given:
        names = f" ({', '.join(unused[:3])})" if unused else ""
        step = "class token" if "class token" in found.steps else "projection"
        yield Finding("no_positions", "mistake", step, values={"unused": names})


def block_mistakes(found: Diagnosis, number: int) -> Iterator[Finding]:
    """Those of one block."""
    chosen, name = found.choices.blocks[number], f"block {number}"
    post = is_post_norm(found.choices.blocks)
    first = number == 0
    if (chosen.norm1 == "missing" and not post) or (
        post and chosen.norm1 == "missing" and not first
    ):
        code = "missing_mlp_norm" if post else "missing_attention_norm"
        yield Finding(code, "mistake", f"{name} q", found.layers.blocks[number].projections[0].line)
    if chosen.norm1 == "stream" and not post:
        yield normed_residual(found, name, 1, found.layers.blocks[number].norms_before)
    yield from attention_mistakes(found, chosen.attention, name)
    for residual, branch in ((1, "attention"), (2, "mlp")):
        if not getattr(chosen, f"residual{residual}"):
            step = f"{name} residual {residual}"
            yield Finding("missing_residual", "mistake", step, values={"branch": branch})
    if chosen.norm2 == "missing":
        code = "missing_attention_norm" if post else "missing_mlp_norm"
        yield Finding(code, "mistake", f"{name} MLP hidden")
    if chosen.norm2 == "stream" and not post:
        yield normed_residual(found, name, 2, found.layers.blocks[number].norms_between)
    if chosen.activation == "none":
        yield Finding("no_activation", "mistake", f"{name} activation")


def normed_residual(found: Diagnosis, name: str, number: int, norms: tuple[Event, ...]) -> Finding:
    """At the line that calls the norm, or calls it again to add its output."""
    again = norms[-1].again_line if norms else None
    line = again or found.lines.get(f"{name} norm {number}")
    return Finding("normed_residual", "mistake", f"{name} residual {number}", line)


SCALES = {
    "dim": "scale_dim",
    "none": "no_scale",
    "inverted": "scale_inverted",
    "no_root": "scale_no_root",
    "heads": "scale_heads",
    "factor": "scale_other",
    "after_softmax": "scale_after_softmax",
    "dim_after_softmax": "scale_after_softmax",
}


def attention_mistakes(found: Diagnosis, chosen: AttentionChoices, name: str) -> Iterator[Finding]:
    layers = found.layers
    if chosen.over == "images":
        yield Finding("batch_axis", "mistake", f"{name} q")
    if chosen.split == "unswapped":
        yield Finding("head_split", "mistake", f"{name} q")
    if chosen.scale != "dim_head":
        values = {
            "root_dim": (layers.heads * layers.dim_head) ** 0.5,
            "root_head": layers.dim_head**0.5,
            "root_heads": layers.heads**0.5,
            "dim_head": layers.dim_head,
            "divisor": 1 / chosen.factor if chosen.factor else 1.0,
        }
        code = SCALES[chosen.scale]
        if code == "scale_other" and abs(values["divisor"] - layers.dim**0.5) < 1e-4:
            code, values["root_dim"] = "scale_dim", layers.dim**0.5
        line = found.lines.get(f"{name} softmax") if code == "scale_after_softmax" else None
        yield Finding(code, "mistake", f"{name} scores", line, values=values)
    if chosen.softmax != "keys":
        yield Finding("softmax_axis", "mistake", f"{name} softmax", values={"axis": chosen.softmax})
    if chosen.merge == "unswapped":
        yield Finding("head_order", "mistake", f"{name} merged heads")


def merge_blocks(found: Diagnosis) -> list[Finding]:
    """One finding where several blocks have the same mistake."""
    merged: dict[tuple[str, str], Finding] = {}
    for number in range(len(found.choices.blocks)):
        for one in block_mistakes(found, number):
            key = one.code, one.step.partition(f"block {number} ")[2]
            known = merged.get(key)
            if known is None:
                merged[key] = replace(one, blocks=(number,))
            else:
                merged[key] = replace(known, blocks=(*known.blocks, number))
    return list(merged.values())


def end_mistakes(found: Diagnosis) -> Iterator[Finding]:
    choices = found.choices
    if "pooling" in found.unknown:
        return
    if choices.final_norm == "missing" and not is_post_norm(choices.blocks):
        yield Finding("missing_final_norm", "mistake", "pooling")
    if is_post_norm(choices.blocks) and not found.weights.last_norms:
        yield Finding("missing_mlp_norm", "mistake", "pooling")
    if (read := token_read(choices)) is not None:
        if choices.class_token == "none" and "embedding" not in found.weights.given:
            yield Finding("class_token_missing", "mistake", "pooling", values={"read": read})
        elif (choices.class_token, choices.pool) == ("last", "first"):
            yield Finding("class_token_last", "mistake", "class token")
        elif choices.class_token != choices.pool:
            place = 0 if choices.class_token == "first" else -1
            values = {"read": read, "place": place}
            yield Finding("class_token_unread", "mistake", "pooling", values=values)
    if choices.output in ("softmax", "sigmoid"):
        yield Finding("probabilities", "mistake", "output", values={"function": choices.output})


def differences(found: Diagnosis, expected: Expected, unused: tuple[str, ...]) -> Iterator[Finding]:
    """Choices that the reference does not make."""
    choices, layers, blocks = found.choices, found.layers, found.choices.blocks
    compared = {
        "activation": (blocks[0].activation, expected.activation, "block 0 activation"),
        "pool": (pool_of(choices), expected.pool, "pooling"),
        "norm_placement": (
            "post" if is_post_norm(blocks) else "pre",
            expected.norm_placement,
            "block 0 norm 2",
        ),
        "norm_eps": (eps_of(found, expected), expected.norm_eps, "final norm"),
        "qkv_bias": (bias_of(found), "bias" if expected.qkv_bias else "no bias", "block 0 q"),
    }
    for code, (yours, theirs, step) in compared.items():
        if yours != theirs and (code, yours) != ("activation", "none"):
            values = {"yours": yours, "theirs": theirs}
            yield difference(found, expected, code, step, **values)
    yield from head_layouts(found, expected)
    facts = {
        "position_rows": choices.position_rows == "patches" and choices.class_token != "none",
        "overlap": "projection" in found.weights.given,
        "token_columns": choices.token_order == "columns",
        "class_token_end": choices.class_token == "last" and choices.pool == "last",
        "layer_scale": layers.blocks[0].out_scale is not None,
        "patch_norm": bool(found.weights.patch_norms or found.weights.token_norms),
        "embed_norm": bool(found.weights.embed_norms),
        "no_output_projection": layers.blocks[0].out is None,
        "log_probabilities": choices.output == "log_softmax",
    }
    for code, is_true in facts.items():
        if is_true:
            yield difference(found, expected, code, "output")
    formula = found.weights.blocks[0].norm2.formula
    if formula != "layer_norm":
        yield difference(found, expected, "norm_formula", "block 0 norm 2", yours=formula)
    if len(layers.head) > 1:
        yield difference(found, expected, "head_layers", "head", yours=len(layers.head))
    if unused:
        yield difference(found, expected, "unused", "output", names=", ".join(unused))


def head_layouts(found: Diagnosis, expected: Expected) -> Iterator[Finding]:
    """Other orders of heads, and of q, k and v, which weights of others would not fit."""
    chosen = found.choices.blocks[0].attention
    together = len(found.layers.blocks[0].projections) == 1
    if chosen.layout != "3hd" or (together and chosen.roles != (0, 1, 2)):
        parts = " ".join("qkv"[chosen.roles.index(place)] for place in range(3))
        words = {"3": parts if together else "q k v", "h": "heads", "d": "dim_head"}
        yours = ", ".join(words[axis] for axis in chosen.layout)
        values = {"yours": f"({yours})", "theirs": "(q k v, heads, dim_head)"}
        yield difference(found, expected, "qkv_layout", "block 0 q", **values)
    if chosen.merge == "heads_last":
        yield difference(found, expected, "merge_layout", "block 0 merged heads")


def difference(
    found: Diagnosis, expected: Expected, code: str, step: str, **values: Any
) -> Finding:
    return Finding(
        code,
        "difference",
        step,
        found.lines.get(step),
        values={"reference": expected.name, **values},
    )


def token_read(choices: Choices) -> int | None:
    """The number of the one token that the head reads, if it is one."""
    if isinstance(choices.pool, int):
        return choices.pool
    return {"first": 0, "last": -1}.get(choices.pool)


def pool_of(choices: Choices) -> str:
    """In the words of ViTConfig; a token that is wrongly read is a mistake, and no other choice."""
    if token_read(choices) is not None:
        return "cls"
    return "mean" if choices.pool == "patches" or choices.class_token == "none" else "all"


def eps_of(found: Diagnosis, expected: Expected) -> float:
    """The eps of the norms: one that differs, if any does."""
    layers = found.layers
    norms = [*layers.norms_after]
    for block in layers.blocks:
        norms += [*block.norms_before, *block.norms_between]
    every = [norm.eps for norm in norms if norm.eps is not None]
    return next((eps for eps in every if eps != expected.norm_eps), expected.norm_eps)


def bias_of(found: Diagnosis) -> str:
    projections = found.layers.blocks[0].projections
    return "bias" if any(one.bias is not None for one in projections) else "no bias"


def corrected(choices: Choices, weights: Weights) -> Choices:
    """The same deliberate choices without the mistakes."""
    post = is_post_norm(choices.blocks)
    blocks = tuple(
        corrected_block(block, post, number) for number, block in enumerate(choices.blocks)
    )
    token = choices.class_token
    reads = token_read(choices) is not None
    wrong = token != "none" and reads and token != choices.pool
    return replace(
        choices,
        blocks=blocks,
        patch_order="right",
        token_order="rows" if choices.token_order == "unswapped" else choices.token_order,
        class_token="first" if wrong else token,
        pool="first" if wrong else choices.pool,
        position_rows=corrected_rows(choices, weights),
        final_norm="tokens" if choices.final_norm == "missing" and not post else choices.final_norm,
        output="logits" if choices.output in ("softmax", "sigmoid") else choices.output,
    )


def corrected_rows(choices: Choices, weights: Weights) -> PositionRows:
    """Where there is a table it is added, each row to its own token."""
    lost = choices.position_rows == "none" and weights.positions is not None
    return "own" if lost or choices.position_rows == "shifted" else choices.position_rows


def corrected_block(block: BlockChoices, post: bool, number: int) -> BlockChoices:
    first: NormPlace = "missing" if number == 0 and block.norm1 == "missing" else "stream"
    chosen = block.attention
    merge: Merge = "heads_last" if chosen.merge == "heads_last" else "right"
    attention = AttentionChoices(roles=chosen.roles, layout=chosen.layout, merge=merge)
    return replace(
        block,
        norm1=first if post else "branch",
        attention=attention,
        residual1=True,
        norm2="stream" if post else "branch",
        activation="gelu" if block.activation == "none" else block.activation,
        residual2=True,
    )
