"""Post-training int8: layers quantised, sensitive ones kept in float, the result measured.

Decisions are made on calibration images, and what is reported is measured on others.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.inference.balancing import balance_norms
from vitrail.inference.calibration import Samples
from vitrail.inference.graph import MAX_PROTO
from vitrail.inference.int8_graph import (
    Int8,
    Method,
    bytes_overflow,
    fold_weights,
    layers_of,
    quantise_nodes,
    run_graph,
    strip,
)
from vitrail.inference.label_agreement import LabelKind, label_kind, share_of_same_labels
from vitrail.inference.quantisation import MAX_ERROR, Quantisation
from vitrail.models.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto

ToGraph: TypeAlias = "Callable[[Model], ModelProto]"
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Attempt:
    """A quantised graph, its error on calibration images, and the nodes that stayed in float."""

    proto: "ModelProto"
    error: float
    nodes: tuple[str, ...]
    kept: Mapping[str, float]
    balanced: bool = False


def quantise(
    model: Model,
    samples: Samples,
    to_graph: ToGraph,
    *,
    method: Method | None = None,
    bits: int = 8,
    max_error: float = MAX_ERROR,
    portable: bool = False,
    on_progress: OnProgress = lambda step, done, total: None,
) -> tuple["ModelProto", Quantisation]:
    """The graph that `to_graph` makes of a model, in int8, and the record of what that cost.

    Without a `method`, activations have a range for each batch ("dynamic") in models that are made
    of linear layers, and calibrated ranges ("static") where convolutions are more than the patch
    embedding. With 4 or 8 `bits` and method "weights" only weights are quantised. The range of
    weights suits this processor, or with `portable` every one.
    """
    check_size(model)
    how = Int8(bits=check_bits(bits, method), reduce_range=portable or bytes_overflow())
    calibration, test = samples.split()
    proto = fold_weights(to_graph(model))
    how = replace(how, method=method or choose_method(proto))
    nodes = layers_of(proto, how.method)
    expected = run_graph(proto, calibration.inputs)
    attempt = try_nodes(proto, tuple(nodes), how, calibration, expected)
    balanced = balance_norms(model, calibration.images)
    if balanced is not None:
        on_progress("balancing", 0, 1)
        other = fold_weights(to_graph(balanced))
        second = try_nodes(other, tuple(layers_of(other, how.method)), how, calibration, expected)
        if second.error < attempt.error:
            proto, attempt = other, replace(second, balanced=True)
            nodes = layers_of(proto, how.method)
    if attempt.error > max_error:
        attempt = keep_sensitive(
            proto, attempt, how, calibration, expected, max_error=max_error, on_progress=on_progress
        )
    before, after = run_graph(proto, test.inputs), run_graph(attempt.proto, test.inputs)
    kind = label_kind(model, proto.graph.output[0].name)
    record = Quantisation(
        method=how.method,
        bits=how.bits,
        reduced_range=how.reduce_range and how.method != "weights",
        balanced=attempt.balanced,
        layers=len(attempt.nodes),
        kept={nodes[node]: error for node, error in attempt.kept.items()},
        images=len(test.inputs),
        size=(strip(proto).ByteSize(), attempt.proto.ByteSize()),
        **compare_outputs(before, after, test.labels, kind),
    )
    return attempt.proto, record


def check_size(model: Model) -> None:
    """ONNX Runtime's quantiser works on one message of protobuf."""
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > MAX_PROTO:
        raise UserError(
            f"int8 needs a model of at most {MAX_PROTO / 2**30:.0f} GiB of weights in float32, got "
            f'{size / 2**30:.1f} GiB: use precision="float32"'
        )


def check_bits(bits: int, method: Method | None) -> Any:
    if bits not in (4, 8):
        raise UserError(f"bits must be 4 or 8, got {bits}")
    if bits == 4 and method != "weights":
        raise UserError('4 bits are for weights alone: use method="weights", or 8 bits')
    return bits


def choose_method(proto: "ModelProto") -> Method:
    """Static where convolutions are more than the patch embedding: ONNX Runtime computes these in
    int8 with calibrated ranges alone."""
    convolutions = sum(node.op_type == "Conv" for node in proto.graph.node)
    return "static" if convolutions > 1 else "dynamic"


def try_nodes(
    proto: "ModelProto",
    nodes: tuple[str, ...],
    how: Int8,
    calibration: Samples,
    expected: NDArray[np.float32],
    kept: Mapping[str, float] | None = None,
) -> Attempt:
    """Quantise these nodes, and compare on calibration images."""
    if not nodes:
        raise UserError(
            "int8 needs layers that can be quantised, but every one is too sensitive or none was "
            'found: use precision="float32"'
        )
    done = quantise_nodes(proto, nodes, how, calibration.inputs)
    error = relative_error(expected, run_graph(done, calibration.inputs))
    return Attempt(done, error, nodes, kept or {})


def keep_sensitive(
    proto: "ModelProto",
    attempt: Attempt,
    how: Int8,
    calibration: Samples,
    expected: NDArray[np.float32],
    *,
    max_error: float,
    on_progress: OnProgress,
) -> Attempt:
    """Keep the fewest layers in float for which the error of the others is small enough.

    Each layer is quantised alone and measured. Errors of layers are independent, so their squares
    add up; where that estimate was too low, a quarter of the rest is kept as well, and so on.
    """
    alone: dict[str, float] = {}
    for place, node in enumerate(attempt.nodes):
        on_progress("measuring layers", place, len(attempt.nodes))
        alone[node] = try_nodes(proto, (node,), how, calibration, expected).error
    ranked = sorted(alone, key=alone.__getitem__, reverse=True)
    count = 1
    while count < len(ranked) and math.hypot(*(alone[node] for node in ranked[count:])) > max_error:
        count += 1
    balanced = attempt.balanced
    while attempt.error > max_error:
        kept = {node: alone[node] for node in ranked[:count]}
        rest = tuple(node for node in alone if node not in kept)
        attempt = try_nodes(proto, rest, how, calibration, expected, kept)
        count += max(1, (len(ranked) - count) // 4)
    return replace(attempt, balanced=balanced)


def relative_error(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """The size of the difference as a share of the size of the expected values.

    >>> relative_error(np.float32([[3, 4]]), np.float32([[3, 4.5]]))
    0.1
    """
    if not np.isfinite(found).all():
        return math.inf
    size = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found - expected)) / size if size else math.inf


def compare_outputs(
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    kind: LabelKind,
) -> dict[str, Any]:
    """The measured fields of a record; `kind` says what outputs mean."""
    accuracy = None
    if labels is not None and kind == "one":
        was, now = ((one.argmax(axis=1) == labels).mean() for one in (before, after))
        accuracy = (float(was), float(now))
    return {
        "error": relative_error(before, after),
        "agreement": share_of_same_labels(before, after, kind),
        "accuracy": accuracy,
    }
