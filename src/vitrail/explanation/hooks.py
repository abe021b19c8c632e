"""Watching a running model attention by attention and step by step, and holding nothing of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import (
    AttentionMap,
    attention_weights,
    bind_arguments,
    context_weights,
    find_attentions,
    list_attentions,
    refuse_compiled,
    select_attentions,
)
from vitrail.explanation.readout import block_layouts
from vitrail.layers.attention import Attend, SeparableAttend

# Called with the name of an attention, its weights, and the bias that its logits had, if any.
OnAttention = Callable[[str, AttentionMap, Tensor | None], None]
# Called with the name of a block and its output.
OnBlock = Callable[[str, Tensor], None]

ATTEND_ARGUMENTS = ("q", "k", "v", "bias", "scale")


@contextmanager
def forward_hooks(
    model: nn.Module, *, attention: OnAttention | None = None, block: OnBlock | None = None
) -> Iterator[None]:
    """Show every attention, and every block, to a function while the model runs.

    Each map is gone when the function returns, so that no more than one is in memory however deep
    the model is. What the model computes does not change by a bit.

    >>> names = []
    >>> with forward_hooks(model, attention=lambda name, one, bias: names.append(name)):
    ...     logits = model(images)
    >>> names[0]
    'blocks.0.attention'
    """
    refuse_compiled(model)
    thread, seen = threading.get_ident(), list[str]()

    def see_attention(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, _: Tensor) -> None:
            if threading.get_ident() == thread and attention is not None:
                seen.append(name)
                attention(name, *read_attention_call(module, args, kwargs))

        return hook

    def see_block(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            if threading.get_ident() == thread and block is not None:
                seen.append(name)
                block(name, output)

        return hook

    handles = []
    if attention is not None:
        for name, module in select_attentions(model, "*").items():
            hook = see_attention(name)
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
    if block is not None:
        for name, part in named_blocks(model).items():
            handles.append(part.register_forward_hook(see_block(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if handles and not seen:
        raise UserError("nothing was seen: call the model inside the with block")


def read_attention_call(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[AttentionMap, Tensor | None]:
    """The weights of one call of an attention, and the bias it was given."""
    if isinstance(module, SeparableAttend):
        return AttentionMap(context_weights(*args, **kwargs), module.layout), None
    assert isinstance(module, Attend)
    given = bind_arguments(ATTEND_ARGUMENTS, args, kwargs)
    given.pop("v")
    return AttentionMap(attention_weights(**given), module.layout), given.get("bias")


def token_layouts(model: nn.Module) -> dict[str, TokenLayout]:
    """Where the tokens of each attention lie, by its name, in the order in which they run; nothing
    of a convolutional network."""
    found = list_attentions(model) or ({} if is_convolutional(model) else find_attentions(model))
    return {name: module.layout for name, module in found.items()}


def grid_layouts(model: nn.Module) -> dict[str, TokenLayout]:
    """The same; of a convolutional network, of each of its blocks."""
    if not is_convolutional(model):
        return token_layouts(model)
    return dict(zip(named_blocks(model), block_layouts(model), strict=True))


def is_convolutional(model: nn.Module) -> bool:
    """Whether it is a model of ours without attention."""
    return hasattr(model, "blocks_by_depth") and not list_attentions(model)


def named_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks from image to head; of a module that does not tell them, its attentions."""
    blocks: Callable[[], dict[str, nn.Module]] | None = getattr(model, "blocks_by_depth", None)
    return dict(find_attentions(model)) if blocks is None else blocks()


def attention_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks that have attention; the others convolve or merge."""
    return [
        name
        for name, module in named_blocks(model).items()
        if any(isinstance(part, Attend | SeparableAttend) for part in module.modules())
    ]
