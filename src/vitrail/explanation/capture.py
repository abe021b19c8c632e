"""Seeing every attention map of a running model without changing a bit of what it computes."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.propagation import attention_groups, check_weights, count_tokens
from vitrail.layers.attention import Attend, SeparableAttend
from vitrail.layers.merged import gather_weights, spread_weights

# Methods that explain an image without any attention, the classical one first.
WITHOUT_ATTENTION = ("gradcam", "hirescam", "saliency", "smoothgrad", "integrated", "occlusion")
Fusion = Literal["mean", "max", "min"]
Reduce = Callable[[Float[Tensor, "B *W h #N N"]], Float[Tensor, "B *W g #N N"]]


@dataclass(frozen=True, repr=False)
class AttentionMap:
    """The weights of one attention, rows that sum to one, and where their tokens lie in the
    image; with an axis for windows, or for the places of a fold, before the heads where there
    are any. Separable attention has one row, which all tokens share; its layout says so."""

    weights: Float[Tensor, "B *W h #N N"]
    layout: TokenLayout

    def __repr__(self) -> str:
        rows, columns = self.layout.grid
        shape = " x ".join(map(str, self.weights.shape))
        return f"AttentionMap(weights {shape}, grid {rows}x{columns})"

    def on_grid(self, query: int | tuple[int, int]) -> Float[Tensor, "B h rows columns"]:
        """How much a token looks at each patch, whatever windows or folds they are in: none where
        the two never meet.

        Tokens 0, 1, … are the prefix tokens first, then the patches row by row; (row, column) is
        the patch there.
        """
        groups, weights = attention_groups(self.layout), self.grouped()
        group, place = (groups == self.token_index(query)).nonzero()[0].tolist()
        row = weights[:, group, :, 0 if self.layout.separable else place]
        tokens = row.new_zeros(*row.shape[:2], count_tokens(self.layout) + 1)  # one more, for -1
        tokens[..., groups[group].to(row.device)] = row
        return tokens[..., self.layout.prefix : -1].unflatten(-1, self.layout.grid)

    def grouped(self) -> Float[Tensor, "B W h #N N"]:
        """The weights with an axis for windows or places, even if there is but one; checked."""
        check_weights(self.weights, self.layout)
        return self.weights if self.weights.ndim == 5 else self.weights[:, None]

    def token_index(self, query: int | tuple[int, int]) -> int:
        """The place of a token in the sequence, from that or from a patch's row and column."""
        (rows, columns), count = self.layout.grid, count_tokens(self.layout)
        if isinstance(query, int):
            if 0 <= query < count:
                return query
            raise UserError(f"query must be a token from 0 to {count - 1}, got {query}")
        row, column = query
        if 0 <= row < rows and 0 <= column < columns:
            return self.layout.prefix + row * columns + column
        raise UserError(
            f"query must be a patch from (0, 0) to ({rows - 1}, {columns - 1}), got {query}"
        )


@contextmanager
def capture(
    model: nn.Module,
    where: str = "*",
    *,
    reduce: Fusion | Reduce | None = None,
    differentiable: bool = False,
) -> Iterator[dict[str, AttentionMap]]:
    """The attention maps of the calls that this thread makes inside the block, by the name of their
    attention, in the order in which they run.

    `where` is a shell pattern for names such as "blocks.11.attention". `reduce` makes each map
    smaller at once, so that no more is kept: "mean", "max" or "min" over heads, or a function of
    the weights that keeps their axes. Logits stay identical to the bit, because the weights are
    computed beside the fused attention, not in its place; with `differentiable` they take its
    place, so that gradients reach them, and logits agree to rounding. That is for `model(images)`:
    `vitrail.predict` computes less of the last block while nobody observes it, so that its scores
    inside and outside of the block may differ in the last bits.

    >>> with capture(model, reduce="mean") as maps:
    ...     logits = model(images)
    >>> maps["blocks.11.attention"].weights.shape
    torch.Size([1, 1, 197, 197])
    """
    refuse_compiled(model)
    chosen = select_attentions(model, where)
    maps: dict[str, AttentionMap] = {}
    keep = partial(fuse_heads, how=reduce) if isinstance(reduce, str) else reduce
    thread = threading.get_ident()
    handles = [
        module.register_forward_hook(
            recording_hook(name, maps, thread, keep=keep, differentiable=differentiable),
            with_kwargs=True,
        )
        for name, module in chosen.items()
    ]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()
    if not maps:
        raise UserError("no attention was captured: call the model inside the with block")


def list_attentions(model: nn.Module) -> dict[str, Attend | SeparableAttend]:
    """Every attention by the name of the module that it is the middle of; a convolutional network
    has none."""
    return {
        name.removesuffix(".attend"): module
        for name, module in model.named_modules()
        if isinstance(module, Attend | SeparableAttend)
    }


def find_attentions(model: nn.Module) -> dict[str, Attend | SeparableAttend]:
    """The same, or `UserError` where there is none."""
    names = list_attentions(model)
    if not names and hasattr(model, "blocks_by_depth"):  # a model of ours
        raise UserError(no_attention(model))
    if not names:
        raise UserError(
            f"{type(model).__name__} has no attention that can be seen: only models of Vitrail "
            "have, and vitrail.load(module) makes one of a timm or transformers module"
        )
    return names


def no_attention(model: nn.Module) -> str:
    """Why nothing that reads attention can be had of a convolutional network, and what can."""
    *others, last = WITHOUT_ATTENTION
    return (
        f"{type(model).__name__} has no attention, it is a convolutional network: choose method "
        f"{', '.join(others)} or {last}"
    )


def select_attentions(model: nn.Module, where: str) -> dict[str, Attend | SeparableAttend]:
    names = find_attentions(model)
    chosen = {name: module for name, module in names.items() if fnmatchcase(name, where)}
    if not chosen:
        some = ", ".join(list(names)[:3])
        raise UserError(f"no attention is called {where!r}, this model has {some}, …")
    return chosen


def fuse_heads(weights: Float[Tensor, "B *W h #N N"], how: Fusion) -> Float[Tensor, "B *W 1 #N N"]:
    """One head from all."""
    if how == "mean":
        return weights.mean(dim=-3, keepdim=True)
    if how not in ("max", "min"):
        raise UserError(f"fusion must be mean, max or min, got {how!r}")
    return weights.amax(dim=-3, keepdim=True) if how == "max" else weights.amin(-3, keepdim=True)


def attention_weights(
    q: Float[Tensor, "B *W h N d"],
    k: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h N N"] | None = None,
    scale: float | None = None,
    group: Int[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B *W h N N"]:
    """softmax(q kᵀ · scale + bias), in float32 or better, whatever precision the model runs in;
    of merged tokens, spread over the tokens that `group` says they were merged from."""
    with torch.autocast(q.device.type, enabled=False):
        q, k = at_least_float32(q), at_least_float32(k)
        # scaled before the product, which is larger
        scores = q * (q.shape[-1] ** -0.5 if scale is None else scale) @ k.mT
        weights = (scores if bias is None else scores + bias).softmax(dim=-1)
        return weights if group is None else spread_weights(weights, group)


def context_weights(
    scores: Float[Tensor, "B 1 P N"], keys: Float[Tensor, "B D P N"]
) -> Float[Tensor, "B P 1 1 N"]:
    """The same for separable attention: the context weight of each token, one row for all."""
    with torch.autocast(scores.device.type, enabled=False):
        return at_least_float32(scores).softmax(dim=-1).movedim(1, 2)[..., None, :]


def at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float64 else x.float()


def apply_attention(
    weights: Float[Tensor, "B *W h N N"],
    v: Float[Tensor, "B *W h N d"],
    group: Int[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B *W h N d"]:
    with torch.autocast(weights.device.type, enabled=False):
        if group is not None:
            weights = gather_weights(weights, group, v.shape[-2])
        return weights @ at_least_float32(v)


def apply_separable_attention(
    weights: Float[Tensor, "B P 1 1 N"], keys: Float[Tensor, "B D P N"]
) -> Float[Tensor, "B D P 1"]:
    each: Float[Tensor, "B 1 P N"] = weights[:, :, 0, 0][:, None]
    with torch.autocast(weights.device.type, enabled=False):
        return (at_least_float32(keys) * each).sum(dim=-1, keepdim=True)


def recording_hook(
    name: str,
    maps: dict[str, AttentionMap],
    thread: int,
    *,
    keep: Reduce | None,
    differentiable: bool,
) -> Callable[..., Tensor | None]:
    def record(
        module: Attend | SeparableAttend,
        args: tuple[Tensor, ...],
        kwargs: dict[str, Any],
        output: Tensor,
    ) -> Tensor | None:
        if threading.get_ident() != thread:  # another thread runs the same model: not our call
            return None
        if isinstance(module, SeparableAttend):
            given = bind_arguments(("scores", "keys"), args, kwargs)
            weights = context_weights(**given)
            result = apply_separable_attention(weights, given["keys"]) if differentiable else None
        else:
            given = bind_arguments(("q", "k", "v", "bias", "scale"), args, kwargs)
            v = given.pop("v")
            weights = attention_weights(**given)
            group = given.get("group")
            result = apply_attention(weights, v, group) if differentiable else None
        kept = weights if keep is None else keep(weights)
        if kept.ndim != weights.ndim or kept.shape[-1] != weights.shape[-1]:
            raise UserError(
                f"reduce made {tuple(kept.shape)} of {tuple(weights.shape)}, but all axes stay, "
                "and all tokens: weights.mean(dim=-3, keepdim=True) would do"
            )
        maps[name] = AttentionMap(kept, module.layout)
        return None if result is None else result.to(output.dtype)

    return record


def bind_arguments(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    return dict(zip(names, args, strict=False)) | kwargs


def refuse_compiled(model: nn.Module) -> None:
    """Hooks added to a compiled graph do not run, and an empty record would look like an answer."""
    dynamo = sys.modules.get("torch._dynamo")  # slow to import, and there once a model is compiled
    wrapper: tuple[type, ...] = () if dynamo is None else (dynamo.OptimizedModule,)
    for module in model.modules():
        if isinstance(module, wrapper) or module._compiled_call_impl is not None:
            raise UserError(
                "attention of a compiled model cannot be captured: pass the model before "
                "torch.compile"
            )
