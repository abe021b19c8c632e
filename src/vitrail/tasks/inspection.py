"""All attention of one image, the prediction after every block, and rollout, in one answer.

`attention_layers[i]` of the header has for each attention what decision 015 lists, and
`stage` (None in a model without stages) and `block`, counted from 1; `extent`, the height and width
in pixels of the image that its grid covers; `tolerance`, how far a weight may be off as a share of
the largest in its row; and `pooled`, None or the rows and columns of pooled queries and keys. Where
it is set, `weights.i` is (G, h, m, m) for m pooled places, and `places.i` (n; int32) has the pooled
place of each of the n places of a group: a query is looked up there, and a key's weight is the
pooled one divided by the number of places that share it.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.core.layout import TokenLayout
from vitrail.core.packed import Packed, compress
from vitrail.explanation.attention_levels import (
    MAX_WEIGHTS,
    LayerWeights,
    choose_factors,
    choose_levels,
    layer_weights,
    square_roots,
    tolerance,
)
from vitrail.explanation.attention_sinks import prefix_names, sink_tokens
from vitrail.explanation.auto_method import choose_method
from vitrail.explanation.capture import WITHOUT_ATTENTION, AttentionMap, fuse_heads
from vitrail.explanation.distance import mean_distance, uniform_distance
from vitrail.explanation.hooks import forward_hooks, grid_layouts, is_convolutional
from vitrail.explanation.lens import NO_HEAD, Lens, block_outputs, fits_one_pass, logit_lens
from vitrail.explanation.methods import METHODS
from vitrail.explanation.propagation import pixel_extent
from vitrail.explanation.readout import readout
from vitrail.explanation.rollout import Fused, propagate_back
from vitrail.explanation.verdict import CLASSLESS
from vitrail.models.model import Model
from vitrail.tasks.seen_image import SeenImage, label_of, to_scores, top_classes

MAX_BYTES = 3_000_000  # of the compressed answer
MARGIN = 20_000  # bytes for the header, which is made last
MAX_PIXELS = 640 * 640  # of the image that is sent along: at most 1.2 megabytes
TOP = 10  # classes
LENS_CLASSES = 12
RESIDUAL = 0.5  # the shortcut's share in rollout, as `rollout` has it


@dataclass
class Seen:
    """What one forward pass showed: for each attention its weights, facts, and mean of heads."""

    weights: dict[str, LayerWeights] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    fused: list[Fused] = field(default_factory=list)
    logits: Tensor | None = None
    lens: Lens | None = None


@torch.no_grad()
def inspect_image(model: Model, seen: SeenImage, name: str) -> Packed:
    """Everything that the Attention and Lens views show of one image; `name` is the model's."""
    most, coded = MAX_WEIGHTS, None
    while coded is None:
        found = record_attention(model, seen, most)
        arrays = common_arrays(model, seen, found)
        spent = len(compress(Packed({}, arrays).to_bytes())) + MARGIN
        roots = {name: square_roots(one) for name, one in found.weights.items()}
        levels, coded = choose_levels(roots, MAX_BYTES - spent)
        most = min(most, sum(one.size for one in roots.values())) // 2  # pool more
    header = describe(model, name, seen, found)
    for i, (layer, one) in enumerate(coded.items()):
        header["attention_layers"][i] |= {"levels": levels, "tolerance": tolerance(levels)}
        arrays[f"weights.{i}"] = one
        assert layer == header["attention_layers"][i]["name"]
    return Packed(header, arrays)


def record_attention(model: Model, seen: SeenImage, most: int) -> Seen:
    """One forward pass; each attention is made small before the next one runs."""
    found, factors = Seen(), choose_factors(model, most)

    def see_attention(name: str, one: AttentionMap, _: Tensor | None) -> None:
        found.weights[name] = layer_weights(one, factors[name])
        found.facts[name] = {
            "distance": mean_distance(one)[0].tolist(),
            "sinks": [{"token": token, "times": times} for token, times in sink_tokens(one)],
        }
        found.fused.append((fuse_heads(one.weights, "mean").squeeze(-3), one.layout))

    attend = None if is_convolutional(model) else see_attention
    with forward_hooks(model, attention=attend):
        if not model.config.num_classes:
            found.logits = model(seen.tensor)
        elif fits_one_pass(model):
            found.lens = logit_lens(model, seen.tensor)
            found.logits = found.lens.logits[-1:]
        else:
            with block_outputs(model) as outputs:
                found.logits = model(seen.tensor)
    if found.lens is None and model.config.num_classes:
        found.lens = logit_lens(model, seen.tensor, outputs)
    return found


def describe(model: Model, name: str, seen: SeenImage, found: Seen) -> dict[str, Any]:
    has_head = bool(model.config.num_classes)
    assert found.logits is not None
    scores = to_scores(model, found.logits[0]) if has_head else None
    return {
        "model": name,
        "family": model.passport.family,
        "image_size": list(seen.size),
        "prediction": None if scores is None else top_classes(model, scores, TOP),
        "multi_label": model.passport.multi_label,
        "note": None if has_head else NO_HEAD,
        "attention_layers": [
            {**describe_layer(model, name, one, seen.size), **found.facts[name]}
            for name, one in found.weights.items()
        ],
        "map_layers": map_layers(model, seen.size),
        "lens": None if found.lens is None else describe_lens(model, found.lens, found.logits),
        "methods": methods_for(model),
        "auto": choose_method(model).method if methods_for(model) else None,
    }


def methods_for(model: Model) -> list[str]:
    """The methods that can explain it: without a head those that know no classes, without attention
    those that do not read it."""
    convolutional, has_head = is_convolutional(model), bool(model.config.num_classes)
    return [
        name
        for name in METHODS
        if (has_head or name in CLASSLESS) and not (convolutional and name not in WITHOUT_ATTENTION)
    ]


def map_layers(model: Model, size: tuple[int, int]) -> list[dict[str, Any]]:
    """Of a convolutional network, where the cells of each block's map lie; they are described as
    attention is, with no heads."""
    if not is_convolutional(model):
        return []
    return [
        {
            **describe_place(name, at, size),
            "heads": 0,
            "prefix_names": [],
            "distance": [],
            "sinks": [],
        }
        for name, at in grid_layouts(model).items()
    ]


def describe_place(name: str, at: TokenLayout, size: tuple[int, int]) -> dict[str, Any]:
    stage, block = place_of(name)
    return {
        "name": name,
        "short": short_name(name),
        "stage": stage,
        "block": block,
        "grid": list(at.grid),
        "prefix": at.prefix,
        "stride": at.stride,
        "extent": list(pixel_extent(at.grid, size, at)),
        "window": None if at.window is None else list(at.window),
        "shift": list(at.shift),
        "fold": None if at.fold is None else list(at.fold),
        "separable": at.separable,
    }


def describe_layer(
    model: Model, name: str, one: LayerWeights, size: tuple[int, int]
) -> dict[str, Any]:
    at = one.layout
    after = None if one.pooling is None else [*one.pooling.after, *one.pooling.after]
    return {
        **describe_place(name, at, size),
        "heads": one.weights.shape[1],
        "prefix_names": list(prefix_names(model, at.prefix)),
        "pooled": after,
        "uniform_distance": uniform_distance(at),
    }


def short_name(name: str) -> str:
    """
    >>> short_name("blocks.2.attention"), short_name("stages.1.0"), short_name("last")
    ('layer 3', 'stage 2 block 1', 'last')
    """
    stage, block = place_of(name)
    if not re.search(r"\d", name):
        return name
    return f"layer {block}" if stage is None else f"stage {stage} block {block}"


def place_of(name: str) -> tuple[int | None, int]:
    """The stage, where there are any, and the block of an attention, counted from 1.

    >>> place_of("blocks.2.attention"), place_of("stages.1.blocks.0.attention")
    ((None, 3), (2, 1))
    >>> place_of("stages.4.1.blocks.2.attention"), place_of("stages.2.0.attention")
    ((5, 3), (3, 1))
    """
    numbers = [int(part) + 1 for part in re.findall(r"\d+", name)]
    return (numbers[0] if len(numbers) > 1 else None), (numbers or [1])[-1]


def describe_lens(model: Model, lens: Lens, logits: Tensor) -> dict[str, Any]:
    """The classes are the best in the end, and the best after any block."""
    scores = to_scores(model, lens.logits)
    final = [one["index"] for one in top_classes(model, scores[-1], 5)]
    on_the_way = scores.argmax(dim=1).tolist()
    classes = list(dict.fromkeys([*final, *reversed(on_the_way)]))[:LENS_CLASSES]
    close = torch.allclose(lens.logits[-1], logits[0].to(lens.logits), rtol=1e-3, atol=1e-3)
    return {
        "blocks": list(lens.blocks),
        "classes": [{"index": index, "label": label_of(model, index)} for index in classes],
        "scores": scores[:, classes].tolist(),
        "exact_last": close,
        "note": lens.note,
    }


def common_arrays(model: Model, seen: SeenImage, found: Seen) -> dict[str, Any]:
    """All but the weights themselves."""
    arrays: dict[str, Any] = {"pixels": shrink(seen.rgb)}
    for i, one in enumerate(found.weights.values()):
        largest = one.largest.nan_to_num(0, 0, 0)
        arrays[f"rowmax.{i}"] = largest.float().cpu().numpy()
        arrays[f"groups.{i}"] = one.groups.to(torch.int32).numpy()
        if one.pooling is not None:
            arrays[f"places.{i}"] = one.pooling.places.to(torch.int32).numpy()
    if found.fused:
        arrays["rollout"] = roll_out(model, found.fused)
    return arrays


def shrink(pixels: Any) -> Any:
    """Pixels to look at: of a very large image fewer, in the same shape."""
    height, width = pixels.shape[:2]
    scale = (MAX_PIXELS / (height * width)) ** 0.5
    if scale >= 1:
        return pixels
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    return np.array(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


def roll_out(model: Model, layers: list[Fused]) -> Any:
    weights, layout = layers[-1]
    start = readout(model, layout, weights)
    cells, _ = propagate_back(layers, start, layout, residual=RESIDUAL)
    return cells.grid[0].float().cpu().numpy()
