"""Engines that tests control: each computes what eager does, or something else, and counts."""

from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from tests.inference.photos import small_model
from vitrail.inference.engines import auto, catalogue, opening
from vitrail.inference.engines.eager import EagerRunner
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.runner import EngineLibrary, Plan, Runner

SECRET = b"weights"


class Double(EngineLibrary):
    """Built into one small file. `answer` is applied to what eager computes, `seconds` is how long
    a batch takes."""

    modules = ("torch",)
    distributions = ("torch",)
    seconds_per_layer = 0.0
    plan_fields = ("output", "shape", "callers", "threads")

    def __init__(
        self,
        name: str,
        *,
        answer: Callable[[NDArray[np.float32]], Any] = lambda values: values,
        seconds: float = 0.0,
    ) -> None:
        self.name, self.answer, self.seconds = name, answer, seconds
        self.built = self.opened = 0

    def build(self, graph: ModelGraph, folder: Path) -> None:
        self.built += 1
        (folder / "model.bin").write_bytes(SECRET)

    def open(self, folder: Path, plan: Plan) -> Runner:
        self.opened += 1
        if (folder / "model.bin").read_bytes() != SECRET:
            raise RuntimeError("not a model")
        eager = EagerRunner(small_model(), plan.output)

        def run(images: Tensor) -> NDArray[np.float32]:
            sleep(self.seconds)
            return np.asarray(self.answer(eager(images)))

        return run


def use(monkeypatch: pytest.MonkeyPatch, *engines: Double) -> None:
    """These engines are the ones that are installed."""
    table = {engine.name: engine for engine in engines}
    for module in (auto, catalogue):
        monkeypatch.setattr(module, "LIBRARIES", table)
    monkeypatch.setattr(catalogue, "ENGINES", ("auto", "eager", *table))
    assert not hasattr(opening, "LIBRARIES")
    monkeypatch.setattr(auto, "GRAPH_SECONDS", 0.0)
