"""The same work on Ray Data: actors that hold the model, names in, Parquet parts out.

Scheduling, retries of what died and the resuming of rows are Ray's. A list of names is read from
Parquet, because Ray resumes only what it reads; its checkpoint beside the parts says which ids are
in parts that are whole. Every actor computes as `engine` does, so bits are those of one process.
"""

import hashlib
import heapq
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import to_json, utf8_name
from vitrail.data.threads import batched
from vitrail.inference.arrow import PredictionTable, predictions_of, pyarrow
from vitrail.inference.engine import Engine, Job, Output, plan_of
from vitrail.inference.engines.auto import open_runner
from vitrail.inference.engines.catalogue import EAGER
from vitrail.inference.parts import CHECKPOINT, STATE, drop_broken_rows, finished_parts
from vitrail.inference.predict import Prediction, class_names
from vitrail.inference.remote_model import RemoteModel
from vitrail.models.model import Model
from vitrail.weights.atomic import write_file
from vitrail.weights.digest import digest_of

LISTED = "names"
SETTINGS = "_settings.json"
BLOCK = 256  # rows of a part: what is computed again where a worker dies
FEWEST = 4  # parts for each actor where names are few, so that none waits for long
RESERVED = 2  # processors, in Ray's books: one for its filter of known ids, one for small tasks
FILTER = 2**27  # bytes that are set aside for known ids, unless they need more
OBJECTS = 2**28  # bytes of a local store of objects: the model, and blocks on their way


@dataclass(frozen=True)
class Cluster:
    """Where to compute: the address of a cluster, or a local one with this many processors; and the
    engine of each process."""

    address: str | None
    threads: int
    engine: str = EAGER


def ray_module(module: str = "ray") -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            "engine ray needs Ray, which is not installed: pip install 'vitrail[ray]'"
        ) from None


@contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, connected to the cluster or to one that lasts as long as this. What it has to say is no
    result of the command, so it goes to standard error."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry without consent
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what matters is raised
    ray = ray_module()
    with redirect_stdout(sys.stderr):
        _connect(ray, cluster)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, cluster: Cluster) -> None:
    own = {
        "num_cpus": cluster.threads + RESERVED,
        "include_dashboard": False,
        "object_store_memory": OBJECTS,
    }
    try:
        ray.init(
            address=cluster.address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if cluster.address else own),
        )
    except Exception as error:  # Ray raises its base class where a node does not start in time
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        if cluster.address is None:
            raise UserError(f"Ray could not be started on this machine: {reason}") from None
        raise UserError(f"no Ray cluster at {cluster.address}: {reason}") from None


class Worker:
    """An actor: the model, and how its outputs become rows."""

    def __init__(
        self, model: Any, job: Job, rows: Callable[[Sequence[Output]], Any], engine: str
    ) -> None:
        torch.set_num_threads(1)
        loaded: Model = ray_module().get(model)
        opened = open_runner(loaded, plan_of(loaded, job), engine)
        self.engine, self.rows = Engine(loaded, job, opened.run), rows

    def __call__(self, batch: Any) -> Any:
        names = [os.fsdecode(path) for path in batch["path"].to_pylist()]
        table = self.rows(self.engine(names))
        if "row" in batch.column_names:
            table = table.append_column("row", batch["row"])
        return table


@dataclass(frozen=True)
class Listing:
    """A list of names that Ray can read, some names a file, so that several tasks read it. The id
    of a name is its number in the list, or its text where each is in it once."""

    folder: Path
    count: int
    digest: str
    numbered: bool

    @property
    def key(self) -> str:
        return "row" if self.numbered else "id"


def list_names(names: Iterable[str], out: Path, *, numbered: bool) -> Listing:
    """Write the list that belongs to parts in `out`, in place of what an earlier run listed."""
    pa, parquet = pyarrow(), pyarrow("pyarrow.parquet")
    folder, count, digest = out.absolute() / STATE / LISTED, 0, hashlib.sha256()
    with writing(out):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, batch in enumerate(batched(names, BLOCK * FEWEST)):
            columns: dict[str, Any] = {"path": [os.fsencode(name) for name in batch]}
            digest.update(b"\0".join([*columns["path"], b""]))
            if numbered:
                columns["row"] = pa.array(range(count, count + len(batch)), pa.int64())
            else:
                columns["id"] = [utf8_name(name) for name in batch]
            parquet.write_table(pa.table(columns), folder / f"{number:06}.parquet")
            count += len(batch)
    return Listing(folder, count, digest.hexdigest(), numbered)


def refuse_remote(model: Model) -> None:
    if isinstance(model, RemoteModel):
        raise UserError(f"{model.address}: a service computes itself: use another engine than ray")


def compute(
    model: Model,
    listing: Listing,
    out: Path,
    job: Job,
    rows: Callable[[Sequence[Output]], Any],
    cluster: Cluster,
) -> None:
    """A row for every name into parts in `out`; those that are in whole parts are not computed
    again. All nodes must see `out` and the images under the same paths."""
    out = out.absolute()
    with connected(cluster) as ray:
        data = ray_module("ray.data")
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.checkpoint_config = checkpoint = data.checkpoint.CheckpointConfig(
            id_column=listing.key,
            checkpoint_path=str(out / STATE / CHECKPOINT),
            delete_checkpoint_on_success=False,  # it says which parts are whole
        )
        checkpoint.checkpoint_actor_pool_max_size = 1
        checkpoint.checkpoint_actor_memory_bytes = FILTER
        # an actor for each processor; they leave Ray what it needs, or it would wait for ever
        processors = ray.cluster_resources().get("CPU", 1)
        actors = max(int(processors) - (0 if cluster.address else RESERVED), 1)
        block = max(min(BLOCK, -(-listing.count // (FEWEST * actors))), 1)
        held = ray.put(model)
        named = data.read_parquet(str(listing.folder))
        named.repartition(target_num_rows_per_block=block).map_batches(
            Worker,
            fn_constructor_args=(held, job, rows, cluster.engine),
            batch_size=block,
            batch_format="pyarrow",
            num_cpus=max(processors - RESERVED, 0) / actors,
            compute=data.ActorPoolStrategy(min_size=1, max_size=actors),
        ).write_parquet(str(out))


@contextmanager
def predict_on_ray(
    model: Model, names: Iterable[str], out: Path, job: Job, cluster: Cluster, *, top: int
) -> Iterator[Iterator[Prediction]]:
    """Predictions in order, from parts in a hidden directory beside `out`, which goes when they
    have been taken; until then another run with the same settings goes on with it."""
    Engine(model, job)  # it refuses here what it would refuse on every node
    refuse_remote(model)
    work = out.absolute().with_name(f".{out.name}.ray")
    listing = list_names(names, work, numbered=True)
    settings = {
        "digest": digest_of(model),
        "names": listing.digest,
        "top": top,
        "engine": cluster.engine,
        **asdict(job),
    }
    _check_settings(work / SETTINGS, settings)
    drop_broken_rows(work, None, key="row")
    if listing.count:
        compute(model, listing, work, job, PredictionTable(class_names(model), top), cluster)
    yield read_in_order(work)
    shutil.rmtree(work, ignore_errors=True)


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write down what a run is about, or refuse to go on with another one."""
    if not path.exists():
        write_file(path, lambda draft: _write(draft, to_json(settings)))
    elif json.loads(path.read_text(encoding="utf-8")) != settings:
        raise UserError(
            f"{path.parent}: holds the progress of a run with another model, other images or "
            f"settings: "
            "choose another out, or remove that directory"
        )


def _write(draft: Path, text: str) -> None:
    draft.write_text(text, encoding="utf-8")


def read_in_order(folder: Path) -> Iterator[Prediction]:
    """The rows of numbered parts by their numbers; what is not yet their turn waits in memory, and
    parts hold neighbours, so that is little."""
    waiting: list[tuple[int, Prediction]] = []
    for start, part in sorted((first_row(part), part) for part in finished_parts(folder)):
        while waiting and waiting[0][0] < start:
            yield heapq.heappop(waiting)[1]
        table = pyarrow("pyarrow.parquet").read_table(part)
        rows = table["row"].to_pylist()
        for numbered in zip(rows, predictions_of(table), strict=True):
            heapq.heappush(waiting, numbered)
    yield from (one for _, one in sorted(waiting))


def first_row(part: Path) -> int:
    with pyarrow("pyarrow.parquet").ParquetFile(part) as file:
        return min(file.read(columns=["row"])["row"].to_pylist())
