"""One pass over images that gathers all that the figures of a model show."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.explanation.attention_sinks import FeatureNorms, feature_norms, received_attention
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.cka import CKA, gram
from vitrail.explanation.distance import attention_distances
from vitrail.explanation.drawing import evenly_spaced
from vitrail.explanation.hooks import attention_blocks, forward_hooks, named_blocks, token_layouts
from vitrail.explanation.positions import bias_by_offset, shared_bias
from vitrail.explanation.tokens import tokens_on_grid

MAX_BLOCKS = 4  # whose tokens are shown, before the last


@dataclass
class ActivationStatistics:
    """What was seen, by the name of the attention or of the step; a row for each image."""

    layouts: dict[str, TokenLayout]
    examples: Float[Tensor, "K C H W"]  # the first few
    images: int = 0
    distance: dict[str, Float[Tensor, "B h"]] = field(default_factory=dict)
    raw_distance: dict[str, Float[Tensor, "B h"]] = field(default_factory=dict)
    to_prefix: dict[str, Float[Tensor, "B h P"]] = field(default_factory=dict)
    strongest: dict[str, Float[Tensor, "B h"]] = field(default_factory=dict)
    biases: dict[str, Float[Tensor, "h down across"]] = field(default_factory=dict)
    norms: dict[str, FeatureNorms] = field(default_factory=dict)
    tokens: dict[str, Float[Tensor, "K rows columns D"]] = field(default_factory=dict)
    cka: CKA = field(default_factory=CKA)

    @property
    def prefix(self) -> int:
        return max((layout.prefix for layout in self.layouts.values()), default=0)


@torch.no_grad()
def collect_statistics(
    model: nn.Module,
    batches: Iterable[Float[Tensor, "B C H W"]],
    *,
    keep: int = 4,
    on_progress: Callable[[int], None] | None = None,
) -> ActivationStatistics:
    """Run a model over batches of prepared images; `on_progress` gets how many were seen.

    Every map is reduced where it arises. Of the first `keep` images the tokens of a few steps are
    kept, to be coloured.
    """
    model.eval()
    seen = ActivationStatistics(token_layouts(model), torch.empty(0))
    steps = list(named_blocks(model))
    chosen = {steps[place] for place in evenly_spaced(len(steps), MAX_BLOCKS + 1)[:-1]}
    attending = set(attention_blocks(model))
    weight = next(model.parameters())
    grams: dict[str, Tensor] = {}
    size = (0, 0)

    def see_attention(name: str, one: AttentionMap, bias: Tensor | None) -> None:
        found = received_attention(one)
        distance, raw = attention_distances(one)
        append(seen.distance, name, distance)
        append(seen.raw_distance, name, raw)
        append(seen.to_prefix, name, found.prefix)
        append(seen.strongest, name, found.strongest)
        if bias is not None and name not in seen.biases:
            side = one.layout.window or one.layout.grid
            seen.biases[name] = bias_by_offset(shared_bias(bias, one.layout).float(), side).cpu()

    def see_block(name: str, output: Tensor) -> None:
        grams[name] = gram(output).cpu()
        tokens = tokens_on_grid(output, seen.layouts.values(), size)
        if name in attending:
            append_norms(seen.norms, name, feature_norms(tokens))
        room = keep - len(seen.examples)
        if name in chosen and room > 0:
            append(seen.tokens, name, tokens.grid[:room])

    for images in batches:
        images = images.to(weight)
        size = (images.shape[2], images.shape[3])
        attend = see_attention if seen.layouts else None
        with forward_hooks(model, attention=attend, block=see_block):
            last: Tensor = model.encode(images)  # type: ignore[operator]
        room = keep - len(seen.examples)
        if room > 0:
            cells = tokens_on_grid(last, seen.layouts.values(), size).grid
            append(seen.tokens, "encode", cells[:room])
            seen.examples = torch.cat([seen.examples.to(images), images[:room]])
        seen.cka.add_grams(grams)
        seen.images += len(images)
        if on_progress is not None:
            on_progress(seen.images)
    return seen


def append(to: dict[str, Tensor], name: str, rows: Tensor) -> None:
    rows = rows.cpu()
    to[name] = torch.cat([to[name], rows]) if name in to else rows


def append_norms(to: dict[str, FeatureNorms], name: str, more: FeatureNorms) -> None:
    parts = {part: getattr(more, part).cpu() for part in FeatureNorms.__dataclass_fields__}
    if name in to:
        parts = {part: torch.cat([getattr(to[name], part), new]) for part, new in parts.items()}
    to[name] = FeatureNorms(**parts)
