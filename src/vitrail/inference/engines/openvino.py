"""OpenVINO: the graph compiled for this CPU and kept as a blob, computed in float32."""

from pathlib import Path
from threading import local
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.runner import PLAN_FIELDS, EngineLibrary, Plan, Runner
from vitrail.inference.label_agreement import label_kind
from vitrail.inference.quantisation import Quantisation

GRAPH, BLOB = "model.onnx", "model.blob"


class OpenVino(EngineLibrary):
    name = "openvino"
    modules = ("openvino", "onnx", "onnxscript")
    distributions = ("torch", "openvino", "onnx", "onnxscript")
    seconds_per_layer = 0.02
    plan_fields = PLAN_FIELDS
    has_int8 = True

    def build(self, graph: ModelGraph, folder: Path) -> None:
        compile_blob(read_graph(graph, folder), graph.plan, folder)

    def build_int8(self, graph: ModelGraph, folder: Path) -> Quantisation:
        from vitrail.inference.int8_openvino import quantise_openvino

        assert graph.samples is not None
        kind = label_kind(graph.model, graph.plan.output)
        model, record = quantise_openvino(read_graph(graph, folder), graph.samples, kind)
        compile_blob(model, graph.plan, folder)
        return record

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


def read_graph(graph: ModelGraph, folder: Path) -> Any:
    """OpenVINO's model of the graph, which is written into the folder for as long as it is read."""
    import openvino

    graph.save_onnx(folder / GRAPH)
    return openvino.Core().read_model(folder / GRAPH)


def compile_blob(model: Any, plan: Plan, folder: Path) -> None:
    import openvino

    compiled = openvino.Core().compile_model(model, "CPU", settings(plan))
    (folder / BLOB).write_bytes(compiled.export_model().getbuffer())
    del compiled
    for file in folder.glob(f"{GRAPH}*"):
        file.unlink()


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
