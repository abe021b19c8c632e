"""Which parts of one image drive a prediction: one map, by one method."""

import warnings
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.explanation.methods import ALL, METHODS, class_index, select_methods
from vitrail.explanation.propagation import pixel_extent
from vitrail.explanation.readout import Relevance
from vitrail.explanation.verdict import CLASSLESS
from vitrail.models.model import Model
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.options import ExplainOptions
from vitrail.tasks.seen_image import class_score, finite_scores, see


def run_explain(
    context: Context, image: Image.Image | None, options: ExplainOptions
) -> dict[str, Any]:
    """The map as rows of numbers, the class that it explains, and why the method was chosen."""
    model, seen = context.model, see(context.model, image)
    own = {"layer": options.layer, "head": options.head, "query": options.query}
    found, reason, notes = compute_map(model, seen.tensor, options.method, options.target, own)
    target = None
    if model.config.num_classes:
        with torch.no_grad():
            scores = finite_scores(model, model(seen.tensor)[0])
        index = int(scores.argmax()) if found.target is None else int(found.target[0])
        target = class_score(model, index, scores)
    return {
        "method": found.method,
        "target": target,
        "knows_classes": found.method not in CLASSLESS,
        "grid": list(found.layout.grid),
        "extent": list(pixel_extent(found.layout.grid, seen.size, found.layout)),
        "map": found.map[0].float().cpu().tolist(),
        "reason": reason,
        "notes": notes,
    }


def compute_map(
    model: Model,
    image: Tensor,
    method: str,
    target: int | str | None = None,
    options: dict[str, Any] | None = None,
) -> tuple[Relevance, str | None, list[str]]:
    """A map of one image, why its method was chosen, if it was, and what else there is to say."""
    if method == ALL:
        raise UserError("method must be one, got all: ask for them one by one")
    chosen, auto = select_methods(method, model, options or {}, "this model")
    if target is not None and not model.config.num_classes:
        raise UserError("this model has no classification head: leave out target")
    wanted = None
    if target is not None:
        wanted = torch.tensor([class_index(model, target)], device=image.device)
    ((name, own),) = chosen.items()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = METHODS[name](model, image, wanted, **own)
    notes = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    return found, None if auto is None else auto.reason, notes
