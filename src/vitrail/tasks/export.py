"""`vitrail.export`: a model as a file for ONNX Runtime, OpenVINO, Core ML, ExecuTorch or LiteRT, or
as a page that runs in a browser."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.exported import OLD_PRECISIONS, ExportPrecision
from vitrail.core.ranges import check
from vitrail.data.reader import ImageSource
from vitrail.explanation.graph_maps import map_covers, reduce_weights
from vitrail.exporters.export import Export, export_model, files_in, record_path
from vitrail.exporters.int8 import with_samples
from vitrail.exporters.target import AttentionMaps, Request, Target
from vitrail.exporters.targets import find_target
from vitrail.exporters.verify import read_photos, sample_photos
from vitrail.inference.calibration import MAX_IMAGES
from vitrail.inference.predict import is_one, iter_images
from vitrail.inference.quantisation import MAX_DROP
from vitrail.models.attention_outputs import attention_layouts
from vitrail.models.model import Model
from vitrail.tasks.dry_run import DryRun
from vitrail.tasks.models import AnyModel, open_model, refuse_without_weights
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.speed_up import with_speed_up
from vitrail.tasks.threads import use_threads
from vitrail.weights.atomic import check_writable, follow_link, refuse_existing

MOST_PHOTOS = 32  # that an export is compared on


def export(
    model: AnyModel,
    out: str | Path,
    *,
    to: str | None = None,
    images: ImageSource | Iterable[ImageSource] | None = None,
    precision: ExportPrecision = "float32",
    max_drop: float = MAX_DROP,
    preprocessing: bool = False,
    attention: bool = False,
    features: bool = False,
    dynamic_size: bool = False,
    speed_up: float | None = None,
    threads: int | None = None,
    runtime: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> Export | DryRun:
    """Write a model as one file that runs without PyTorch, after comparing the file with the model
    on photos; a file that differs is not kept. `to` is onnx, openvino, coreml, executorch, litert
    or web, by default what the suffix of `out` says: .onnx, .xml, .mlpackage, .pte, .tflite.

    The photos are `images` (at most 32 are used), by default two that come with scikit-learn. The
    file carries the labels and the passport; the record of the comparison is written to OUT.json.
    With `preprocessing` the file reads uint8 RGB pixels (B, H, W, C) at the model's size and
    normalises them itself. `attention` adds the weights of every attention as outputs, by the names
    that `capture` gives them; `features` adds what the head reads, as "pooled". The first output is
    "logits", or "pooled" for a model without a head. ONNX and OpenVINO files take any number of
    images at once, the others one. With `dynamic_size` an ONNX file of a ViT, DeiT, MobileViT or
    CNN takes any multiples of its patches as height and width; positions are resized as by `load`.
    `speed_up` merges tokens of a ViT, DeiT or BEiT until it is that many times as fast in PyTorch.

    `precision="int8"` (ONNX and OpenVINO) is calibrated and measured on `images`: 16 or more, at
    most 1,024 are used. A file that loses more than `max_drop` percentage points is not written:
    of accuracy where their folders are named after the model's classes, else of equal labels.
    "int8-weights" and "int4-weights" (ONNX) make smaller files that compute in float.

    `to="web"` writes a folder: a page that predicts, shows attention and learns new classes in the
    browser. ONNX Runtime Web is fetched by npm, or taken from `runtime`, a directory or .tgz of it.

    >>> done = export(create("vit_ti_16", depth=1, num_classes=3), "model.onnx")
    >>> done.target, done.check.label_agreement
    ('onnx', 1.0)
    """
    check("max_drop", max_drop, at_least=0)
    out = follow_link(Path(out))
    target = find_target(out, to)
    refuse_without_weights(model, "export again")
    check_out(out, target, overwrite=overwrite)
    with use_threads(threads):
        request = Request(
            model=open_model(model, device="cpu", precision="float32"),
            precision=OLD_PRECISIONS.get(precision, precision),
            preprocessing=preprocessing,
            attention=attention,
            features=features,
            dynamic_size=dynamic_size,
            max_drop=max_drop,
            runtime=Path(runtime) if runtime is not None else None,
        )
        check_one_size(speed_up, dynamic_size)
        target.check(request)
        request, photos = with_photos(request, images)
        request = request if dry_run else with_merging(request, speed_up)
        request = with_maps(request) if target.folder else request
        if dry_run:
            return plan_export(request, target, out, len(photos))
        with reporting_steps(on_progress) as step:
            return export_model(request, target, out, photos, overwrite=overwrite, on_step=step)


@contextmanager
def reporting_steps(on_progress: OnProgress, steps: int = 2) -> Iterator[Callable[[str], None]]:
    """Report each of the steps as it begins, and the end of the last one."""
    number = count()
    yield lambda what: on_progress(what, next(number), steps)
    on_progress("done", steps, steps)


def with_photos(request: Request, images: Any) -> tuple[Request, list[ImageSource]]:
    """The photos to compare on, and the request with those that int8 is calibrated on. One that
    cannot be read is found here, before the conversion."""
    if request.needs_samples:
        every = [] if images is None else find_photos(images, most=None)
        request = with_samples(request, evenly_chosen(every, MAX_IMAGES))
        photos = evenly_chosen(every, MOST_PHOTOS)
    else:
        if images is None:
            check_samples(request.model)
        photos = find_photos(images, most=MOST_PHOTOS)
    read_photos(request, photos)
    return request, photos


def check_one_size(speed_up: float | None, dynamic_size: bool) -> None:
    if speed_up is not None and dynamic_size:
        raise UserError(
            "speed_up is measured for one image size: leave out dynamic_size, or speed_up"
        )


def with_merging(request: Request, speed_up: float | None) -> Request:
    """With a model that merges tokens until it is so many times as fast. That takes a while to
    find: it comes after all that may be refused."""
    merged, _ = with_speed_up(request.model, speed_up, batch_size=1)
    return replace(request, model=merged)


def check_samples(model: Model) -> None:
    """Refuse a model that cannot read the photos of scikit-learn."""
    how = model.passport.preprocessing
    if not how.is_photo:
        raise UserError(
            "the file is compared on RGB photos of 8 bits unless others are given, but the model "
            f"reads {len(how.mean)} channels of {how.bits} bits: give images= that the model can "
            "read"
        )


def with_maps(request: Request) -> Request:
    """With features, and a small map for each attention in place of all of its weights."""
    layouts = attention_layouts(request.model)
    if not layouts:  # a convolutional network: the page shows no maps
        return replace(request, features=True, attention=False)
    maps = AttentionMaps(
        reduce_weights(request.model, layouts),
        map_covers(layouts, request.model.passport.preprocessing.size),
    )
    return replace(request, features=True, attention=False, maps=maps)


def check_out(out: Path, target: Target, *, overwrite: bool) -> None:
    """Refuse a file that could not be written, and one that no export wrote."""
    beside = record_path(out, target)
    check_writable(out)
    if target.folder:
        check_folder(out, beside, overwrite=overwrite)
        return
    weights = [out.with_suffix(".bin")] if out.suffix.lower() == ".xml" else []
    weights.append(out.with_name(f"{out.name}.data"))
    for path in (out, beside, *weights):
        refuse_existing(path, overwrite)
        if os.path.lexists(path) and not is_record(beside):
            raise UserError(f"{path}: was not written by an export: choose another name")


def check_folder(out: Path, record: Path, *, overwrite: bool) -> None:
    """Refuse a folder with files, unless they are overwritten and an export wrote them all."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file, where a directory is to be written")
    if not out.is_dir() or not any(out.iterdir()):
        return
    refuse_existing(out, overwrite)
    written = read_record(record).get("files")
    if not isinstance(written, list):
        raise UserError(f"{out}: was not written by an export: choose another name")
    if others := sorted({*files_in(out)} - {*map(str, written), record.name}):
        raise UserError(
            f"{out}: overwriting it would delete {others[0]}, which no export wrote: choose "
            "another name, or move that away"
        )


def is_record(path: Path) -> bool:
    """Whether a file is the record that `export` writes beside its own."""
    return bool(read_record(path))


def read_record(path: Path) -> dict[str, Any]:
    """The record of an export, or nothing where the file is no such record."""
    try:
        found = json.loads(path.read_bytes())
        return found if {"target", "file", "precision"} <= found.keys() else {}
    except (OSError, ValueError, AttributeError):
        return {}


def evenly_chosen(photos: list[ImageSource], most: int) -> list[ImageSource]:
    """At most this many, evenly from all: a list of folders begins with one class.

    >>> evenly_chosen(list("abcdef"), 3)
    ['a', 'c', 'e']
    """
    count = min(most, len(photos))
    return [photos[place * len(photos) // count] for place in range(count)]


def find_photos(images: Any, *, most: int | None) -> list[ImageSource]:
    """The photos to compare on: the first of those given, or the two samples."""
    if images is None:
        return sample_photos()
    single = is_one(images) or isinstance(images, str | Path)
    found: list[ImageSource] = []
    for image in iter_images([images] if single else images):
        found.append(image)
        if len(found) == most:
            break
    if not found:
        raise UserError("images must be at least one photo to compare on, got none")
    return found


def plan_export(request: Request, target: Target, out: Path, photos: int) -> DryRun:
    graph = target.metadata(request).graph
    details = {
        "target": target.name,
        "precision": graph.precision,
        "input": graph.input,
        "outputs": list(graph.outputs),
        "photos": photos,
    }
    return DryRun("export", str(out), details)
