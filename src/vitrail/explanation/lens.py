"""The logit lens: what the model's own last norm, pooling and head would say after every block.

A block's output takes the place of the last block's, as one more image of a batch, so that whatever
the model does after its last block is done to all of them; no family has to be known. That asks for
outputs of one shape: in a model of stages these are the blocks of the last one.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.explanation.capture import at_least_float32, list_attentions
from vitrail.explanation.hooks import attention_blocks, named_blocks
from vitrail.explanation.readout import check_model

NO_HEAD = "the model has no head, so there is no prediction"
OTHER_SHAPE = "their features have another width or grid than those that the head reads"

Hook = Callable[[nn.Module, Any, Tensor], Tensor | None]


@dataclass(frozen=True)
class Lens:
    """Logits after each block, for one image; the last are the model's own. `note` says how many
    steps are left out, and why."""

    blocks: tuple[str, ...]
    logits: Float[Tensor, "L K"]
    note: str | None = None


@torch.no_grad()
def logit_lens(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    outputs: Mapping[str, Tensor] | None = None,
) -> Lens:
    """The logits after each block that can have them. `outputs` are those of `block_outputs` of the
    same image, where somebody has them already.

    >>> logit_lens(model, images[:1]).logits.shape
    torch.Size([12, 3])
    """
    check_model(model)
    if not getattr(getattr(model, "config", None), "num_classes", 1):
        raise UserError(f"{NO_HEAD}: follow it in a model with classes")
    steps = lens_steps(model)
    if outputs is None and fits_one_pass(model):
        with blocks_as_batch(model) as names:
            logits = at_least_float32(model(image))
        return Lens(tuple(names), logits, describe_omitted(len(steps) - len(names), len(names)))
    if outputs is None:
        with block_outputs(model) as outputs:
            model(image)
    last = find_last(model, outputs)
    found = replace_last(model, image, outputs, list(named_blocks(model)), last)
    inner = [name for name in steps if name.startswith(f"{last}.")]
    if inner:  # the last of these and the block around them have the same logits
        del found[last]
        found |= replace_last(model, image, outputs, inner, inner[-1], repeat=True)
    order = [name for name in steps if name in found]
    left = len(steps) - len(order) - bool(inner)
    logits = torch.stack([found[name] for name in order])
    return Lens(tuple(order), logits, describe_omitted(left, len(order)))


@contextmanager
def blocks_as_batch(model: nn.Module) -> Iterator[list[str]]:
    """While it lasts, a call of the model on one image returns the logits after each block, the
    model's own last, and the list has the names of these blocks. For models of which
    `fits_one_pass` says that it can be."""
    steps, outputs, names = lens_steps(model), dict[str, Tensor](), list[str]()
    *others, last = steps

    def keep(name: str) -> Hook:
        return lambda module, inputs, output: outputs.update({name: output})

    def gather(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        outputs[last] = output
        names[:] = [name for name in steps if outputs[name].shape == output.shape]
        return torch.cat([outputs[name] for name in names])

    with output_hooks(model, {last: gather, **{name: keep(name) for name in others}}):
        yield names


def fits_one_pass(model: nn.Module) -> bool:
    """Whether the last step is a block with attention that no other block lies in: then nothing
    after it needs what went into it."""
    return lens_steps(model)[-1] in attention_blocks(model) and not any(
        name.startswith(f"{lens_steps(model)[-1]}.") for name in lens_steps(model)
    )


def describe_omitted(left: int, shown: int) -> str | None:
    return f"{left} of {left + shown} steps are left out: {OTHER_SHAPE}" if left else None


def lens_steps(model: nn.Module) -> list[str]:
    """The blocks by their names; before a block that has several attentions, the blocks in it."""
    blocks, inner = list(named_blocks(model)), dict[str, list[str]]()
    for name in list_attentions(model):
        around = name.rpartition(".")[0]
        outer = [block for block in blocks if around.startswith(f"{block}.")]
        if outer:
            inner.setdefault(outer[0], []).append(around)
    return [name for block in blocks for name in (*inner.get(block, []), block)]


def find_last(model: nn.Module, outputs: Mapping[str, Tensor]) -> str:
    """The last block; where it has no attention, and no other block gives what it gives, it is part
    of what the model does afterwards, and the last block with attention is the one."""
    *others, last = named_blocks(model)
    with_attention = attention_blocks(model)
    shapes = [outputs[name].shape for name in others]
    if not with_attention or last in with_attention or outputs[last].shape in shapes:
        return last
    return with_attention[-1]


@contextmanager
def block_outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The output of every step of the lens, of the calls that this thread makes inside."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Hook:
        return lambda module, inputs, output: found.update({name: output})

    with output_hooks(model, {name: keep(name) for name in lens_steps(model)}):
        yield found


def replace_last(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    outputs: Mapping[str, Tensor],
    names: list[str],
    last: str,
    *,
    repeat: bool = False,
) -> dict[str, Float[Tensor, " K"]]:
    """The logits with the output of each block in the place of the last one's, by name. `repeat`
    runs the model on as many copies of the image: within a block its input is needed once more."""
    same = [name for name in names if outputs[name].shape == outputs[last].shape]
    same = same[: same.index(last) + 1]
    every = torch.cat([outputs[name] for name in same])
    with output_hooks(model, {last: lambda module, inputs, output: every}):
        logits: Tensor = model(image.expand(len(same), -1, -1, -1) if repeat else image)
    return dict(zip(same, at_least_float32(logits), strict=True))


@contextmanager
def output_hooks(model: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Each hook on the module of its name, for calls of this thread; what a hook returns, if
    anything, takes the place of the module's output."""
    thread = threading.get_ident()

    def of_this_thread(hook: Hook) -> Hook:
        def run(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
            return hook(module, inputs, output) if threading.get_ident() == thread else None

        return run

    handles = [
        model.get_submodule(name).register_forward_hook(of_this_thread(hook))
        for name, hook in hooks.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
