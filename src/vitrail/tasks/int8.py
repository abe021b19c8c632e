"""`precision="int8"` of the verbs: calibrated on real images, refused if it costs too much."""

from collections.abc import Sequence
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
from vitrail.inference.predict import MAX_COUNTED, is_one, iter_images
from vitrail.models.model import Model
from vitrail.tasks.models import AnyModel, Device, Precision, open_model, refuse_without_weights

INT8 = "int8"


def open_float(model: AnyModel, *, device: Device, precision: Precision) -> Model:
    """The model as it is loaded for a precision: int8 is made of float32 on the CPU."""
    if precision != INT8:
        return open_model(model, device=device, precision=precision)
    refuse_without_weights(model, "compute in int8")
    if device != "auto" and choose_device(device).type != "cpu":
        raise UserError(f"int8 computes on the CPU, got device {device}: leave device out")
    return open_model(model, device="cpu", precision="float32")


def check_int8(precision: Precision, calibrate: Any, max_drop: float, engine: str = "auto") -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    check("max_drop", max_drop, at_least=0)
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
    found = list_sources(images if calibrate is None else calibrate)
    return calibration_on(model, found, max_drop)


def calibrate_on_split(
    model: Model, source: Source, precision: Precision, calibrate: Any, max_drop: float
) -> Calibration | None:
    """The same where the images of the job are a split of a data set."""
    if precision != INT8 or calibrate is not None:
        return make_calibration(model, (), precision, calibrate, max_drop)
    every = [Sample(source, index) for index in range(len(source))]
    return calibration_on(model, every, max_drop)


def calibration_on(model: Model, images: Sequence[ImageSource], max_drop: float) -> Calibration:
    """Refused here if the images are too few, before an engine is asked."""
    samples = sample_calibration(model, images)
    samples.check_count()
    return Calibration(samples, max_drop)


def list_sources(images: Any) -> Sequence[ImageSource]:
    """Every image that can be looked at before the job begins; of very many the first ones."""
    given = [images] if is_one(images) or isinstance(images, str | Path) else images
    if not hasattr(given, "__len__") or any(isinstance(one, str) and one == STDIN for one in given):
        raise UserError("int8 is calibrated before images arrive one by one: give calibrate")
    found = list(islice(iter_images(given), MAX_COUNTED))
    if not found:
        raise UserError("int8 is calibrated on real images, got none: give calibrate")
    return found
