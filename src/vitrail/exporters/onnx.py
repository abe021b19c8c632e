"""ONNX: through torch.export, run back by ONNX Runtime. Metadata are in `metadata_props`."""

from collections.abc import Mapping
from pathlib import Path

from vitrail.exporters.half import to_half
from vitrail.exporters.int8 import int8_onnx
from vitrail.exporters.target import Request, Runner, Target
from vitrail.inference.checksum import add_checksum
from vitrail.inference.graph import to_onnx
from vitrail.inference.int8_graph import strip
from vitrail.inference.onnx_file import OnnxFile, weights_path
from vitrail.inference.quantisation import Quantisation

LARGEST = 1_900_000_000  # bytes of weights in one file: protobuf ends at 2 GiB


def convert(request: Request, metadata: Mapping[str, str], out: Path) -> Quantisation | None:
    """Weights that are too large for one file lie beside it, in OUT.data."""
    import onnx

    record = None
    if request.needs_samples:
        proto, record = int8_onnx(request)
    else:
        proto = strip(to_onnx(request.program(batch=None)))
    if request.precision == "float16":
        proto = to_half(proto)
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    size = sum(tensor.nbytes for tensor in request.model.state_dict().values())
    if size > LARGEST:
        weights = weights_path(out)
        onnx.save(proto, out, save_as_external_data=True, location=weights.name)
        onnx.checker.check_model(out)
        add_checksum(out, weights)
    else:
        onnx.save(proto, out)
        onnx.checker.check_model(out)
        add_checksum(out)
    return record


def open_file(path: Path) -> Runner:
    return OnnxFile(path).run


TARGET = Target(
    name="onnx",
    title="ONNX",
    suffix=".onnx",
    packages=("onnx", "onnxscript", "onnxruntime"),
    extra="fast",
    convert=convert,
    open=open_file,
    precisions=("float32", "float16", "int8", "int8-weights", "int4-weights"),
    dynamic_size=True,
    checksum="crc32",
)
