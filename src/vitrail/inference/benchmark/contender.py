"""One contender in a process of its own, so that its memory is its own: a model on an engine.

    python -m vitrail.inference.benchmark.contender

reads requests as lines of JSON and answers each with a line: first what to open, then how long to
run, as often as it is asked. It ends with its input. What libraries print goes to standard error.
"""

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrail.core.errors import UserError
from vitrail.inference.benchmark.guests import PREFIX, SIDE, GuestGraph
from vitrail.inference.engines.agreement import sample_images
from vitrail.inference.engines.catalogue import EAGER, LIBRARIES
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.opening import open_library, why_only_eager
from vitrail.inference.engines.runner import Plan, Runner, RunnerOutput
from vitrail.models.catalogue import create, list_models
from vitrail.models.model import Model
from vitrail.weights.load import load

WARM_UP = 2  # batches that do not count


@dataclass(frozen=True)
class Contender:
    """A model on an engine, for batches of one size: `source` is a checkpoint, the name of an
    architecture with fresh weights, or a guest."""

    source: str
    engine: str
    batch_size: int
    threads: int


def open_graph(contender: Contender) -> ModelGraph:
    if contender.source.startswith(PREFIX):
        plan = Plan("logits", (contender.batch_size, 3, SIDE, SIDE), threads=contender.threads)
        return GuestGraph(contender.source, plan)
    model = open_source(contender.source)
    shape = (contender.batch_size, model.config.channels, *model.config.image_size)
    output: RunnerOutput = "logits" if model.config.num_classes else "pooled"
    plan = Plan(output, shape, threads=contender.threads)
    if contender.engine != EAGER and (reason := why_only_eager(model, plan)) is not None:
        raise UserError(f"the engine {contender.engine} cannot be used: {reason}")
    return ModelGraph(model, plan)


def open_source(source: str) -> Model:
    """A checkpoint, or an architecture by its name; a fresh head gets values, as comparisons of
    zeros prove nothing."""
    if os.path.exists(source) or source not in list_models():
        return load(source).eval()
    torch.manual_seed(0)
    model = create(source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval()


def open_contender(contender: Contender) -> tuple[ModelGraph, Runner, float]:
    """Its graph, the runner, and the seconds from its files to the first batch."""
    torch.set_num_threads(contender.threads)
    start = time.perf_counter()
    graph = open_graph(contender)
    runner = graph.eager
    if contender.engine != EAGER:
        runner = open_library(LIBRARIES[contender.engine], graph).run
    runner(sample_images(graph.plan))
    return graph, runner, time.perf_counter() - start


def count_macs(graph: ModelGraph) -> int:
    """Multiply-adds for one image, all that the model as it was given computes."""
    module = graph.module if isinstance(graph, GuestGraph) else graph.model
    counter = FlopCounterMode(display=False)  # it counts outside of inference mode alone
    with counter:
        module(sample_images(graph.plan)[:1])
    return counter.get_total_flops() // 2


def time_batches(graph: ModelGraph, runner: Runner, seconds: float) -> list[float]:
    """Seconds of each batch, at least one, until the time is used up."""
    images, times = sample_images(graph.plan), list[float]()
    began = time.perf_counter()
    while not times or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        runner(images)
        times.append(time.perf_counter() - start)
    return times


def peak_memory() -> int:
    """Bytes that this process has had at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer

    def answer(facts: dict[str, Any]) -> None:
        answers.write(json.dumps(facts) + "\n")
        answers.flush()

    try:
        graph, runner, seconds = open_contender(Contender(**json.loads(sys.stdin.readline())))
        for _ in range(WARM_UP):
            runner(sample_images(graph.plan))
        memory = peak_memory()
        answer({"seconds": seconds, "memory": memory, "shape": asdict(graph.plan)["shape"]})
        for line in sys.stdin:
            request = json.loads(line)
            if "run" in request:
                answer({"times": time_batches(graph, runner, request["run"])})
            else:
                answer({"macs": count_macs(graph)})
    except UserError as error:
        answer({"problem": str(error)})
    except KeyboardInterrupt:
        os._exit(130)  # the parent says it


if __name__ == "__main__":
    serve()
