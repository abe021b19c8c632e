"""Proof that an exported file computes what the model computes: both run on real photos."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
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
from vitrail.exporters.target import QUANTISED, Request, Runner, Target, graph_inputs
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
BATCH = 4  # photos at once, as attention weights of many would not fit into memory
# Rounding decides between patches that are equally similar, as those of an even background are: of
# a model that merges tokens a few photos come out a little differently (up to 3e-4 were seen).
MERGED_SHARE = 0.75  # of photos must be equal, and have the same label


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
    outputs = compare_outputs(request, run, pixels, target.batch or BATCH)
    tolerance = TOLERANCES[request.precision]
    first = outputs[request.output]
    labels = share_of_same_labels(*first.values, label_kind(request.model, request.output))
    least = MERGED_SHARE if request.model.merged_tokens else 1.0
    worst = min(outputs, key=lambda name: (outputs[name].close(tolerance), -outputs[name].share))
    is_close = outputs[worst].close(tolerance) >= least
    if request.model.merged_tokens and labels is not None and not request.needs_samples:
        is_close = is_close and labels >= least  # what int8 loses is measured on other images
    if not is_close:
        raise UserError(
            f"{target.title}: {worst} must equal the model's within {tolerance:g} of their size, "
            f"but differ by {outputs[worst].share:.2g} on photos: the file was not kept"
        )
    return Check(
        images=len(pixels),
        max_difference=max(one.largest for one in outputs.values()),
        tolerance=tolerance,
        label_agreement=labels,
        latency_ms=time_both(request, run, pixels[:1]) if timed else {},
    )


def read_photos(request: Request, photos: Sequence[ImageSource]) -> Tensor:
    """(B, C, H, W), uint8, as the model's passport prepares them, in the order of its channels."""
    how = request.model.passport.preprocessing
    try:
        return torch.stack([read_image(photo, how) for photo in photos])
    except BadImage as problem:
        raise UserError(str(problem)) from None


@dataclass
class ComparedOutput:
    """An output of the model and of the file: the largest difference of each photo, and the largest
    value of all. Only the first output keeps its values, as those of attention are many."""

    differences: list[float] = field(default_factory=list)
    size: float = SMALLEST_WEIGHT
    expected: list[NDArray[np.float32]] = field(default_factory=list)
    found: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def largest(self) -> float:
        return max(self.differences)

    @property
    def share(self) -> float:
        """The largest difference as a share of the largest value."""
        return self.largest / self.size

    @property
    def values(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return np.concatenate(self.expected), np.concatenate(self.found)

    def close(self, tolerance: float) -> float:
        """The share of photos whose difference is at most this share of the largest value."""
        return float(np.mean(np.array(self.differences) <= tolerance * self.size))

    def add(self, name: str, expected: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        differences = np.abs(found.astype(np.float64) - expected).reshape(len(expected), -1)
        differences[~np.isfinite(differences)] = math.inf
        self.differences += differences.max(axis=1).tolist()
        least = 1.0 if name in VALUES else SMALLEST_WEIGHT
        self.size = max(self.size, least, float(np.abs(expected).max()))


def compare_outputs(
    request: Request, run: Runner, pixels: Tensor, batch: int
) -> dict[str, ComparedOutput]:
    """Every output of the model beside that of the file, for so many photos at a time."""
    outputs: dict[str, ComparedOutput] = {}
    for some in pixels.split(batch):
        expected, found = reference(request, some), run(graph_inputs(request, some))
        for name, values in expected.items():
            check_shape(name, values, found.get(name))
            one = outputs.setdefault(name, ComparedOutput())
            one.add(name, values, found[name])
            if name == request.output:
                one.expected.append(values)
                one.found.append(found[name])
    return outputs


def check_shape(
    name: str, expected: NDArray[np.float32], found: NDArray[np.float32] | None
) -> None:
    if found is None or found.shape != expected.shape:
        got = "is missing" if found is None else f"has shape {found.shape}, not {expected.shape}"
        raise UserError(f"output {name} {got}: the file was not kept")


def reference(request: Request, pixels: Tensor) -> dict[str, NDArray[np.float32]]:
    """What the model itself computes, whole, as `model(images)` does."""
    model, how = request.model, request.model.passport.preprocessing
    images = normalise(pixels, how, reorder=False)
    found: dict[str, Tensor] = {}
    observe: AbstractContextManager[dict[str, Tensor]] = nullcontext({})
    if request.attention or request.maps is not None:  # they are large, and take long
        observe = attention_outputs(model)
    with eval_mode(model), torch.inference_mode(), observe as weights:
        if request.output == "logits":
            found["logits"] = model(images)
        if request.both or request.output == "pooled":
            found["pooled"] = model.features(images)
    found |= weights if request.maps is None else request.maps.reduce(weights)
    return {name: value.numpy() for name, value in found.items()}


def time_both(request: Request, run: Runner, pixels: Tensor) -> dict[str, float]:
    """Milliseconds for one image by the model and by the file, medians of runs in turn."""
    model, how = request.model, request.model.passport.preprocessing
    images, inputs = normalise(pixels, how, reorder=False), graph_inputs(request, pixels)
    each: dict[str, Callable[[], object]] = {
        "eager": lambda: model(images),
        "exported": lambda: run(inputs),
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
