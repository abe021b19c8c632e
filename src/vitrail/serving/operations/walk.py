"""One image through the model step by step, with equations, lines of code and numbers.

`title_key` of a step and `note_key` of a value name their words in the catalogue of the page:
`walk.step.ID` and `walk.value.NAME`. A value has up to 64 numbers. Those of a row over keys or over
classes have `tokens`, the key or class of each: where there are more than 64, the largest.
"""

from typing import Any

import torch
from PIL import Image

from vitrail.core.layout import TokenLayout
from vitrail.explanation.attention_levels import count_heads
from vitrail.explanation.attention_sinks import prefix_names
from vitrail.explanation.hooks import grid_layouts, is_convolutional
from vitrail.explanation.lens import NO_HEAD
from vitrail.explanation.walk import Walk, walk
from vitrail.explanation.walk_record import Step, Value
from vitrail.models.model import Model
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.options import WalkOptions
from vitrail.tasks.inspection import place_of, short_name
from vitrail.tasks.seen_image import see, to_scores, top_classes

MAX_NUMBERS = 64
DIGITS = 6


def run_walk(context: Context, image: Image.Image | None, options: WalkOptions) -> dict[str, Any]:
    """The steps for a chosen block, head and patch."""
    model, seen = context.model, see(context.model, image)
    found = walk(
        model,
        seen.tensor,
        attention=options.block,
        head=options.head,
        patch=options.patch,
        token=options.token,
        pixels=seen.pixels,
    )
    query, has_head = found.query, bool(model.config.num_classes)
    top = top_classes(model, to_scores(model, found.logits[0]), 10) if has_head else None
    return {
        "steps": [describe_step(one, found) for one in found.steps],
        "blocks": [
            describe_block(model, i, name, layout)
            for i, (name, layout) in enumerate(grid_layouts(model).items())
        ],
        "query": {
            "block": options.block,
            "head": query.head,
            "token": query.token,
            "cell": query.cell,
        },
        "prediction": top,
        "note": None if has_head else NO_HEAD,
    }


def describe_block(model: Model, index: int, name: str, layout: TokenLayout) -> dict[str, Any]:
    stage, block = place_of(name)
    return {
        "index": index,
        "name": name,
        "short": short_name(name),
        "stage": stage,
        "block": block,
        "heads": 0 if is_convolutional(model) else count_heads(model, name),
        "grid": layout.grid,
        "prefix": layout.prefix,
        "prefix_names": prefix_names(model, layout.prefix),
    }


def describe_step(step: Step, found: Walk) -> dict[str, Any]:
    code = step.code
    return {
        "id": step.id,
        "title_key": f"walk.step.{step.id}",
        "equation": step.equation,
        "shape": shape_text(step.shape),
        "code": None if code is None else {"file": code.file, "line": code.line, "text": code.text},
        "values": {
            name: describe_value(name, value, chosen_places(step, value, found))
            for name, value in step.values.items()
        },
        "text_args": step.facts,
    }


def shape_text(shape: tuple[int, ...]) -> str:
    """
    >>> shape_text((196, 768)), shape_text((10,))
    ('(196, 768)', '(10,)')
    """
    return str(tuple(shape))


def chosen_places(step: Step, value: Value, found: Walk) -> list[int] | None:
    """Which numbers of a row are sent: those of the keys with the largest weights, or of the
    classes with the largest logits, in their order; never those of padding."""
    if value.tokens is None:
        return None
    keys = step.id != "head"
    order = found.step("softmax").values["weights"].numbers if keys else found.logits[0]
    real = (value.tokens >= 0).nonzero()[:, 0]
    best = real[order[real.to(order.device)].cpu().argsort(descending=True, stable=True)]
    return sorted(best[:MAX_NUMBERS].tolist())


def describe_value(name: str, value: Value, places: list[int] | None) -> dict[str, Any]:
    flat = value.numbers.flatten()
    sent = flat[:MAX_NUMBERS] if places is None else flat[torch.tensor(places, dtype=torch.long)]
    found = {
        "shape": list(value.numbers.shape),
        "numbers": [rounded(number) for number in sent.tolist()],
        "note_key": f"walk.value.{name}",
    }
    if places is not None:
        assert value.tokens is not None
        found["tokens"] = value.tokens[torch.tensor(places, dtype=torch.long)].tolist()
    return found


def rounded(number: float) -> float:
    """
    >>> rounded(0.123456789), rounded(255)
    (0.123457, 255.0)
    """
    return float(f"{number:.{DIGITS}g}")
