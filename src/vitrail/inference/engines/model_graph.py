"""The graph of a model for one plan, from which every engine builds; traced once, when needed."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.core.eval_mode import eval_mode
from vitrail.inference.calibration import Samples
from vitrail.inference.engines.agreement import sample_images
from vitrail.inference.engines.eager import EagerRunner
from vitrail.inference.engines.runner import Plan, Runner
from vitrail.models.model import Model
from vitrail.weights.digest import digest_of

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

    from vitrail.inference.quantisation import Quantisation


class ModelGraph:
    """A model and a plan; engines that build from the same one share its graph. With `samples` it
    is for int8, and these are the images to calibrate and measure on."""

    samples: Samples | None = None

    def __init__(self, model: Model, plan: Plan, samples: Samples | None = None) -> None:
        self.model, self.plan, self.samples = model, plan, samples

    @cached_property
    def eager(self) -> Runner:
        """What every engine is compared with."""
        return EagerRunner(self.model, self.plan.output)

    @cached_property
    def expected(self) -> NDArray[np.float32]:
        """What eager computes of the images that engines are compared on."""
        return self.eager(sample_images(self.plan))

    @cached_property
    def digest(self) -> str:
        """Of the weights, and of the modules: another activation has the same weights."""
        return hashlib.sha256(f"{digest_of(self.model)} {self.model!r}".encode()).hexdigest()

    @cached_property
    def layers(self) -> int:
        """Modules without children, by which the time to build a model grows."""
        return sum(not any(module.children()) for module in self.model.modules())

    @property
    def is_traced(self) -> bool:
        """Whether an engine built from it already, so that the next one costs less."""
        return "program" in vars(self)

    @cached_property
    def program(self) -> "ExportedProgram":
        from vitrail.inference.graph import trace  # here: torch.export takes long to import
        from vitrail.inference.rewrites.optimise import optimise

        with eval_mode(self.model):
            fast = optimise(self.model, output=self.plan.output).model
            return trace(fast, output=self.plan.output, batch=self.plan.shape[0])

    @cached_property
    def onnx(self) -> "ModelProto":
        from vitrail.inference.graph import to_onnx

        return to_onnx(self.program)

    def save_onnx(self, path: Path) -> None:
        save_onnx(self.onnx, path)

    def save_int8(self, path: Path) -> "Quantisation":
        """Write the ONNX graph in int8. Activations have calibrated ranges, so that what an image
        gets does not depend on its batch; every layer that can be is in int8."""
        from vitrail.inference.quantise import quantise

        assert self.samples is not None

        def to_graph(model: Model) -> "ModelProto":
            return ModelGraph(model, self.plan).onnx

        proto, record = quantise(
            self.model, self.samples, to_graph, method="static", max_error=float("inf")
        )
        save_onnx(proto, path)
        return record


def save_onnx(proto: "ModelProto", path: Path) -> None:
    """Write a graph; what is too large for one file has its weights beside it."""
    import onnx

    from vitrail.inference.graph import MAX_PROTO, weights_size

    large = weights_size(proto) > MAX_PROTO
    onnx.save_model(proto, path, save_as_external_data=large, location=f"{path.name}.weights")
