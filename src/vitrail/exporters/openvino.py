"""OpenVINO: an .xml file and its weights in a .bin beside it. Metadata are in `rt_info`."""

from collections.abc import Mapping
from pathlib import Path

from vitrail.exporters.int8 import int8_openvino
from vitrail.exporters.target import Request, Runner, Target
from vitrail.inference.checksum import add_checksum
from vitrail.inference.graph import INPUT, input_shape, output_names, quiet
from vitrail.inference.openvino_file import OpenVinoFile, flat_key
from vitrail.inference.quantisation import Quantisation


def convert(request: Request, metadata: Mapping[str, str], out: Path) -> Quantisation | None:
    import openvino

    program = request.program(batch=None)
    shape = [-1 if side is None else side for side in input_shape(program)]
    with quiet():
        model = openvino.convert_model(program)
        model.reshape(shape)
        model.inputs[0].get_tensor().set_names({INPUT})
        for port, name in zip(model.outputs, output_names(program), strict=True):
            port.get_tensor().set_names({name})
        record = None
        if request.precision == "int8":
            model, record = int8_openvino(request, model)
        for key, value in metadata.items():
            model.set_rt_info(value, flat_key(key))
        openvino.save_model(model, out, compress_to_fp16=request.precision == "float16")
    add_checksum(out, out.with_suffix(".bin"))
    return record


def open_file(path: Path) -> Runner:
    return OpenVinoFile(path).run


TARGET = Target(
    name="openvino",
    title="OpenVINO",
    suffix=".xml",
    packages=("openvino",),
    extra="fast",
    convert=convert,
    open=open_file,
    precisions=("float32", "float16", "int8"),
    checksum="crc32",
)
