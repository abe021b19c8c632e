"""Proof that an exported file computes what the model computes: both run on real photos."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.data.images import BadImage
from vitrail.data.preprocess import normalise
from vitrail.data.reader import ImageSource, read_image
from vitrail.exporters.target import QUANTISED, Request, Runner, Target, feed
from vitrail.inference.any_size import size_step
from vitrail.inference.label_agreement import label_kind, share_of_same_labels
from vitrail.models.attention_outputs import attention_outputs
from vitrail.weights.load import load

# Largest difference of an output, as a share of its largest value; of logits and features, which
# may all be near zero, as a share of 1 at least.
# In int8 it finds broken files alone: what may be lost is measured on the user's images.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, **dict.fromkeys(QUANTISED, 0.5)}
VALUES = ("logits", "pooled")  # outputs that are no attention weights
SMALLEST_WEIGHT = 1e-9  # of an attention that gives anything to anybody
ROUNDS = 5  # of timing


@dataclass(frozen=True, kw_only=True)
class Check:
    """The exported file against the model on some photos: the largest difference of any output, the
    share of photos with the same label (None without a head and for a single class; of labels,
    where a photo may have several), and milliseconds
    for one image in each, medians of runs in turn. `sizes` are those of the images."""

    images: int
    max_difference: float
    tolerance: float
    label_agreement: float | None
    latency_ms: dict[str, float]
    sizes: tuple[tuple[int, int], ...] = ()


def sample_photos() -> list[ImageSource]:
    """The photos that come with scikit-learn: a temple and a flower."""
    import sklearn.datasets

    folder = Path(sklearn.datasets.__file__).parent / "images"
    return [str(folder / name) for name in ("china.jpg", "flower.jpg")]


def verify(request: Request, target: Target, run: Runner, photos: Sequence[ImageSource]) -> Check:
    """Compare every output, or raise where one differs by more than the tolerance; a file for any
    size also at three others."""
    check = verify_size(request, target, run, photos)
    others = other_sizes(request) if request.dynamic_size else []
    for size in others:
        model = load(request.model, image_size=size).eval()
        other = verify_size(replace(request, model=model), target, run, photos, timed=False)
        if other.max_difference > check.max_difference:
            check = replace(check, max_difference=other.max_difference)
    return replace(check, sizes=(request.model.config.image_size, *others))


def other_sizes(request: Request) -> list[tuple[int, int]]:
    """Fewer and more patches than the model's own, and not square."""
    step = size_step(request.model)
    rows, columns = (side // step for side in request.model.config.image_size)
    grids = ((max(1, rows // 2), columns), (rows + 1, max(1, columns - 1)), (rows + 2, columns + 3))
    return [(high * step, wide * step) for high, wide in grids]


def verify_size(
    request: Request,
    target: Target,
    run: Runner,
    photos: Sequence[ImageSource],
    *,
    timed: bool = True,
) -> Check:
    pixels = read_photos(request, photos)
    expected = reference(request, pixels)
    fed = feed(request, pixels)
    found = run_batches(run, fed, target.batch)
    tolerance = TOLERANCES[request.precision]
    differences = {name: difference(found, expected, name) for name in expected}
    worst = max(differences, key=lambda name: differences[name][1])
    largest, share = differences[worst]
    if not share <= tolerance:
        raise UserError(
            f"{target.title}: {worst} must equal the model's within {tolerance:g} of their size, "
            f"but differ by {share:.2g} on photos: the file was not kept"
        )
    kind = label_kind(request.model, request.output)
    first = expected[request.output], found[request.output]
    return Check(
        images=len(pixels),
        max_difference=largest,
        tolerance=tolerance,
        label_agreement=share_of_same_labels(*first, kind),
        latency_ms=time_both(request, run, pixels[:1]) if timed else {},
    )


def read_photos(request: Request, photos: Sequence[ImageSource]) -> Tensor:
    """(B, C, H, W), uint8, as the model's passport prepares them, in the order of its channels."""
    how = request.model.passport.preprocessing
    try:
        return torch.stack([read_image(photo, how) for photo in photos])
    except BadImage as problem:
        raise UserError(str(problem)) from None


def reference(request: Request, pixels: Tensor) -> dict[str, NDArray[np.float32]]:
    """What the model itself computes, whole, as `model(images)` does."""
    model, how = request.model, request.model.passport.preprocessing
    images = normalise(pixels, how, reorder=False)
    found: dict[str, Tensor] = {}
    with eval_mode(model), torch.inference_mode(), attention_outputs(model) as weights:
        if request.output == "logits":
            found["logits"] = model(images)
        if request.both or request.output == "pooled":
            found["pooled"] = model.features(images)
    if request.maps is not None:
        found |= request.maps.reduce(weights)
    elif request.attention:
        found |= weights
    return {name: value.numpy() for name, value in found.items()}


def run_batches(
    run: Runner, images: NDArray[np.generic], batch: int | None
) -> dict[str, NDArray[np.float32]]:
    """The file's outputs for all photos: at once, or as many at a time as it takes."""
    size = len(images) if batch is None else batch
    parts = [run(images[first : first + size]) for first in range(0, len(images), size)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def difference(
    found: dict[str, NDArray[np.float32]], expected: dict[str, NDArray[np.float32]], name: str
) -> tuple[float, float]:
    """The largest difference of an output, and the same as a share of its largest value."""
    theirs, ours = found.get(name), expected[name]
    if theirs is None or theirs.shape != ours.shape:
        got = "is missing" if theirs is None else f"has shape {theirs.shape}, not {ours.shape}"
        raise UserError(f"output {name} {got}: the file was not kept")
    if not np.isfinite(theirs).all():
        return math.inf, math.inf
    largest = float(np.abs(theirs.astype(np.float64) - ours).max())
    least = 1.0 if name in VALUES else SMALLEST_WEIGHT
    return largest, largest / max(least, float(np.abs(ours).max()))


def time_both(request: Request, run: Runner, pixels: Tensor) -> dict[str, float]:
    """Milliseconds for one image by the model and by the file, medians of runs in turn."""
    model, how = request.model, request.model.passport.preprocessing
    images, fed = normalise(pixels, how, reorder=False), feed(request, pixels)
    each: dict[str, Callable[[], object]] = {
        "eager": lambda: model(images),
        "exported": lambda: run(fed),
    }
    seconds: dict[str, list[float]] = {name: [] for name in each}
    with eval_mode(model), torch.inference_mode():
        for round_ in range(ROUNDS + 1):
            for name, compute in each.items():
                began = time.perf_counter()
                compute()
                if round_:  # the first warms up
                    seconds[name].append(1000 * (time.perf_counter() - began))
    return {name: round(median(values), 3) for name, values in seconds.items()}
