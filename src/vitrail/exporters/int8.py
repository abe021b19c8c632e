"""int8 files: the graph of a request, calibrated and measured on the user's images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitrail.data.preprocess import normalise
from vitrail.data.reader import ImageSource
from vitrail.exporters.target import QUANTISED, Request, graph_inputs
from vitrail.inference.calibration import Samples, labels_of, read_calibration
from vitrail.inference.graph import to_onnx
from vitrail.inference.int8_openvino import quantise_openvino
from vitrail.inference.label_agreement import label_kind
from vitrail.inference.quantisation import Quantisation, check_drop
from vitrail.inference.quantise import quantise
from vitrail.models.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto


def with_samples(request: Request, images: Sequence[ImageSource]) -> Request:
    """The request with images to calibrate and measure on; their folders may name their classes."""
    pixels = read_calibration(request.model, images)
    floats = normalise(pixels, request.model.passport.preprocessing, reorder=False)
    labels = labels_of(request.model, images) if request.output == "logits" else None
    as_pixels = graph_inputs(request, pixels) if request.preprocessing else None
    return replace(request, samples=Samples(floats, as_pixels, labels))


def int8_onnx(request: Request) -> tuple["ModelProto", Quantisation]:
    """Refused where it loses more than the request allows."""
    assert request.samples is not None

    def to_graph(model: Model) -> "ModelProto":
        return to_onnx(replace(request, model=model).program(batch=None))

    if request.precision == "int8":
        # 7 bits: on x86 without VNNI, where a file may go, full-range products overflow
        proto, record = quantise(request.model, request.samples, to_graph, portable=True)
    else:  # all layers, or the file would not be small: what may be lost decides
        bits, every = QUANTISED[request.precision], float("inf")
        proto, record = quantise(
            request.model, request.samples, to_graph, method="weights", bits=bits, max_error=every
        )
    check_drop(record, request.max_drop)
    return proto, record


def int8_openvino(request: Request, model: Any) -> tuple[Any, Quantisation]:
    """The same of OpenVINO's model, by NNCF."""
    assert request.samples is not None
    kind = label_kind(request.model, request.output)
    done, record = quantise_openvino(model, request.samples, kind, portable=True)
    check_drop(record, request.max_drop)
    return done, record
