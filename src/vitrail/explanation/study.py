"""One pass over pictures that gathers all that the figures of a model show."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.explanation.alignment import Alignment, gram
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.distance import both_distances
from vitrail.explanation.drawing import spread_out
from vitrail.explanation.observe import attending_steps, layouts_of, observe, steps_of
from vitrail.explanation.positions import by_offset, shared_bias
from vitrail.explanation.sinks import Norms, norms_of, received
from vitrail.explanation.tokens import on_grid

MOST_STEPS = 4  # of the trunk whose tokens are shown, before the last


@dataclass
class Study:
    """What was seen, by the name of the attention or of the step; a row for each picture."""

    layouts: dict[str, TokenLayout]
    images: Float[Tensor, "K C H W"]  # the first few
    pictures: int = 0
    distance: dict[str, Float[Tensor, "B h"]] = field(default_factory=dict)
    plain_distance: dict[str, Float[Tensor, "B h"]] = field(default_factory=dict)
    to_prefix: dict[str, Float[Tensor, "B h P"]] = field(default_factory=dict)
    strongest: dict[str, Float[Tensor, "B h"]] = field(default_factory=dict)
    biases: dict[str, Float[Tensor, "h down across"]] = field(default_factory=dict)
    norms: dict[str, Norms] = field(default_factory=dict)
    tokens: dict[str, Float[Tensor, "K rows columns D"]] = field(default_factory=dict)
    alignment: Alignment = field(default_factory=Alignment)

    @property
    def prefix(self) -> int:
        return max(layout.prefix for layout in self.layouts.values())


@torch.no_grad()
def study(
    model: nn.Module,
    batches: Iterable[Float[Tensor, "B C H W"]],
    *,
    keep: int = 4,
    watch: Callable[[int], None] | None = None,
) -> Study:
    """Run a model over batches of prepared images; `watch` is told how many were seen.

    Every map is reduced where it arises. Of the first `keep` images the tokens of a few steps are
    kept, to be coloured.
    """
    model.eval()
    seen = Study(layouts_of(model), torch.empty(0))
    steps = list(steps_of(model))
    chosen = {steps[place] for place in spread_out(len(steps), MOST_STEPS + 1)[:-1]}
    attending = set(attending_steps(model))
    weight = next(model.parameters())
    grams: dict[str, Tensor] = {}
    size = (0, 0)

    def see(name: str, one: AttentionMap, bias: Tensor | None) -> None:
        found = received(one)
        distance, plain = both_distances(one)
        append(seen.distance, name, distance)
        append(seen.plain_distance, name, plain)
        append(seen.to_prefix, name, found.prefix)
        append(seen.strongest, name, found.strongest)
        if bias is not None and name not in seen.biases:
            side = one.layout.window or one.layout.grid
            seen.biases[name] = by_offset(shared_bias(bias, one.layout).float(), side).cpu()

    def step(name: str, output: Tensor) -> None:
        grams[name] = gram(output).cpu()
        tokens = on_grid(output, seen.layouts.values(), size)
        if name in attending:
            add_norms(seen.norms, name, norms_of(tokens))
        room = keep - len(seen.images)
        if name in chosen and room > 0:
            append(seen.tokens, name, tokens.grid[:room])

    for images in batches:
        images = images.to(weight)
        size = (images.shape[2], images.shape[3])
        with observe(model, attention=see, step=step):
            last: Tensor = model.encode(images)  # type: ignore[operator]
        room = keep - len(seen.images)
        if room > 0:
            cells = on_grid(last, seen.layouts.values(), size).grid
            append(seen.tokens, "encode", cells[:room])
            seen.images = torch.cat([seen.images.to(images), images[:room]])
        seen.alignment.add_grams(grams)
        seen.pictures += len(images)
        if watch is not None:
            watch(seen.pictures)
    return seen


def append(to: dict[str, Tensor], name: str, rows: Tensor) -> None:
    rows = rows.cpu()
    to[name] = torch.cat([to[name], rows]) if name in to else rows


def add_norms(to: dict[str, Norms], name: str, more: Norms) -> None:
    parts = {part: getattr(more, part).cpu() for part in Norms.__dataclass_fields__}
    if name in to:
        parts = {part: torch.cat([getattr(to[name], part), new]) for part, new in parts.items()}
    to[name] = Norms(**parts)
