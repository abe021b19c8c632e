"""OpenVINO's model in int8 by NNCF, which balances norms and corrects biases itself."""

import logging
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.matrix_unit import check_int8
from vitrail.inference.calibration import Samples
from vitrail.inference.int8_graph import batches, bytes_overflow, no_log
from vitrail.inference.label_agreement import LabelKind
from vitrail.inference.quantisation import Quantisation
from vitrail.inference.quantise import compare_outputs, relative_error

STRENGTHS = (0.95, 0.5)  # of SmoothQuant: NNCF's own, and the paper's, better for large outliers


def quantise_openvino(
    model: Any, samples: Samples, kind: LabelKind, *, portable: bool = False
) -> tuple[Any, Quantisation]:
    """Weights per channel and calibrated activations, balanced as is best on calibration images;
    `kind` says which labels its outputs mean. The range of weights suits this processor, or with
    `portable` every one."""
    nncf = import_nncf()
    check_int8()
    calibration, test = samples.split()
    overflow = portable or bytes_overflow()
    expected = run_openvino(model, calibration.inputs)
    tries = [
        quantise_once(nncf, model, calibration.inputs, strength=strength, overflow=overflow)
        for strength in STRENGTHS
    ]
    errors = [relative_error(expected, run_openvino(one, calibration.inputs)) for one in tries]
    done = tries[errors.index(min(errors))]
    record = Quantisation(
        method="static (NNCF)",
        bits=8,
        reduced_range=overflow,
        balanced=True,
        layers=count_layers(done),
        images=len(test.inputs),
        size=(constant_bytes(model), constant_bytes(done)),
        **compare_outputs(
            run_openvino(model, test.inputs),
            run_openvino(done, test.inputs),
            test.labels,
            kind,
        ),
    )
    return done, record


def quantise_once(
    nncf: Any, model: Any, images: NDArray[np.generic], *, strength: float, overflow: bool
) -> Any:
    """A copy of the model in int8, its channels balanced with this strength."""
    inputs = list(batches(images, fixed_batch(model) or 1))
    advanced = nncf.quantization.advanced_parameters
    fix = advanced.OverflowFix.ENABLE if overflow else advanced.OverflowFix.DISABLE
    with no_log(), redirect_stdout(StringIO()):  # it draws progress bars
        return nncf.quantize(
            model,
            nncf.Dataset(inputs),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(inputs),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=fix,
                smooth_quant_alphas=advanced.AdvancedSmoothQuantParameters(matmul=strength),
            ),
        )


def import_nncf() -> Any:
    try:
        import nncf  # type: ignore[import-untyped]  # ships no types
    except ModuleNotFoundError:
        raise UserError(
            "int8 for OpenVINO is made by nncf, which is not installed: pip install 'vitrail[fast]'"
        ) from None
    nncf.set_log_level(logging.ERROR)
    return nncf


def count_layers(model: Any) -> int:
    """Weights in int8: constants of bytes with two axes or more."""
    constants = (op for op in model.get_ops() if op.get_type_name() == "Constant")
    return sum(
        op.get_element_type().get_type_name() in ("i8", "u8") and len(op.shape) > 1
        for op in constants
    )


def constant_bytes(model: Any) -> int:
    """What the weights take in a file."""
    constants = (op for op in model.get_ops() if op.get_type_name() == "Constant")
    return sum(int(op.get_byte_size()) for op in constants)


def run_openvino(model: Any, images: NDArray[np.generic]) -> NDArray[np.float32]:
    """The first output for all images."""
    import openvino

    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = [np.array(compiled([one])[0]) for one in batches(images, fixed_batch(model))]
    return np.concatenate(found)[: len(images)]


def fixed_batch(model: Any) -> int | None:
    """How many images a model takes at once; None for any number."""
    axis = model.inputs[0].partial_shape[0]
    return int(axis.get_length()) if axis.is_static else None
