"""ONNX graphs in float16; what is computed from the size of an image alone stays in float32.

Positions that a graph resizes come from coordinates, which float16 would round too much, and from
limits that the converter leaves in float32, so that no runtime reads the file. They are a few
numbers for each patch: it costs nothing to compute them in float32 and to round the result.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vitrail.inference.graph import quiet

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

SIZE = "Shape"  # the operator that reads the size of a tensor, and not its values
OWN = "_float32"  # added to the name of a weight that both parts of a graph read


def to_half(proto: "ModelProto") -> "ModelProto":
    """Weights and products in float16; inputs and outputs stay as they are."""
    from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
        convert_float_to_float16,
    )
    from onnxruntime.transformers.onnx_model import OnnxModel  # type: ignore[import-untyped]

    taken = take_out(proto, size_nodes(proto))
    with quiet():
        proto = convert_float_to_float16(proto, keep_io_types=True, disable_shape_infer=True)
    put_back(proto, taken)
    with quiet():
        OnnxModel(proto).topological_sort()  # the converter adds its casts at the end
    return proto


def size_nodes(proto: "ModelProto") -> list["NodeProto"]:
    """The nodes that compute floats from sizes, and all that these are computed from."""
    from_pixels = {one.name for one in proto.graph.input}
    from_sizes = set[str]()  # and from no pixel
    for node in proto.graph.node:
        if node.op_type == SIZE:
            from_sizes.update(node.output)
        elif from_pixels.intersection(node.input):
            from_pixels.update(node.output)
        elif from_sizes.intersection(node.input):
            from_sizes.update(node.output)
    made_by = {name: node for node in proto.graph.node for name in node.output}
    types = types_of(proto, ancestors(from_sizes, made_by))
    wanted = ancestors({name for name in from_sizes if is_float(types.get(name))}, made_by)
    return [node for node in proto.graph.node if wanted.intersection(node.output)]


def ancestors(names: Iterable[str], made_by: Mapping[str, "NodeProto"]) -> set[str]:
    """Values and all that they are computed from; of a size, that is nothing."""
    found, waiting = set[str](), [*names]
    while waiting:
        name = waiting.pop()
        if name in made_by and name not in found:
            found.add(name)
            waiting += () if made_by[name].op_type == SIZE else made_by[name].input
    return found


def types_of(proto: "ModelProto", values: set[str]) -> dict[str, "ValueInfoProto"]:
    """The types of some values of a graph; those of all would be inferred from all weights."""
    from onnx import shape_inference

    part = type(proto)(ir_version=proto.ir_version, opset_import=proto.opset_import)
    part.graph.node.extend(node for node in proto.graph.node if values.intersection(node.output))
    read = inputs_of(part.graph.node)
    part.graph.initializer.extend(one for one in proto.graph.initializer if one.name in read)
    part.graph.input.extend(one for one in proto.graph.input if one.name in read)
    return {one.name: one for one in shape_inference.infer_shapes(part).graph.value_info}


def is_float(value: "ValueInfoProto | None") -> bool:
    from onnx import TensorProto

    return value is not None and value.type.tensor_type.elem_type == TensorProto.FLOAT


def take_out(proto: "ModelProto", nodes: list["NodeProto"]) -> "ModelProto":
    """Move nodes and their weights into a graph of their own. What the rest reads of them becomes
    its input, which the converter rounds as it does every input."""
    taken = type(proto)()
    taken.graph.node.extend(nodes)
    values = {name for node in taken.graph.node for name in node.output}
    types = types_of(proto, values)
    drop(proto.graph.node, [bool(values.intersection(one.output)) for one in proto.graph.node])
    read, own = inputs_of(proto.graph.node), inputs_of(taken.graph.node)
    weights = [one for one in proto.graph.initializer if one.name in own]
    taken.graph.initializer.extend(weights)
    for weight in taken.graph.initializer:
        if weight.name in read:
            rename(taken.graph.node, weight.name, weight.name + OWN)
            weight.name += OWN
    gone = own - read
    drop(proto.graph.initializer, [one.name in gone for one in proto.graph.initializer])
    taken.graph.output.extend(types[name] for name in sorted(values & read))
    proto.graph.input.extend(taken.graph.output)
    return taken


def put_back(proto: "ModelProto", taken: "ModelProto") -> None:
    """What was taken out, in the place of the inputs that stood for it."""
    stand_ins = {one.name for one in taken.graph.output}
    drop(proto.graph.input, [one.name in stand_ins for one in proto.graph.input])
    proto.graph.node.extend(taken.graph.node)
    proto.graph.initializer.extend(taken.graph.initializer)


def inputs_of(nodes: Iterable["NodeProto"]) -> set[str]:
    return {name for node in nodes for name in node.input}


def rename(nodes: Iterable["NodeProto"], old: str, new: str) -> None:
    for node in nodes:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def drop(parts: Any, unwanted: list[bool]) -> None:
    """Remove some of the parts of a graph."""
    for place in reversed([place for place, is_unwanted in enumerate(unwanted) if is_unwanted]):
        del parts[place]
