"""`vitrail predict`: what a model says of pictures."""

from __future__ import annotations

import json as machine
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitrail.cli.asking import Loading, check_batch_size, check_threads, load_asked
from vitrail.cli.display import progress
from vitrail.core.errors import UserError
from vitrail.infer.paths import STDIN, check_paths, pictures

if TYPE_CHECKING:
    from vitrail.infer.engine import Job
    from vitrail.infer.predict import Prediction
    from vitrail.models.model import Model

__all__ = ["STDIN", "Predict", "pictures", "predict"]


@dataclass(frozen=True)
class Predict:
    """Which model to ask, about which pictures."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    paths: tuple[str, ...] = ()
    """Files, directories, patterns or http addresses; - reads names from standard input, one a
    line."""
    _: KW_ONLY
    top: int = 5
    """How many labels to show for each."""
    out: str | None = None
    """A file for the answers: .jsonl, .csv or .parquet."""
    overwrite: bool = False
    """Replace OUT where it exists."""
    exact: bool = False
    """Decode and resize exactly as the weights' authors did; slower on large photos."""
    batch_size: int = 8
    """Pictures computed at once."""
    engine: Literal["local", "ray"] = "local"
    """Compute in this process, or on Ray, which goes on where a run into the same OUT stopped."""
    address: str | None = None
    """The Ray cluster: auto, or host:port; by default one on this machine."""
    loading: Loading = field(default_factory=Loading)
    threads: int | None = None
    """Threads to decode and compute with; by default one for each processor."""
    json: bool = False
    """Print a JSON object a line."""


def predict(asked: Predict) -> None:
    """Label pictures with a trained model; one that cannot be read is a line with its reason."""
    check_paths(asked.paths)
    check(asked)
    from vitrail.infer.writers import as_json, as_line, counted, write_predictions, writer_of

    if asked.out is not None:
        writer_of(Path(asked.out))
    model = load_asked(asked)
    warn_untrained(model)
    with answering(asked, model) as found:
        if asked.out is None:
            for one in found:
                print(as_json(one) if asked.json else as_line(one), flush=True)
            return
        told = {"out": asked.out, "pictures": 0, "broken": 0}
        with progress() as watch:

            def count(number: int, broken: int) -> None:
                told.update(pictures=number, broken=broken)
                watch("predicting", number, None)

            rows = counted(found, count)
            top = min(asked.top, model.config.num_classes)
            write_predictions(Path(asked.out), rows, top=top, overwrite=asked.overwrite)
    tell(told, json=asked.json)


def warn_untrained(model: Model) -> None:
    """A head for other classes than its checkpoint had begins with zeros."""
    head = [weights for name, weights in model.named_parameters() if name.startswith("head")]
    if head and not any(weights.any() for weights in head):
        print("note: the model's head is new, and says the same of every picture", file=sys.stderr)


def check(asked: Predict) -> None:
    """Refuse what cannot be meant before a model is loaded."""
    if asked.top < 1:
        raise UserError(f"--top is {asked.top}, but must be at least 1")
    check_batch_size(asked.batch_size)
    check_threads(asked.threads)
    if asked.address is not None and asked.engine != "ray":
        raise UserError("--address is that of a Ray cluster: say --engine ray too")
    if asked.engine == "ray" and asked.out is None:
        raise UserError("--engine ray needs --out FILE, beside which it keeps what is done")
    if asked.out is not None and not asked.overwrite and Path(asked.out).exists():
        raise UserError(f"{asked.out}: exists already: choose another name, or say --overwrite")


@contextmanager
def answering(asked: Predict, model: Model) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, from the engine that was asked for."""
    from vitrail.infer.engine import Job

    job = Job(output="scores", batch_size=asked.batch_size, exact=asked.exact)
    if asked.engine == "ray":
        from vitrail.infer.engine import usable_threads
        from vitrail.infer.on_ray import Cluster, predict_on_ray

        out = Path(asked.out or "")
        cluster = Cluster(asked.address, usable_threads(asked.threads))
        names = pictures(asked.paths)
        try:
            with predict_on_ray(model, names, out, job, cluster, top=asked.top) as found:
                yield found
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "stopped; what is done is kept, and the same command goes on from there"
            ) from None
    else:
        with predict_here(model, pictures(asked.paths), job, asked) as found:
            yield found


@contextmanager
def predict_here(
    model: Model, names: Iterator[str], job: Job, asked: Predict
) -> Iterator[Iterator[Prediction]]:
    """A few pictures are not worth a batch, nor threads of ours: torch's compute them sooner."""
    from dataclasses import replace

    from vitrail.infer.engine import answers, torch_threads, usable_threads
    from vitrail.infer.predict import fitting, labels_of, rank

    threads, labels = usable_threads(asked.threads), labels_of(model)
    size, names = fitting(names, job.batch_size)
    few = size < job.batch_size
    ours, torchs = (1, threads) if few else (threads, 1)
    with torch_threads(torchs):
        found = answers(model, names, replace(job, batch_size=size), threads=ours)
        yield (rank(answer, labels, asked.top) for answer in found)


def tell(told: dict[str, object], *, json: bool) -> None:
    if json:
        print(machine.dumps(told))
        return
    print(f"{told['out']}: {told['pictures']} pictures, {told['broken']} cannot be read")
