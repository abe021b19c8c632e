"""PyTorch's own compiler: the graph ahead of time through Inductor into one package of C++ code."""

import os
import shutil
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.runner import PLAN_FIELDS, EngineLibrary, Plan, Runner

FILE = "model.pt2"


class Compiled(EngineLibrary):
    name = "compiled"
    modules = ("torch",)
    distributions = ("torch",)
    seconds_per_layer = 0.8
    plan_fields = PLAN_FIELDS
    needs = "install a C++ compiler such as g++, or name one in CXX"

    def is_installed(self) -> bool:
        return shutil.which(os.environ.get("CXX", "g++")) is not None

    def build(self, graph: ModelGraph, folder: Path) -> None:
        """Weights become constants of the program and are packed for this CPU ("freezing")."""
        from torch._inductor import aoti_compile_and_package  # here: it loads the compiler

        from vitrail.inference.graph import quiet

        threads = torch.get_num_threads()
        torch.set_num_threads(graph.plan.threads)  # the number is written into the code
        try:
            with torch.no_grad(), quiet():
                aoti_compile_and_package(
                    graph.program,
                    package_path=str(folder / FILE),
                    inductor_configs={"freezing": True},
                )
        finally:
            torch.set_num_threads(threads)

    def open(self, folder: Path, plan: Plan) -> Runner:
        from torch._inductor.package.package import load_package

        package = load_package(str(folder / FILE), num_runners=plan.callers)

        @torch.inference_mode()
        def run(images: Float[Tensor, "B C H W"]) -> NDArray[np.float32]:
            (values,) = package(images.contiguous()).values()
            return np.asarray(values.numpy())

        return run
