"""One contender in a process of its own, so that its memory is its own: a model on an engine.

    python -m vitrail.inference.benchmark.contender

reads requests as lines of JSON and writes a line for each: first what to open, then how long to
run, as often as it is asked. It ends with its input. What libraries print goes to standard error.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from vitrail.core.errors import UserError
from vitrail.core.memory import peak_memory
from vitrail.data.paths import list_images
from vitrail.inference.benchmark.guests import PREFIX, SIDE, GuestGraph
from vitrail.inference.calibration import Samples, sample_calibration
from vitrail.inference.engines.agreement import sample_images
from vitrail.inference.engines.catalogue import EAGER, LIBRARIES
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.opening import (
    OpenLibrary,
    library_key,
    open_library,
    why_only_eager,
)
from vitrail.inference.engines.runner import Plan, Runner, RunnerOutput
from vitrail.inference.engines.timing import spin_seconds, warm_up
from vitrail.inference.merging import merge_tokens
from vitrail.models.catalogue import create
from vitrail.models.model import Model
from vitrail.weights.load import load

WARM_UP = 2  # batches that do not count
FLOAT32, INT8 = "float32", "int8"
TILES = 4  # rows and columns that a photo is cut into


@dataclass(frozen=True)
class Contender:
    """A model on an engine, for batches of one size: `source` is a checkpoint, the name of an
    architecture with fresh weights, or a guest. `merged` tokens are merged in every block, or as
    many in each. int8 is calibrated on the images of `calibrate`, without any on tiles of two real
    photos."""

    source: str
    engine: str
    batch_size: int
    threads: int
    precision: str = FLOAT32
    merged: int | tuple[int, ...] = 0
    calibrate: tuple[str, ...] = ()

    @property
    def most_merged(self) -> int:
        """Tokens that a block merges, the most of all."""
        return self.merged if isinstance(self.merged, int) else max(self.merged, default=0)


def open_graph(contender: Contender) -> ModelGraph:
    if contender.source.startswith(PREFIX):
        plan = Plan("logits", (contender.batch_size, 3, SIDE, SIDE), threads=contender.threads)
        return GuestGraph(contender.source, plan)
    model = open_merged(contender)
    shape = (contender.batch_size, model.config.channels, *model.config.image_size)
    output: RunnerOutput = "logits" if model.config.num_classes else "pooled"
    plan = Plan(output, shape, threads=contender.threads)
    if contender.engine != EAGER and (reason := why_only_eager(model, plan)) is not None:
        raise UserError(f"the engine {contender.engine} cannot be used: {reason}")
    samples = calibration_images(model, contender) if contender.precision == INT8 else None
    return ModelGraph(model, plan, samples)


def calibration_images(model: Model, contender: Contender) -> Samples:
    if contender.calibrate:
        return sample_calibration(model, list(list_images(contender.calibrate)), given=True)
    return sample_calibration(model, photo_tiles(), given=False)


def photo_tiles() -> list[NDArray[np.uint8]]:
    """Real pixels where nobody gave images: tiles of the two photos of scikit-learn."""
    from sklearn.datasets import load_sample_images

    photos: Sequence[NDArray[np.uint8]] = load_sample_images().images
    rows = [row for photo in photos for row in np.array_split(photo, TILES)]
    return [tile for row in rows for tile in np.array_split(row, TILES, axis=1)]


def open_source(source: str) -> Model:
    """A checkpoint, or an architecture by its name; a fresh head gets values, as comparisons of
    zeros prove nothing."""
    if os.path.exists(source) or "/" in source:
        return load(source).eval()
    torch.manual_seed(0)
    model = create(source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval()


def open_merged(contender: Contender) -> Model:
    """Its model, with the tokens merged that it has."""
    model = open_source(contender.source)
    return merge_tokens(model, contender.merged) if contender.merged else model


def open_contender(contender: Contender) -> tuple[ModelGraph, OpenLibrary, float]:
    """Its graph, the runner, and the seconds from its files to the first batch."""
    torch.set_num_threads(contender.threads)
    start = time.perf_counter()
    graph = open_graph(contender)
    if contender.engine == EAGER:
        opened = OpenLibrary(graph.eager, 0.0)
    else:
        opened = open_library(LIBRARIES[contender.engine], graph)
    opened.run(sample_images(graph.plan))
    return graph, opened, time.perf_counter() - start


def count_macs(graph: ModelGraph) -> int:
    """Multiply-adds for one image, all that the model as it was given computes."""
    module = graph.module if isinstance(graph, GuestGraph) else graph.model
    counter = FlopCounterMode(display=False)  # it counts outside of inference mode alone
    with counter:
        module(sample_images(graph.plan)[:1])
    return counter.get_total_flops() // 2


def time_batches(
    graph: ModelGraph, runner: Runner, seconds: float, *, batch_seconds: float = 0.0
) -> list[float]:
    """Seconds of each batch, at least one, until the time is used up. First it computes what is not
    timed, as long as threads of the contender before may spin."""
    images, times = sample_images(graph.plan), list[float]()
    warm_up(lambda: runner(images), batch_seconds=batch_seconds, spin=spin_seconds(graph.plan))
    began = time.perf_counter()
    while not times or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        runner(images)
        times.append(time.perf_counter() - start)
    return times


def stop(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends it as Ctrl-C does, so that what is being built leaves nothing behind."""
    raise KeyboardInterrupt


def serve() -> None:
    signal.signal(signal.SIGTERM, stop)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no reply

    def reply(facts: dict[str, Any]) -> None:
        replies.write(json.dumps(facts) + "\n")
        replies.flush()

    try:
        contender = Contender(**json.loads(sys.stdin.readline()))
        graph, opened, seconds = open_contender(contender)
        runner, int8 = opened.run, opened.quantisation
        for _ in range(WARM_UP):
            start = time.perf_counter()
            runner(sample_images(graph.plan))
            batch_seconds = time.perf_counter() - start
        facts: dict[str, Any] = {
            "seconds": seconds,
            "memory": peak_memory(),
            "shape": asdict(graph.plan)["shape"],
            "int8": None if int8 is None else int8.facts(),
        }
        if opened.is_new:
            facts["new_entry"] = library_key(LIBRARIES[contender.engine], graph)
        reply(facts)
        for line in sys.stdin:
            request = json.loads(line)
            if "run" in request:
                times = time_batches(graph, runner, request["run"], batch_seconds=batch_seconds)
                reply({"times": times})
            else:
                reply({"macs": count_macs(graph)})
    except UserError as error:
        reply({"problem": str(error)})
    except KeyboardInterrupt:
        os._exit(130)  # the parent reports it


if __name__ == "__main__":
    serve()
