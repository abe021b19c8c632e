"""The interface of an engine: a model is built into files once, and a runner is opened from them.

An engine never imports its library before it is used: `is_installed` looks for it only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.inference.engines.model_graph import ModelGraph
    from vitrail.inference.quantisation import Quantisation

RunnerOutput = Literal["logits", "pooled", "tokens"]

# images (B, C, H, W), preprocessed float32 on the CPU -> float32 (B, …); several threads may call
Runner = Callable[[Float[Tensor, "B C H W"]], NDArray[np.float32]]

GRAPH_SECONDS = 0.12  # to trace a layer and to write it as ONNX, on one core of 2021


@dataclass(frozen=True)
class Plan:
    """What a runner is made for: its output, the shape (B, C, H, W) of every batch, how many
    threads call it at once (`callers`) and with how many `threads` each call computes."""

    output: RunnerOutput
    shape: tuple[int, int, int, int]
    callers: int = 1
    threads: int = 1


PLAN_FIELDS = tuple(field.name for field in fields(Plan))


class EngineLibrary(ABC):
    """One engine: the modules it imports; the distributions and the fields of a plan that decide
    what it builds; how long that takes for each layer of a model (a module without children),
    beside its graph; whether it computes in int8; and what it `needs` where it is not
    installed."""

    name: str
    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    seconds_per_layer: float
    plan_fields: tuple[str, ...]
    has_int8 = False
    needs = "pip install 'vitrail[fast]'"

    def is_installed(self) -> bool:
        return all(find_spec(module) is not None for module in self.modules)

    @abstractmethod
    def build(self, graph: "ModelGraph", folder: Path) -> None:
        """Write everything that `open` needs into a directory."""

    def build_int8(self, graph: "ModelGraph", folder: Path) -> "Quantisation":
        """The same in int8, calibrated on the images of the graph; and what that cost."""
        raise UserError(
            f"the engine {self.name} does not compute in int8: use the engine onnxruntime or "
            "openvino"
        )

    @abstractmethod
    def open(self, folder: Path, plan: Plan) -> Runner:
        """A runner from the files that `build` wrote on this machine for this plan."""


def versions_of(engine: EngineLibrary) -> dict[str, str]:
    found = {}
    for name in engine.distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found
