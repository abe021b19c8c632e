"""`vitrail export`: a model as a file for servers and phones, or as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, get_args

from cyclopts import Parameter, Token

from vitrail.cli.options import (
    OUTPUT,
    DryRunOption,
    ModelOptions,
    OutputOptions,
    OverwriteOption,
    Source,
    SpeedUp,
    Threads,
    model_source,
)
from vitrail.cli.output import say, say_json
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError
from vitrail.core.exported import OLD_PRECISIONS, ExportPrecision


def read_precision(_: object, tokens: Sequence[Token]) -> str:
    """A precision by its name, or by the one that other tools have for it.

    >>> read_precision(str, [Token(value="fp16")])
    'float16'
    """
    value = tokens[0].value
    if value not in (*get_args(ExportPrecision), *OLD_PRECISIONS):
        known = ", ".join(get_args(ExportPrecision))
        raise UserError(f"--precision must be one of {known}, got {value!r}")
    return OLD_PRECISIONS.get(value, value)


@dataclass(frozen=True)
class Export(ModelOptions, DryRunOption, OverwriteOption, OutputOptions):
    """Which model goes into which file."""

    source: Source
    _: KW_ONLY
    to: Literal["onnx", "openvino", "coreml", "executorch", "litert", "web"] | None = None
    """Format of the file. [default: by the suffix of OUT]"""
    out: Annotated[str | None, Parameter(group=OUTPUT)] = None
    """The file: .onnx, .xml (OpenVINO), .mlpackage (Core ML), .pte (ExecuTorch) or .tflite
    (LiteRT); a folder for --to web. [required]"""
    images: tuple[str, ...] = ()
    """Photos to compare the file with the model on: files, directories or patterns. [default: two
    photos that come with scikit-learn]"""
    precision: Annotated[ExportPrecision, Parameter(converter=read_precision)] = "float32"
    """Precision of the weights in the file. int8 (ONNX, OpenVINO) needs at least 16 --images to be
    calibrated and measured on. int8-weights and int4-weights (ONNX) make smaller files and compute
    in float; measured on --images too."""
    max_drop: float = 1.0
    """Percentage points that int8 may lose: of accuracy if the images lie in folders named after
    the classes, else of equal labels. More is refused."""
    preprocessing: bool = False
    """Read uint8 RGB pixels (height, width, channels) at the model's size, and normalise them in
    the file."""
    attention: bool = False
    """Also output the attention weights of every layer."""
    features: bool = False
    """Also output the features that the head reads."""
    dynamic_size: bool = False
    """Take images whose sides are any multiples of the patches (ONNX; ViT, DeiT, MobileViT,
    CNNs)."""
    speed_up: SpeedUp = None
    threads: Threads = None
    runtime: str | None = None
    """For --to web: a directory or .tgz of the npm package onnxruntime-web. [default: fetched by
    npm]"""


def export(options: Export) -> None:
    """Write a model as a file that runs without PyTorch: ONNX, OpenVINO, Core ML, ExecuTorch or
    LiteRT, or as a page that runs in a browser. It is compared with the model on photos before it
    is kept.

    Examples:
      vitrail export runs/pets/best --out pets.onnx
      vitrail export runs/pets/best --to coreml --out Pets.mlpackage
      vitrail export runs/pets/best --to web --out pets-page
    """
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.export import export as run

    if options.out is None:
        raise UserError("missing --out FILE: its suffix, such as .onnx, names the format")
    with progress() as on_progress:
        done = run(
            model_source(options),
            options.out,
            to=options.to,
            images=list(options.images) or None,
            precision=options.precision,
            max_drop=options.max_drop,
            preprocessing=options.preprocessing,
            attention=options.attention,
            features=options.features,
            dynamic_size=options.dynamic_size,
            speed_up=options.speed_up,
            threads=options.threads,
            runtime=options.runtime,
            overwrite=options.overwrite,
            dry_run=options.dry_run,
            on_progress=on_progress,
        )
    if options.json:
        say_json(done.facts())
    elif isinstance(done, DryRun):
        say(f"would write {done.out}: {done.details['target']}, {done.details['precision']}")
    else:
        say(*done.lines())
