"""An ONNX graph with some of its layers in int8, by ONNX Runtime's quantiser, and how to run it.

Weights are signed, with a scale for each output channel. Processors that multiply bytes in pairs
and add both products in 16 bits (x86 without VNNI) overflow on full-range weights: there weights
use 7 bits.
"""

import ast
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.inference.graph import INPUT, quiet

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Method = Literal["dynamic", "static", "weights"]

LAYERS = {"dynamic": ("MatMul",), "static": ("MatMul", "Conv"), "weights": ("MatMul",)}
FOLDED = ("Slice", "Transpose", "Split")
SCOPES = "pkg.torch.onnx.name_scopes"  # where the exporter writes which module a node came from
EXACT = ("avx_vnni", "avx_vnni_int8", "avx512_vnni", "amx_int8")
BLOCK = 32  # weights that share a scale, where activations stay in float
BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Int8:
    """How layers are quantised: activations by the range of each batch ("dynamic"), by ranges
    measured on calibration images ("static"), or not at all ("weights": smaller files alone)."""

    method: Method = "dynamic"
    bits: Literal[4, 8] = 8
    reduce_range: bool = False


@cache
def bytes_overflow() -> bool:
    """Whether this processor overflows where it multiplies full-range bytes.

    ARM widens every product; x86 does since VNNI and AMX.
    """
    return overflows(torch.cpu.get_capabilities())


def overflows(capabilities: Mapping[str, Any]) -> bool:
    """
    >>> overflows({"architecture": "x86_64", "avx2": True})
    True
    >>> overflows({"architecture": "x86_64", "avx512_vnni": True})
    False
    """
    exact = any(capabilities.get(name) for name in EXACT)
    return capabilities.get("architecture") == "x86_64" and not exact


def fold_weights(proto: "ModelProto") -> "ModelProto":
    """The graph with slices and transposes of constants computed once, in place: the exporter folds
    small ones alone, and the quantiser takes a product for a layer only if its matrix is constant.
    """
    from onnx import ValueInfoProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    constants = {one.name: one for one in proto.graph.initializer}
    for node in list(proto.graph.node):
        if node.op_type not in FOLDED or any(name and name not in constants for name in node.input):
            continue
        given = [constants[name] for name in node.input if name]
        outputs = [ValueInfoProto(name=name) for name in node.output]
        graph = helper.make_graph([node], "folded", [], outputs, initializer=given)
        model = helper.make_model(graph, opset_imports=proto.opset_import)
        values = ReferenceEvaluator(model).run(None, {})
        for name, value in zip(node.output, values, strict=True):
            constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
            proto.graph.initializer.append(constants[name])
        proto.graph.node.remove(node)
    used = {name for node in proto.graph.node for name in node.input}
    for one in [one for one in proto.graph.initializer if one.name not in used]:
        proto.graph.initializer.remove(one)
    return proto


def layers_of(proto: "ModelProto", method: Method) -> dict[str, str]:
    """The nodes that can be quantised, with the names of their modules: products with a constant
    matrix, and convolutions for static ranges. The head is none of them: it reads one vector for
    each image, so it takes no time, and errors of its weights are errors of the logits."""
    constants = {one.name for one in proto.graph.initializer}
    found: dict[str, str] = {}
    for node in proto.graph.node:
        if node.op_type in LAYERS[method] and node.input[1] in constants:
            name = module_name(node)
            found[node.name] = f"{name} ({node.name})" if name in found.values() else name
    return found


def module_name(node: "NodeProto") -> str:
    """The module that a node came from, such as blocks.0.mlp.fc1; the node's own name where the
    exporter did not write it."""
    scopes = next((one.value for one in node.metadata_props if one.key == SCOPES), "[]")
    modules = [str(scope) for scope in ast.literal_eval(scopes)[:-1] if scope]
    return modules[-1].removeprefix("model.") if modules else str(node.name)


def quantise_nodes(
    proto: "ModelProto", nodes: Collection[str], how: Int8, calibration: NDArray[np.generic]
) -> "ModelProto":
    """A copy of the graph with these nodes in int8; the given one stays as it is."""
    import onnx

    source = onnx.ModelProto()
    source.CopyFrom(proto)
    with TemporaryDirectory(prefix="vitrail-") as folder, quiet(), no_log():
        out = Path(folder) / "int8.onnx"
        match how.method:
            case "dynamic":
                quantise_dynamic(source, out, nodes, how)
            case "static":
                quantise_static(source, out, nodes, how, calibration)
            case "weights":
                return strip(quantise_weights(source, nodes, how))
        return strip(onnx.load(out))


def quantise_dynamic(source: "ModelProto", out: Path, nodes: Collection[str], how: Int8) -> None:
    from onnxruntime.quantization import (  # type: ignore[import-untyped]  # ships no types
        QuantType,
        quantize_dynamic,
    )

    quantize_dynamic(
        source,
        out,
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        reduce_range=how.reduce_range,
        weight_type=QuantType.QInt8,
        nodes_to_quantize=list(nodes),
    )


def quantise_static(
    source: "ModelProto",
    out: Path,
    nodes: Collection[str],
    how: Int8,
    calibration: NDArray[np.generic],
) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # its base is untyped
        def __init__(self) -> None:
            self.batches = batches(calibration, batch_size(source))

        def get_next(self) -> dict[str, NDArray[np.generic]] | None:
            batch = next(self.batches, None)
            return None if batch is None else {INPUT: batch}

    quantize_static(
        source,
        out,
        Reader(),
        op_types_to_quantize=["MatMul", "Conv"],
        per_channel=True,
        reduce_range=how.reduce_range,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_quantize=list(nodes),
    )


def quantise_weights(source: "ModelProto", nodes: Collection[str], how: Int8) -> "ModelProto":
    from onnxruntime.quantization.matmul_nbits_quantizer import (  # type: ignore[import-untyped]
        MatMulNBitsQuantizer,
    )

    others = [node.name for node in source.graph.node if node.name not in nodes]
    quantiser = MatMulNBitsQuantizer(
        source, bits=how.bits, block_size=BLOCK, is_symmetric=True, nodes_to_exclude=others
    )
    quantiser.process()
    done: ModelProto = quantiser.model.model
    return done


def strip(proto: "ModelProto") -> "ModelProto":
    """Without the exporter's notes about every node, which quote source files, and without shapes
    in between."""
    for part in (*proto.graph.node, *proto.graph.initializer, *proto.graph.input, proto.graph):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    del proto.graph.value_info[:]
    return proto


@contextmanager
def no_log() -> Iterator[None]:
    """The quantiser gives advice through the root logger."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def batch_size(proto: "ModelProto") -> int | None:
    """How many images a graph takes at once; None for any number."""
    return proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value or None


def batches(images: NDArray[np.generic], size: int | None = None) -> Iterator[NDArray[np.generic]]:
    """All images, a few at a time. For a graph of a fixed batch size the last ones are filled up
    with the first."""
    step = size or BATCH
    missing = -len(images) % step if size else 0
    filled = np.concatenate([images, np.resize(images, (missing, *images.shape[1:]))])
    return (filled[first : first + step] for first in range(0, len(filled), step))


def run_graph(proto: "ModelProto", images: NDArray[np.generic]) -> NDArray[np.float32]:
    """The graph's first output for all images, by ONNX Runtime."""
    import onnxruntime  # type: ignore[import-untyped]  # ships no types

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_outputs()[0].name
    found = [session.run([name], {INPUT: one})[0] for one in batches(images, batch_size(proto))]
    return np.concatenate(found)[: len(images)]
