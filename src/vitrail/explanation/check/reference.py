"""The ViT of the paper (arXiv:2010.11929, eq. 1 to 4) step by step, with a choice at each step.

`Choices` are the paper's by default. Every other value is a choice that people make on purpose, or
a mistake that they make without noticing: `reference_steps` computes either.
Axes: B images · N tokens · D width · h heads · d width of a head
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitrail.explanation.check.trace import NormFormula

Scale: TypeAlias = Literal[
    "dim_head",
    "dim",
    "none",
    "inverted",
    "no_root",
    "heads",
    "after_softmax",
    "dim_after_softmax",
    "factor",
]
Layout: TypeAlias = Literal["3hd", "3dh", "hd3", "h3d", "dh3", "d3h"]
Merge: TypeAlias = Literal["right", "heads_last", "unswapped"]
SoftmaxAxis: TypeAlias = Literal["keys", "queries", "heads", "images"]
Activation: TypeAlias = Literal["gelu", "gelu_tanh", "relu", "quick_gelu", "silu", "tanh", "none"]
NormPlace: TypeAlias = Literal["branch", "stream", "missing"]
PositionRows: TypeAlias = Literal["own", "shifted", "patches", "none"]
NamedPool: TypeAlias = Literal["first", "last", "all", "patches"]
Pool: TypeAlias = NamedPool | int  # the number of the token that is read
Output: TypeAlias = Literal["logits", "softmax", "log_softmax", "sigmoid"]


@dataclass(frozen=True)
class Linear:
    weight: Float[Tensor, "o i"]
    bias: Float[Tensor, "o"] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Norm:
    """A LayerNorm; without weights as it is initialised. Written by hand it may divide by the
    unbiased deviation, or add eps to the deviation rather than to the variance."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 1e-6
    formula: NormFormula = "layer_norm"

    def __call__(self, x: Tensor) -> Tensor:
        if self.formula == "layer_norm":
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        if self.formula == "rms":
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        variance = x.var(dim=-1, keepdim=True, correction=int("unbiased" in self.formula))
        inside = variance if "std_eps" in self.formula else variance + self.eps
        outside = self.eps if "std_eps" in self.formula else 0.0
        normed = (x - x.mean(dim=-1, keepdim=True)) / (inside.sqrt() + outside)
        normed = normed if self.weight is None else normed * self.weight
        return normed if self.bias is None else normed + self.bias


@dataclass(frozen=True)
class AttentionChoices:
    """`roles`: which projection is q, k and v; `layout`: the order of axes in one that holds all
    three (in three layers 3dh has the heads last); `split` and `merge` are right, or forget to swap
    tokens and heads; "heads_last" merges as (d h)."""

    roles: tuple[int, int, int] = (0, 1, 2)
    layout: Layout = "3hd"
    split: Literal["right", "unswapped"] = "right"
    scale: Scale = "dim_head"
    softmax: SoftmaxAxis = "keys"
    merge: Merge = "right"
    over: Literal["tokens", "images"] = "tokens"
    factor: float = 1.0  # of the scores, with scale="factor"


@dataclass(frozen=True)
class BlockChoices:
    """A norm is before a branch (the paper), on the stream itself (post-norm), or missing."""

    norm1: NormPlace = "branch"
    attention: AttentionChoices = AttentionChoices()
    residual1: bool = True
    norm2: NormPlace = "branch"
    activation: Activation = "gelu"
    residual2: bool = True


@dataclass(frozen=True)
class Choices:
    blocks: tuple[BlockChoices, ...]
    patch_order: Literal["right", "unswapped"] = "right"
    token_order: Literal["rows", "columns", "unswapped"] = "rows"
    class_token: Literal["first", "last", "none"] = "first"
    position_rows: PositionRows = "own"
    final_norm: Literal["tokens", "pooled", "missing"] = "tokens"
    pool: Pool = "first"
    output: Output = "logits"


@dataclass(frozen=True)
class BlockWeights:
    norm1: Norm
    projections: tuple[Linear, ...]
    out: Linear | None
    norm2: Norm
    hidden: Linear
    mlp_out: Linear
    scale1: Tensor | None = None
    scale2: Tensor | None = None


@dataclass(frozen=True)
class Weights:
    """`pixels`: the order of a patch's axes (c channels, p rows, q columns). `positions`: one row
    for each token of the sequence, class token first, or for each patch; `used_positions`: the rows
    as a person's code adds them. `given`: values that take the place of "projection" or "embedding"
    where nothing known computes them."""

    heads: int
    patch: tuple[int, int]
    pixels: str
    projection: Linear
    class_token: Float[Tensor, "D"] | None
    positions: Float[Tensor, "N D"] | None
    used_positions: Float[Tensor, "N D"] | None
    blocks: tuple[BlockWeights, ...]
    final_norm: Norm
    head: tuple[Linear, ...]
    head_activation: Activation = "tanh"
    patch_norms: tuple[Norm, ...] = ()
    token_norms: tuple[Norm, ...] = ()
    embed_norms: tuple[Norm, ...] = ()
    last_norms: tuple[Norm, ...] = ()  # of a post-norm model: that of its last block
    given: Mapping[str, Tensor] = field(default_factory=dict)


def reference_steps(
    weights: Weights, choices: Choices, images: Float[Tensor, "B C H W"]
) -> dict[str, Tensor]:
    """Every step of the forward pass by its name, from patches to logits."""
    steps: dict[str, Tensor] = {}
    x = embed(weights, choices, images, steps)
    for number, (block, chosen) in enumerate(zip(weights.blocks, choices.blocks, strict=True)):
        x = run_block(block, chosen, weights.heads, x, (steps, f"block {number}"))
    x = apply_norms(weights.last_norms, x)
    if choices.final_norm == "tokens":
        x = steps["final norm"] = weights.final_norm(x)
    x = steps["pooling"] = pool_tokens(x, choices)
    if choices.final_norm == "pooled":
        x = steps["final norm"] = weights.final_norm(x)
    for number, layer in enumerate(weights.head):
        x = layer(x if number == 0 else activate(x, weights.head_activation))
    steps["head"] = x
    steps["output"] = give_output(x, choices.output)
    return steps


def embed(weights: Weights, choices: Choices, images: Tensor, steps: dict[str, Tensor]) -> Tensor:
    """Eq. 1: patches, projected, the class token before them, positions added."""
    if "embedding" in weights.given:
        return weights.given["embedding"]
    if "projection" in weights.given:
        x = weights.given["projection"]
    else:
        patches = cut_patches(images, weights.patch, weights.pixels, choices.patch_order)
        steps["patches"] = patches
        grid = (images.shape[-2] // weights.patch[0], images.shape[-1] // weights.patch[1])
        x = weights.projection(apply_norms(weights.patch_norms, patches))
        x = order_tokens(apply_norms(weights.token_norms, x), grid, choices.token_order)
        steps["projection"] = x
    if choices.class_token != "none":
        assert weights.class_token is not None
        token = weights.class_token.expand(len(x), 1, -1)
        pair = (token, x) if choices.class_token == "first" else (x, token)
        x = steps["class token"] = torch.cat(pair, dim=1)
    table = weights.used_positions if choices.position_rows == "shifted" else weights.positions
    if choices.position_rows != "none" and table is not None:
        x = steps["positions"] = add_positions(x, table, choices)
    return apply_norms(weights.embed_norms, x)


def apply_norms(norms: Sequence[Norm], x: Tensor) -> Tensor:
    for norm in norms:
        x = norm(x)
    return x


def add_positions(x: Tensor, table: Tensor, choices: Choices) -> Tensor:
    """Rows for every token, or for the patches alone."""
    missing = x.shape[1] - len(table)
    nothing = table.new_zeros(missing, table.shape[1])
    parts = (table, nothing) if choices.class_token == "last" else (nothing, table)
    return x + torch.cat(parts)


def cut_patches(
    images: Float[Tensor, "B C H W"], patch: tuple[int, int], pixels: str, order: str = "right"
) -> Float[Tensor, "B N P"]:
    """Patches in reading order, each flattened; "unswapped": cut by a reshape alone."""
    p, q = patch
    if order == "unswapped":
        count = (images.shape[-2] // p) * (images.shape[-1] // q)
        return images.reshape(len(images), count, -1)
    axes = " ".join(pixels)
    return rearrange(images, f"b c (h p) (w q) -> b (h w) ({axes})", p=p, q=q)


def order_tokens(
    tokens: Float[Tensor, "B N D"], grid: tuple[int, int], order: str
) -> Float[Tensor, "B N D"]:
    """Row by row; column by column; or a feature map that was reshaped and not swapped."""
    if order == "columns":
        return rearrange(tokens, "b (h w) d -> b (w h) d", h=grid[0])
    if order == "unswapped":
        return tokens.mT.reshape(tokens.shape)
    return tokens


def run_block(
    block: BlockWeights,
    choices: BlockChoices,
    heads: int,
    x: Float[Tensor, "B N D"],
    record: tuple[dict[str, Tensor], str],
) -> Float[Tensor, "B N D"]:
    """Eq. 2 and 3."""
    steps, name = record
    normed = x if choices.norm1 == "missing" else block.norm1(x)
    if choices.norm1 != "missing":
        steps[f"{name} norm 1"] = normed
    x = normed if choices.norm1 == "stream" else x
    projected = tuple(layer(normed) for layer in block.projections)
    found = attention_steps(projected, heads, choices.attention)
    steps |= {f"{name} {step}": value for step, value in found.items()}
    merged = found["merged heads"]
    out = merged if block.out is None else block.out(merged)
    out = out if block.scale1 is None else out * block.scale1
    steps[f"{name} output projection"] = out
    x = steps[f"{name} residual 1"] = x + out if choices.residual1 else out
    normed = x if choices.norm2 == "missing" else block.norm2(x)
    if choices.norm2 != "missing":
        steps[f"{name} norm 2"] = normed
    x = normed if choices.norm2 == "stream" else x
    hidden = steps[f"{name} MLP hidden"] = block.hidden(normed)
    active = steps[f"{name} activation"] = activate(hidden, choices.activation)
    out = block.mlp_out(active)
    out = steps[f"{name} MLP output"] = out if block.scale2 is None else out * block.scale2
    x = steps[f"{name} residual 2"] = x + out if choices.residual2 else out
    return x


def attention_steps(
    projected: tuple[Tensor, ...], heads: int, choices: AttentionChoices
) -> dict[str, Tensor]:
    """q, k and v, scores, softmax, weighted sum, and the heads side by side again."""
    flat = split_projections(projected, heads, choices)
    if choices.over == "images":
        flat = tuple(part.transpose(0, 1) for part in flat)
    q, k, v = (split_heads(part, heads, choices.split) for part in flat)
    scores = q @ k.mT * score_factor(choices, heads, q.shape[-1])
    axis = {"keys": -1, "queries": -2, "heads": 1, "images": 0}[choices.softmax]
    weights = scores.softmax(dim=axis)
    width = {"after_softmax": q.shape[-1], "dim_after_softmax": heads * q.shape[-1]}
    if choices.scale in width:
        weights = weights / width[choices.scale] ** 0.5
    summed = weights @ v
    merged = merge_heads(summed, choices.merge)
    if choices.over == "images":
        merged = merged.transpose(0, 1)
    names = ("q", "k", "v", "scores", "softmax", "weighted sum", "merged heads")
    return dict(zip(names, (q, k, v, scores, weights, summed, merged), strict=True))


def split_projections(
    projected: tuple[Tensor, ...], heads: int, choices: AttentionChoices
) -> tuple[Tensor, ...]:
    """q, k and v, each (B, N, h d)."""
    if len(projected) == 1:
        axes = " ".join(choices.layout.replace("3", "t"))
        parts = rearrange(projected[0], f"b n ({axes}) -> t b n (h d)", t=3, h=heads).unbind(0)
    else:  # three layers, or three for each head
        parts = tuple(torch.cat(projected[role::3], dim=-1) for role in range(3))
        if choices.layout == "3dh":
            parts = tuple(rearrange(one, "b n (d h) -> b n (h d)", h=heads) for one in parts)
    return tuple(parts[role] for role in choices.roles)


def split_heads(x: Float[Tensor, "B N D"], heads: int, split: str) -> Float[Tensor, "B h N d"]:
    if split == "right":
        return rearrange(x, "b n (h d) -> b h n d", h=heads)
    return x.reshape(len(x), heads, x.shape[1], -1)


def merge_heads(x: Float[Tensor, "B h N d"], merge: Merge) -> Float[Tensor, "B N D"]:
    if merge == "unswapped":
        b, h, n, d = x.shape
        return x.reshape(b, n, h * d)
    return rearrange(x, f"b h n d -> b n ({'h d' if merge == 'right' else 'd h'})")


def score_factor(choices: AttentionChoices, heads: int, dim_head: int) -> float:
    """What scores are multiplied by before the softmax."""
    factors: dict[str, float] = {
        "dim_head": dim_head**-0.5,
        "dim": (heads * dim_head) ** -0.5,
        "inverted": dim_head**0.5,
        "no_root": 1 / dim_head,
        "heads": heads**-0.5,
        "factor": choices.factor,
    }
    return factors.get(choices.scale, 1.0)


def activate(x: Tensor, kind: Activation) -> Tensor:
    if kind == "gelu":
        return F.gelu(x)
    if kind == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if kind == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    if kind == "relu":
        return F.relu(x)
    if kind == "silu":
        return F.silu(x)
    return x.tanh() if kind == "tanh" else x


def pool_tokens(x: Float[Tensor, "B N D"], choices: Choices) -> Float[Tensor, "B D"]:
    if isinstance(choices.pool, int):
        return x[:, choices.pool]
    if choices.pool == "first":
        return x[:, 0]
    if choices.pool == "last":
        return x[:, -1]
    if choices.pool == "all" or choices.class_token == "none":
        return x.mean(dim=1)
    return (x[:, 1:] if choices.class_token == "first" else x[:, :-1]).mean(dim=1)


def give_output(logits: Tensor, output: Output) -> Tensor:
    if output == "softmax":
        return logits.softmax(dim=-1)
    if output == "log_softmax":
        return logits.log_softmax(dim=-1)
    return logits.sigmoid() if output == "sigmoid" else logits
