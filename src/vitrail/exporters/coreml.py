"""Core ML: an .mlpackage through torch.export, for iOS 16 and macOS 13 on. It converts anywhere and
runs on macOS. Metadata are in `user_defined_metadata`, which Xcode shows."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.exporters.target import CannotRunError, Request, Runner, Target
from vitrail.inference.graph import INPUT, output_names, quiet


def convert(request: Request, metadata: Mapping[str, str], out: Path) -> None:
    coremltools = import_coremltools()
    program = request.program(batch=1)
    names = output_names(program)
    half = request.precision == "float16"
    precision = coremltools.precision
    package = coremltools.convert(
        # "ATEN" programs: what the exporter traced for training is taken apart
        program.run_decompositions({}),
        convert_to="mlprogram",
        minimum_deployment_target=coremltools.target.iOS16,
        compute_precision=precision.FLOAT16 if half else precision.FLOAT32,
        skip_model_load=True,
    )
    package = rename_outputs(coremltools, package, names)
    passport = request.model.passport
    package.short_description = f"{passport.family} image model, exported by Vitrail"
    package.license = passport.origin.licence or ""
    package.user_defined_metadata.update(metadata)
    package.save(str(out))
    check(coremltools, out, names, metadata)


def rename_outputs(coremltools: Any, package: Any, names: list[str]) -> Any:
    """Outputs by our names; Core ML's are those of the last operators, in the same order."""
    spec = package.get_spec()
    theirs = [one.name for one in spec.description.output]
    for old, new in zip(theirs, names, strict=True):
        coremltools.utils.rename_feature(spec, old, identifier(new))
    return coremltools.models.MLModel(spec, weights_dir=package.weights_dir, skip_model_load=True)


def identifier(name: str) -> str:
    """
    >>> identifier("blocks.0.attention")
    'blocks_0_attention'
    """
    return name.replace(".", "_")


def check(coremltools: Any, out: Path, names: list[str], metadata: Mapping[str, str]) -> None:
    """What can be checked without running it: the program, its input and outputs, the metadata."""
    spec = coremltools.models.MLModel(str(out), skip_model_load=True).get_spec()
    inputs = [one.name for one in spec.description.input]
    outputs = [one.name for one in spec.description.output]
    kept = dict(spec.description.metadata.userDefined)
    if spec.WhichOneof("Type") != "mlProgram" or inputs != [INPUT]:
        raise UserError(f"Core ML: must be a program of {INPUT}, got one of {inputs}")
    if outputs != [identifier(name) for name in names]:
        raise UserError(f"Core ML: outputs must be {names}, got {outputs}")
    if any(kept.get(key) != value for key, value in metadata.items()):
        raise UserError("Core ML: the file does not hold the metadata that it was given")


def open_file(path: Path) -> Runner:
    if platform.system() != "Darwin":
        raise CannotRunError(
            "not compared with the model: Core ML files run on macOS only; the program, its "
            "input, outputs and metadata were checked"
        )
    package = import_coremltools().models.MLModel(str(path))
    names = {identifier(name): name for name in outputs_of(package)}

    def run(images: NDArray[np.generic]) -> dict[str, NDArray[np.float32]]:
        found = package.predict({INPUT: images.astype(np.float32)})
        return {names[key]: np.asarray(value) for key, value in found.items()}

    return run


def outputs_of(package: Any) -> list[str]:
    from vitrail.core.exported import read_metadata

    kept = dict(package.get_spec().description.metadata.userDefined)
    return list(read_metadata(kept, where="Core ML").graph.outputs)


def import_coremltools() -> Any:
    """It logs on import what it cannot do on this machine."""
    with quiet():
        import coremltools

    return coremltools


TARGET = Target(
    name="coreml",
    title="Core ML",
    suffix=".mlpackage",
    packages=("coremltools",),
    extra="mobile",
    convert=convert,
    open=open_file,
    batch=1,
)
