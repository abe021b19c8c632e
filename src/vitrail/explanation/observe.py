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
    attentions_of,
    choose,
    context_weights,
    named,
    refuse_compiled,
)
from vitrail.layers.attention import Attend, SeparableAttend

# Called with the name of an attention, its weights, and the bias that its logits had, if any.
SeeAttention = Callable[[str, AttentionMap, Tensor | None], None]
# Called with the name of a step of the trunk and what it gives.
SeeStep = Callable[[str, Tensor], None]

GIVEN = ("q", "k", "v", "bias", "scale")


@contextmanager
def observe(
    model: nn.Module, *, attention: SeeAttention | None = None, step: SeeStep | None = None
) -> Iterator[None]:
    """Show every attention, and every step of the trunk, to a function while the model runs.

    Each map is gone when the function returns, so that no more than one is in memory however deep
    the model is. What the model computes does not change by a bit.

    >>> names = []
    >>> with observe(model, attention=lambda name, one, bias: names.append(name)):
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
                attention(name, *seen_by(module, args, kwargs))

        return hook

    def see_step(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            if threading.get_ident() == thread and step is not None:
                seen.append(name)
                step(name, output)

        return hook

    handles = []
    if attention is not None:
        for name, module in choose(model, "*").items():
            hook = see_attention(name)
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
    if step is not None:
        for name, block in steps_of(model).items():
            handles.append(block.register_forward_hook(see_step(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if handles and not seen:
        raise UserError("nothing was seen: call the model inside the with block")


def seen_by(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[AttentionMap, Tensor | None]:
    """The weights of one call of an attention, and the bias it was given."""
    if isinstance(module, SeparableAttend):
        return AttentionMap(context_weights(*args, **kwargs), module.layout), None
    assert isinstance(module, Attend)
    given = named(GIVEN, args, kwargs)
    given.pop("v")
    return AttentionMap(attention_weights(**given), module.layout), given.get("bias")


def layouts_of(model: nn.Module) -> dict[str, TokenLayout]:
    """Where the tokens of each attention lie, by its name, in the order in which they run."""
    return {name: module.layout for name, module in choose(model, "*").items()}


def steps_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks from image to head; of a module that does not tell them, its attentions."""
    steps: Callable[[], dict[str, nn.Module]] | None = getattr(model, "blocks_by_depth", None)
    return dict(attentions_of(model)) if steps is None else steps()


def attending_steps(model: nn.Module) -> list[str]:
    """The steps of the trunk in which there is attention; the others convolve or merge."""
    return [
        name
        for name, module in steps_of(model).items()
        if any(isinstance(part, Attend | SeparableAttend) for part in module.modules())
    ]
