"""Seeing every attention map of a running model without changing a bit of what it computes."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.propagation import attention_groups, check_weights, count_tokens
from vitrail.layers.attention import Attend, SeparableAttend
from vitrail.layers.merged import gather_weights, unmerge_attention

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


@dataclass(frozen=True, repr=False)
class AttentionQKV:
    """Queries, keys and values of one attention as it was given them, and its scores, from which
    softmax makes the weights: q kᵀ · scale + bias, in float32 or better. A relative bias and the
    mask of shifted windows are in the scores.

    There is an axis for windows, or for the places of a fold, before the heads where there are
    any, as in the maps. Cosine attention (Swin V2) has q and k normalised, q times its temperature.
    Among merged tokens there are M of them, and `group` says which each of the N tokens of the
    layout is a part of; their scores have the logarithm of their sizes in them.
    """

    q: Float[Tensor, "B *W h M d"]
    k: Float[Tensor, "B *W h M d"]
    v: Float[Tensor, "B *W h M d"]
    scores: Float[Tensor, "B *W h M M"]
    layout: TokenLayout
    group: Int[Tensor, "B N"] | None = None

    def __repr__(self) -> str:
        rows, columns = self.layout.grid
        q, scores = (" x ".join(map(str, one.shape)) for one in (self.q, self.scores))
        return f"AttentionQKV(q, k, v {q}, scores {scores}, grid {rows}x{columns})"

    def to_map(self) -> AttentionMap:
        """The attention map of these scores, as `capture` gives it."""
        weights = self.scores.softmax(dim=-1)
        weights = weights if self.group is None else unmerge_attention(weights, self.group)
        return AttentionMap(weights, self.layout)


@overload
def capture(
    model: nn.Module,
    where: str = ...,
    *,
    what: Literal["weights"] = ...,
    reduce: Fusion | Reduce | None = ...,
    differentiable: bool = ...,
) -> AbstractContextManager[dict[str, AttentionMap]]: ...


@overload
def capture(
    model: nn.Module, where: str = ..., *, what: Literal["qkv"], differentiable: bool = ...
) -> AbstractContextManager[dict[str, AttentionQKV]]: ...


def capture(
    model: nn.Module,
    where: str = "*",
    *,
    what: Literal["weights", "qkv"] = "weights",
    reduce: Fusion | Reduce | None = None,
    differentiable: bool = False,
) -> AbstractContextManager[dict[str, Any]]:
    """The attention maps of the calls that this thread makes inside the block, by the name of their
    attention, in the order in which they run.

    `where` is a shell pattern for names such as "blocks.11.attention". `reduce` makes each map
    smaller at once, so that no more is kept: "mean", "max" or "min" over heads, or a function of
    the weights that keeps their axes. Logits stay identical to the bit, because the weights are
    computed beside the fused attention, not in its place; with `differentiable` they take its
    place, so that gradients reach them, and logits agree to rounding. That is for `model(images)`:
    `vitrail.predict` computes less of the last block while nobody observes it, so that its scores
    inside and outside of the block may differ in the last bits.

    `what="qkv"` keeps q, k, v and the scores before softmax instead (`AttentionQKV`), which takes
    no `reduce`; with `differentiable` gradients reach the scores too.

    >>> with capture(model, reduce="mean") as maps:
    ...     logits = model(images)
    >>> maps["blocks.11.attention"].weights.shape
    torch.Size([1, 1, 197, 197])
    >>> with capture(model, "blocks.11.*", what="qkv") as found:
    ...     logits = model(images)
    >>> found["blocks.11.attention"].q.shape
    torch.Size([1, 3, 197, 64])
    """
    if what == "qkv":
        if reduce is not None:
            raise UserError('reduce needs what="weights", got what="qkv": leave it out')
        refuse_separable(select_attentions(model, where))
        hook: RecordingHook = partial(qkv_hook, differentiable=differentiable)
    elif what == "weights":
        keep = partial(fuse_heads, how=reduce) if isinstance(reduce, str) else reduce
        hook = partial(recording_hook, keep=keep, differentiable=differentiable)
    else:
        raise UserError(f'what must be "weights" or "qkv", got {what!r}')
    return record_attentions(model, where, hook)


# Makes a hook of an attention's name, the record to fill, and the thread whose calls count.
RecordingHook = Callable[[str, dict[str, Any], int], Callable[..., Tensor | None]]


@contextmanager
def record_attentions(
    model: nn.Module, where: str, hook: RecordingHook
) -> Iterator[dict[str, Any]]:
    """What a hook records of each attention while the block lasts."""
    refuse_compiled(model)
    chosen = select_attentions(model, where)
    maps: dict[str, Any] = {}
    thread = threading.get_ident()
    handles = [
        module.register_forward_hook(hook(name, maps, thread), with_kwargs=True)
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
        raise UserError(no_attention())
    if not names:
        raise UserError(
            f"{type(model).__name__} has no attention that can be seen: only models of Vitrail "
            "have, and vitrail.load(module) makes one of a timm or transformers module"
        )
    return names


def no_attention() -> str:
    """Why nothing that reads attention can be had of a convolutional network, and what can."""
    *others, last = WITHOUT_ATTENTION
    return f"a convolutional network has no attention: explain it by {', '.join(others)} or {last}"


def select_attentions(model: nn.Module, where: str) -> dict[str, Attend | SeparableAttend]:
    names = find_attentions(model)
    chosen = {name: module for name, module in names.items() if fnmatchcase(name, where)}
    if not chosen:
        some = ", ".join(list(names)[:3])
        raise UserError(f"no attention is called {where!r}, this model has {some}, …")
    return chosen


def refuse_separable(chosen: Mapping[str, Attend | SeparableAttend]) -> None:
    for name, module in chosen.items():
        if isinstance(module, SeparableAttend):
            raise UserError(
                f'what="qkv" needs attention with queries, got {name}, whose separable attention '
                "computes one score for each token and no q kᵀ: leave out what"
            )


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
        weights = attention_scores(q, k, bias, scale).softmax(dim=-1)
        return weights if group is None else unmerge_attention(weights, group)


def attention_scores(
    q: Float[Tensor, "B *W h N d"],
    k: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h N N"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B *W h N N"]:
    """q kᵀ · scale + bias, in float32 or better."""
    with torch.autocast(q.device.type, enabled=False):
        q, k = at_least_float32(q), at_least_float32(k)
        # scaled before the product, which is larger
        scores = q * (q.shape[-1] ** -0.5 if scale is None else scale) @ k.mT
        return scores if bias is None else scores + bias


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


def qkv_hook(
    name: str, found: dict[str, AttentionQKV], thread: int, *, differentiable: bool
) -> Callable[..., Tensor | None]:
    def record(
        module: Attend, args: tuple[Tensor, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if threading.get_ident() != thread:
            return None
        given = bind_arguments(("q", "k", "v", "bias", "scale"), args, kwargs)
        group, v = given.pop("group", None), given.pop("v")
        scores = attention_scores(**given)
        found[name] = AttentionQKV(given["q"], given["k"], v, scores, module.layout, group)
        if not differentiable:
            return None
        return apply_attention(scores.softmax(dim=-1), v).to(output.dtype)

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
