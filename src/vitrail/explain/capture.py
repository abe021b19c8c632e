"""Seeing every attention map of a running model without changing a bit of what it computes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import Attend, SeparableAttend


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention, rows that sum to one, and where their tokens lie in the
    picture; with an axis for windows, or for the places of a fold, before the heads where there
    are any. Separable attention has one row, which all tokens share."""

    weights: Float[Tensor, "B *W h #N N"]
    layout: TokenLayout

    def on_grid(self, query: int) -> Float[Tensor, "B h rows columns"]:
        """How much token `query` looks at each patch; tokens 0, 1, … are the prefix tokens
        first."""
        return self.weights[:, :, query, self.layout.prefix :].unflatten(-1, self.layout.grid)


@contextmanager
def capture(model: nn.Module, where: str = "*") -> Iterator[dict[str, AttentionMap]]:
    """The attention maps of the calls made inside the block, by the name of their attention.

    `where` is a shell pattern for names such as "blocks.11.attention". Logits stay identical to
    the bit, because the weights are computed beside the fused attention, not in its place.

    >>> with capture(model) as maps:
    ...     logits = model(images)
    >>> maps["blocks.11.attention"].weights.shape
    torch.Size([1, 3, 197, 197])
    """
    _refuse_compiled(model)
    names = {
        name.removesuffix(".attend"): module
        for name, module in model.named_modules()
        if isinstance(module, Attend | SeparableAttend)
    }
    chosen = {name: module for name, module in names.items() if fnmatchcase(name, where)}
    if not chosen:
        some = ", ".join(list(names)[:3]) or "none"
        raise UserError(f"no attention is called {where!r}, this model has {some}, …")
    maps: dict[str, AttentionMap] = {}
    thread = threading.get_ident()
    handles = [
        module.register_forward_hook(_recorder(name, maps, thread), with_kwargs=True)
        for name, module in chosen.items()
    ]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()
    if not maps:
        raise UserError("nothing was captured: call the model inside the with block")


def attention_weights(
    q: Float[Tensor, "B *W h N d"],
    k: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h N N"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B *W h N N"]:
    """softmax(q kᵀ · scale + bias), in float32 or better, whatever precision the model runs in."""
    with torch.autocast(q.device.type, enabled=False):
        q, k = (part if part.dtype is torch.float64 else part.float() for part in (q, k))
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        return (scores if bias is None else scores + bias).softmax(dim=-1)


def context_weights(
    scores: Float[Tensor, "B 1 P N"], keys: Float[Tensor, "B D P N"]
) -> Float[Tensor, "B P 1 1 N"]:
    """The same for separable attention: how much each token is asked, one row for all."""
    with torch.autocast(scores.device.type, enabled=False):
        scores = scores if scores.dtype is torch.float64 else scores.float()
        return scores.softmax(dim=-1).movedim(1, 2)[..., None, :]


def _recorder(name: str, maps: dict[str, AttentionMap], thread: int) -> Callable[..., None]:
    def record(
        module: Attend | SeparableAttend,
        args: tuple[Tensor, ...],
        kwargs: dict[str, Tensor | float | None],
        output: Tensor,
    ) -> None:
        if threading.get_ident() != thread:  # another thread runs the same model: not our call
            return
        if isinstance(module, SeparableAttend):
            weights = context_weights(*args, **kwargs)  # type: ignore[arg-type]
        else:
            given = dict(zip(("q", "k", "v", "bias", "scale"), args, strict=False)) | kwargs
            given.pop("v")
            weights = attention_weights(**given)  # type: ignore[arg-type]
        maps[name] = AttentionMap(weights, module.layout)

    return record


def _refuse_compiled(model: nn.Module) -> None:
    # hooks added to a compiled graph do not run, and an empty record would look like an answer
    wrapped = isinstance(model, torch._dynamo.OptimizedModule)
    if wrapped or any(module._compiled_call_impl is not None for module in model.modules()):
        raise UserError(
            "a compiled model cannot be looked into: capture on the model as it was before "
            "compiling"
        )
