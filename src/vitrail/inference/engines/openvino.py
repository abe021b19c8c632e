"""OpenVINO: the graph compiled for this CPU and kept as a blob, computed in float32."""

from pathlib import Path
from threading import local

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.runner import PLAN_FIELDS, EngineLibrary, Plan, Runner

GRAPH, BLOB = "model.onnx", "model.blob"


class OpenVino(EngineLibrary):
    name = "openvino"
    modules = ("openvino", "onnx", "onnxscript")
    distributions = ("torch", "openvino", "onnx", "onnxscript")
    seconds_per_layer = 0.02
    plan_fields = PLAN_FIELDS

    def build(self, graph: ModelGraph, folder: Path) -> None:
        import openvino

        graph.save_onnx(folder / GRAPH)
        compiled = openvino.Core().compile_model(folder / GRAPH, "CPU", settings(graph.plan))
        (folder / BLOB).write_bytes(compiled.export_model().getbuffer())
        del compiled
        for file in folder.glob(f"{GRAPH}*"):
            file.unlink()

    def open(self, folder: Path, plan: Plan) -> Runner:
        import openvino

        blob = (folder / BLOB).read_bytes()
        compiled = openvino.Core().import_model(blob, "CPU", settings(plan))
        own = local()

        def run(images: Float[Tensor, "B C H W"]) -> NDArray[np.float32]:
            if not hasattr(own, "request"):  # a request serves one thread
                own.request = compiled.create_infer_request()
            own.request.infer([images.contiguous().numpy()], share_inputs=True)
            return np.array(own.request.get_output_tensor(0).data)

        return run


def settings(plan: Plan) -> dict[str, object]:
    """A stream for each caller. Without the hint for precision, CPUs with AMX compute in bfloat16;
    pinned threads would all share the first cores where several processes run."""
    return {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY" if plan.callers == 1 else "THROUGHPUT",
        "NUM_STREAMS": plan.callers,
        "INFERENCE_NUM_THREADS": plan.callers * plan.threads,
        "ENABLE_CPU_PINNING": False,
    }
