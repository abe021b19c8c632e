"""ONNX Runtime: the graph as an ONNX file, computed on the CPU in float32."""

from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.runner import EngineLibrary, Plan, Runner
from vitrail.inference.quantisation import Quantisation

FILE = "model.onnx"


class OnnxRuntime(EngineLibrary):
    name = "onnxruntime"
    modules = ("onnxruntime", "onnx", "onnxscript")
    distributions = ("torch", "onnxruntime", "onnx", "onnxscript")
    seconds_per_layer = 0.005
    plan_fields = ("output", "shape")  # threads are chosen when it is opened
    has_int8 = True

    def build(self, graph: ModelGraph, folder: Path) -> None:
        graph.save_onnx(folder / FILE)

    def build_int8(self, graph: ModelGraph, folder: Path) -> Quantisation:
        return graph.save_int8(folder / FILE)

    def open(self, folder: Path, plan: Plan) -> Runner:
        import onnxruntime  # type: ignore[import-untyped]  # ships no types

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = plan.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(
            folder / FILE, options, providers=["CPUExecutionProvider"]
        )
        (given,) = session.get_inputs()

        def run(images: Float[Tensor, "B C H W"]) -> NDArray[np.float32]:
            (values,) = session.run(None, {given.name: images.contiguous().numpy()})
            return np.asarray(values)

        return run
