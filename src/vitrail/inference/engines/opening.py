"""Opening an engine: what it built before is taken from the cache, or built, compared and kept."""

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from vitrail.core.errors import UserError, printable
from vitrail.core.json_text import to_json
from vitrail.core.records import validate
from vitrail.inference.engines.agreement import compare, sample_images
from vitrail.inference.engines.cache import find_entry, make_key, new_entry, remove_entry
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.runner import (
    EngineLibrary,
    Plan,
    Runner,
    versions_of,
)
from vitrail.inference.exported_model import ExportedModel
from vitrail.inference.pruning import is_observed
from vitrail.inference.quantisation import Quantisation
from vitrail.inference.remote_model import RemoteModel
from vitrail.models.model import Model

MAX_REASON = 200  # letters of a library's own message
INT8_RECORD = "int8.json"  # in an entry: how it was quantised, and what that cost

logger = logging.getLogger(__name__)


class EngineError(UserError):
    """An engine that cannot build a model, or computes something else."""


@dataclass(frozen=True)
class OpenLibrary:
    """A runner, the seconds that its files took to open, for int8 what that cost, and whether it
    was built now."""

    run: Runner
    seconds: float
    quantisation: Quantisation | None = None
    is_new: bool = False


def open_library(library: EngineLibrary, graph: ModelGraph) -> OpenLibrary:
    """A runner that was compared with eager when it was built; of a graph for int8 the record says
    how far it is from it."""
    key = library_key(library, graph)
    start = time.perf_counter()
    entry = find_entry(key)
    if entry is not None:
        try:
            record = read_quantisation(entry.folder) if graph.samples is not None else None
            runner = library.open(entry.folder, graph.plan)
            return OpenLibrary(runner, time.perf_counter() - start, record)
        except Exception as error:  # whatever a library raises for a file that it cannot read
            logger.info("%s: built again: %s", library.name, error)
            remove_entry(key)
    facts = {"engine": library.name, "plan": asdict(graph.plan), "model": graph.digest}
    opened: list[OpenLibrary] = []
    try:
        with new_entry(key, facts, lambda folder: opened.append(build(library, graph, folder))):
            return opened[-1]
    except EngineError:
        raise
    except UserError as error:  # ours: what the graph or the engine cannot do
        if graph.samples is not None:  # or which images int8 needs
            raise
        raise EngineError(
            f"the engine {library.name} failed: {error}: use the engine eager"
        ) from None
    except Exception as error:  # a library's own: unsupported operators, its compiler, the disk
        raise EngineError(
            f"the engine {library.name} failed: {reason_of(error)}: use the engine eager"
        ) from error


def build(library: EngineLibrary, graph: ModelGraph, folder: Path) -> OpenLibrary:
    """Build, open and compare: the cache gets nothing that was not compared."""
    record = None
    if graph.samples is None:
        library.build(graph, folder)
    else:
        record = library.build_int8(graph, folder)
        (folder / INT8_RECORD).write_text(to_json(asdict(record)), encoding="utf-8")
    start = time.perf_counter()
    runner = library.open(folder, graph.plan)
    seconds = time.perf_counter() - start
    if record is None:
        check_agreement(library, runner, graph)
    return OpenLibrary(runner, seconds, record, is_new=True)


def read_quantisation(folder: Path) -> Quantisation:
    file = folder / INT8_RECORD
    return validate(Quantisation, json.loads(file.read_text(encoding="utf-8")), where=str(file))


def check_agreement(library: EngineLibrary, runner: Runner, graph: ModelGraph) -> None:
    found = compare(graph.expected, runner(sample_images(graph.plan)))
    if not found.is_close:
        raise EngineError(
            f"the engine {library.name} must compute what eager does, within "
            f"{found.tolerance:.0e} of the largest value, got {found}: use the engine eager"
        )


def library_key(library: EngineLibrary, graph: ModelGraph) -> str:
    int8 = {} if graph.samples is None else {"calibration": graph.samples.digest}
    return make_key(
        engine=library.name,
        plan={name: getattr(graph.plan, name) for name in library.plan_fields},
        model=graph.digest,
        versions=versions_of(library),
        **int8,
    )


def why_only_eager(model: Model, plan: Plan) -> str | None:
    """Why no other engine than eager can compute a model, if so."""
    weights = next(model.parameters())
    if weights.device.type != "cpu":
        return f"the model is on the device {weights.device}, other engines compute on the CPU"
    if weights.dtype is not torch.float32:
        return f"the model has the precision {weights.dtype}, other engines compute in float32"
    if isinstance(model, ExportedModel):
        return "an exported file has a runtime of its own"
    if isinstance(model, RemoteModel):
        return "a service computes with an engine of its own"
    if is_observed(model):
        return "hooks or a replaced forward observe the model, which other engines do not call"
    if plan.shape[1:] != (model.config.channels, *model.config.image_size):
        return "images have another size than the model was made for"
    return None


def reason_of(error: BaseException) -> str:
    """The first line of a message, or the kind of error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(f"{type(error).__name__}: {lines[0][:MAX_REASON]}" if lines else repr(error))
