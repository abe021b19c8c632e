"""`precision="int8"` of the verbs: calibrated on real images, refused if it costs too much."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vitrail.core.devices import choose_device
from vitrail.core.errors import UserError
from vitrail.core.ranges import check
from vitrail.data.paths import STDIN
from vitrail.data.reader import ImageSource, Sample
from vitrail.data.source import Source
from vitrail.inference.calibration import Calibration, sample_calibration
from vitrail.inference.engines.catalogue import AUTO
from vitrail.inference.packing import check_native
from vitrail.inference.predict import MAX_COUNTED, is_one, iter_images
from vitrail.models.model import Model
from vitrail.tasks.models import AnyModel, Device, Precision, open_model, refuse_without_weights

INT8 = "int8"


def open_float(
    model: AnyModel, *, device: Device, precision: Precision, threads: int | None = None
) -> Model:
    """The model as it is loaded for a precision: int8 is made of float32 on the CPU."""
    if precision != INT8:
        return open_model(model, device=device, precision=precision, threads=threads)
    refuse_without_weights(model, "compute in int8")
    if device != "auto" and choose_device(device).type != "cpu":
        raise UserError(f"int8 computes on the CPU, got device {device}: leave device out")
    return open_model(model, device="cpu", precision="float32")


def check_int8(
    precision: Precision,
    calibrate: Any,
    max_drop: float,
    engine: str = AUTO,
    *,
    native_resolution: bool = False,
) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    check("max_drop", max_drop, at_least=0)
    check_native(native_resolution, None, AUTO, int8=precision == INT8)
    if calibrate is not None and precision != INT8:
        raise UserError("calibrate gives images for int8: add precision int8, or leave it out")
    if precision == INT8 and engine.partition(":")[0] == "ray":
        raise UserError("int8 is calibrated on this machine: use another engine than ray")


def make_calibration(
    model: Model, images: Any, precision: Precision, calibrate: Any, max_drop: float
) -> Calibration | None:
    """What int8 is calibrated and measured on: `calibrate`, or the images of the job themselves."""
    if precision != INT8:
        return None
    if calibrate is None:
        return Calibration(sample_calibration(model, list_sources(images), given=False), max_drop)
    return Calibration(sample_calibration(model, list_given(calibrate), given=True), max_drop)


def calibrate_on_split(
    model: Model, source: Source, precision: Precision, calibrate: Any, max_drop: float
) -> Calibration | None:
    """The same where the images of the job are a split of a data set."""
    if precision != INT8 or calibrate is not None:
        return make_calibration(model, (), precision, calibrate, max_drop)
    every = [Sample(source, index) for index in range(len(source))]
    return Calibration(sample_calibration(model, every, given=False), max_drop)


def list_sources(images: Any) -> Sequence[ImageSource]:
    """Every image that can be looked at before the job begins; of very many the first ones."""
    given = [images] if is_one(images) or isinstance(images, str | Path) else images
    if not hasattr(given, "__len__") or any(isinstance(one, str) and one == STDIN for one in given):
        raise UserError("int8 is calibrated before images arrive one by one: give calibrate")
    found = list(islice(iter_images(given), MAX_COUNTED))
    if not found:
        raise UserError("int8 is calibrated on real images, got none: give calibrate")
    return found


def list_given(calibrate: Any) -> Sequence[ImageSource]:
    """The images of `calibrate`."""
    single = is_one(calibrate) or isinstance(calibrate, str | Path)
    if not single and not isinstance(calibrate, Iterable):
        raise UserError(f"calibrate must be images or a directory of them, got {calibrate!r}")
    given = [calibrate] if single else list(islice(calibrate, MAX_COUNTED))
    if any(isinstance(one, str) and one == STDIN for one in given):
        raise UserError("calibrate must be files, directories or patterns, got standard input")
    try:
        found = list(islice(iter_images(given), MAX_COUNTED))
    except UserError as problem:
        raise UserError(f"calibrate cannot be read: {problem}") from None
    if not found:
        raise UserError("calibrate must be images, got none")
    return found
