"""The attention weights of a model as outputs beside its own, in operators that every format has.

`vitrail.capture` does the same for a model that runs; this is for a model that is exported, where
the weights become outputs of the graph under the names that `capture` gives them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import Attend, SeparableAttend, exported_weights
from vitrail.layers.merged import unmerge_attention


def attention_layouts(model: nn.Module) -> dict[str, TokenLayout]:
    """Where the tokens of each attention lie in the image, by the name of the attention.

    >>> list(attention_layouts(create("vit_ti_16", depth=2)))
    ['blocks.0.attention', 'blocks.1.attention']
    """
    return {name: module.layout for name, module in _attentions(model)}


@contextmanager
def attention_outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The weights (B, *W, h, N, N) of every attention that runs inside the block, by name.

    >>> with attention_outputs(model) as weights:
    ...     logits = model(images)
    >>> weights["blocks.0.attention"].shape
    torch.Size([1, 3, 197, 197])
    """
    weights: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(_record(name, weights), with_kwargs=True)
        for name, module in _attentions(model)
    ]
    try:
        yield weights
    finally:
        for handle in handles:
            handle.remove()


def _attentions(model: nn.Module) -> Iterator[tuple[str, Attend | SeparableAttend]]:
    for name, module in model.named_modules():
        if isinstance(module, Attend | SeparableAttend):
            yield name.removesuffix(".attend"), module


def _record(name: str, weights: dict[str, Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], _: Tensor) -> None:
        if isinstance(module, SeparableAttend):
            scores: Tensor = args[0]
            weights[name] = scores.softmax(dim=-1).movedim(1, 2)[..., None, :]
        else:
            given = dict(zip(("q", "k", "v", "bias", "scale"), args, strict=False)) | kwargs
            del given["v"]
            group = given.pop("group", None)  # of merged tokens
            found = exported_weights(**given)
            weights[name] = found if group is None else unmerge_attention(found, group)

    return hook
