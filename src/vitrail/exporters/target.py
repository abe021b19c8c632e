"""What an exporter is: a request, and a target that converts it and runs the file back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

from vitrail.core.errors import UserError
from vitrail.core.exported import Exported, ExportedGraph, ExportPrecision
from vitrail.data.preprocess import normalise
from vitrail.inference.any_size import for_any_size, size_step
from vitrail.inference.calibration import Samples
from vitrail.inference.graph import Graph, GraphOutput, ReduceWeights, trace
from vitrail.inference.quantisation import MAX_DROP, Quantisation
from vitrail.inference.rewrites.kernels import bake_kernels
from vitrail.models.attention_outputs import attention_layouts
from vitrail.models.model import Model

# Images as the file reads them -> its outputs by name.
Runner: TypeAlias = "Callable[[NDArray[np.generic]], dict[str, NDArray[np.float32]]]"


QUANTISED = {"int8": 8, "int8-weights": 8, "int4-weights": 4}  # bits


@dataclass(frozen=True)
class AttentionMaps:
    """Small maps (B, rows, columns) in place of all attention weights: the function that makes them
    in the graph, and by the name of each output how far it reaches along the image's height and
    width, beyond the image where it is above 1."""

    reduce: ReduceWeights
    covers: dict[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A model, and what its exported graph takes and gives; for int8, the images to calibrate and
    measure on, and how many percentage points may be lost on them. For the web, `maps` in place of
    attention weights, and where ONNX Runtime Web is."""

    model: Model
    precision: ExportPrecision = "float32"
    preprocessing: bool = False
    attention: bool = False
    features: bool = False
    dynamic_size: bool = False
    samples: Samples | None = None
    max_drop: float = MAX_DROP
    maps: AttentionMaps | None = None
    runtime: Path | None = None

    @property
    def output(self) -> GraphOutput:
        """The first output: logits, or what a head would read where the model has none."""
        return "logits" if self.model.config.num_classes else "pooled"

    @property
    def both(self) -> bool:
        """Whether features are a second output."""
        return self.features and self.output != "pooled"

    @property
    def needs_samples(self) -> bool:
        """Whether what the precision costs is measured on images."""
        return self.precision in QUANTISED

    def graph(self) -> Graph:
        """The module that is exported."""
        return Graph(
            bake_kernels(self.model),
            self.output,
            attention=self.attention or self.maps is not None,
            features=self.both,
            from_pixels=self.preprocessing,
            reduce=self.maps.reduce if self.maps else None,
        )

    def program(self, batch: int | None) -> ExportedProgram:
        """What torch.export makes of it. Kernels are standardised beforehand: phones lack the
        operator, and a converter takes the 1e-10 under the root for nothing."""
        return trace(
            bake_kernels(self.model),
            output=self.output,
            batch=batch,
            attention=self.attention or self.maps is not None,
            features=self.both,
            dynamic_size=self.dynamic_size,
            from_pixels=self.preprocessing,
            reduce=self.maps.reduce if self.maps else None,
        )


@dataclass(frozen=True, kw_only=True)
class Target:
    """A format: its suffix, the packages that convert to it (`extra` installs them), what it can
    hold, and the functions that write a file and run it. `open` raises `CannotRunError`
    where files of this format do not run. Files with a `checksum` end with one. With `folder` a
    folder is written in place of a file. `refuse` raises for what else this format needs."""

    name: str
    title: str
    suffix: str
    packages: tuple[str, ...]
    extra: str
    convert: Callable[[Request, Mapping[str, str], Path], Quantisation | None]
    open: Callable[[Path], Runner]
    precisions: tuple[ExportPrecision, ...] = ("float32", "float16")
    batch: int | None = None
    dynamic_size: bool = False
    embeds_metadata: bool = True
    checksum: Literal["crc32"] | None = None
    folder: bool = False
    refuse: Callable[[Request], None] = lambda request: None

    def check(self, request: Request) -> None:
        """Refuse, before any work, what this format cannot hold or what is not installed."""
        if request.precision not in self.precisions:
            raise UserError(
                f"precision must be {' or '.join(self.precisions)} for {self.title}, got "
                f"{request.precision}"
            )
        if request.runtime is not None and not self.folder:
            raise UserError(f"runtime must be left out for {self.title}: it is for the target web")
        if request.attention and not request.model.has_attention:
            raise UserError(
                f"attention outputs need attention, and {type(request.model).__name__} has none, "
                "it is a convolutional network: leave out attention"
            )
        if request.dynamic_size:
            self.check_dynamic_size(request)
        missing = [name for name in self.packages if find_spec(name) is None]
        if missing:
            raise UserError(
                f"{self.title} is written with {missing[0]}, which is not installed: "
                f"pip install 'vitrail[{self.extra}]'"
            )
        self.refuse(request)

    def check_dynamic_size(self, request: Request) -> None:
        if not self.dynamic_size:
            raise UserError(f"dynamic_size is for ONNX files, got {self.title}: leave it out")
        if request.attention:
            raise UserError(
                "attention outputs have the layout of one image size: leave out attention, or "
                "dynamic_size"
            )
        if request.precision not in ("float32", "float16"):
            raise UserError(
                f"{request.precision} is measured at one image size: leave out dynamic_size"
            )
        for_any_size(request.model)

    def metadata(self, request: Request) -> Exported:
        """What the file says about itself."""
        layouts = attention_layouts(request.model) if request.attention else {}
        maps = request.maps.covers if request.maps else ()
        names = (request.output, *(("pooled",) if request.both else ()), *layouts, *maps)
        graph = ExportedGraph(
            target=self.name,
            outputs=names,
            input="uint8" if request.preprocessing else "float",
            precision=request.precision,
            batch=self.batch,
            sides=size_step(request.model) if request.dynamic_size else None,
            merged_tokens=request.model.merged_tokens,
            attention=layouts,
            checksum=self.checksum,
            version=version("vitrail"),
        )
        return Exported(request.model.passport, graph)


def graph_inputs(request: Request, pixels: Tensor) -> NDArray[np.generic]:
    """The photos as the exported graph reads them."""
    how = request.model.passport.preprocessing
    if not request.preprocessing:
        floats: NDArray[np.generic] = normalise(pixels, how, reorder=False).numpy()
        return floats
    rgb = pixels.flip(1) if how.channel_order == "bgr" else pixels
    return np.ascontiguousarray(rgb.permute(0, 2, 3, 1).numpy())


class CannotRunError(Exception):
    """A file of this format does not run on this machine; the sentence says why."""
