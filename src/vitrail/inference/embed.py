"""Embedding images into a directory of parts, from where the last run stopped."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.json_text import utf8_name
from vitrail.data.reader import Item
from vitrail.inference.arrow import EmbeddingTable
from vitrail.inference.engine import Engine, Job, Output, compute_outputs, plan_of
from vitrail.inference.engines.runner import Runner
from vitrail.inference.on_ray import Cluster, compute, list_names, refuse_remote
from vitrail.inference.parts import (
    Manifest,
    count_broken,
    drop_broken_rows,
    finished_parts,
    is_local,
    known_ids,
    known_rows,
    remove_unfinished,
    repair_parts,
    write_part,
)
from vitrail.models.model import Model
from vitrail.weights.digest import digest_of

ROWS = 1024  # in a part, unless that is more than
BYTES = 2**25


@dataclass
class EmbedProgress:
    """How far it is: images that were there already, that were done now, and of these the ones
    that cannot be read."""

    before: int = 0
    done: int = 0
    broken: int = 0

    @property
    def embedded(self) -> int:
        return self.done - self.broken


def embedding_shape(model: Model, job: Job) -> tuple[int, ...]:
    """The shape of one image's embedding."""
    one = replace(job, batch_size=1)
    return Engine(model, one).runner(torch.zeros(plan_of(model, one).shape)).shape[1:]


def embed_local(
    model: Model,
    names: Iterable[str],
    out: Path,
    job: Job,
    rows: EmbeddingTable,
    *,
    threads: int = 1,
    runner: Runner | None = None,
    on_progress: Callable[[EmbedProgress], None] = lambda progress: None,
) -> EmbedProgress:
    """Every name that has no row yet gets one, broken or not; a name given twice gets one too.
    What could not be read before is tried again.

    Parts are whole when they appear. On Ctrl-C what was computed is written first; after worse the
    rows of one part are computed again.
    """
    remove_unfinished(out)
    there: dict[str, bool] = {}
    for part in finished_parts(out):
        for name, read in known_rows(part).items():
            there[name] = read or there.get(name, False)
    known = {name for name, read in there.items() if read}
    progress = EmbedProgress()
    most = part_rows(embedding_shape(model, job), rows)
    waiting: list[Output] = []
    try:
        for computed in compute_outputs(
            model, skip_known(names, known, progress), job, threads=threads, runner=runner
        ):
            output = rows.check_range(computed)
            progress.done += 1
            progress.broken += output.problem is not None
            if output.problem is None or utf8_name(output.name) not in there:
                waiting.append(output)  # else it has a row that says so
            on_progress(progress)
            if len(waiting) == most:
                write_part(out, rows(waiting))
                waiting = []
    finally:
        if waiting:
            write_part(out, rows(waiting))
    repair_parts(finished_parts(out))
    return progress


def embed_on_ray(
    model: Model, names: Iterable[str], out: Path, job: Job, rows: EmbeddingTable, cluster: Cluster
) -> EmbedProgress:
    """The same by Ray, whose checkpoint knows the rows that it wrote itself."""
    refuse_remote(model)
    progress, before = EmbedProgress(), finished_parts(out)
    here = {
        name for part in before if is_local(part) for name, read in known_rows(part).items() if read
    }
    listing = list_names(skip_known(names, here, progress), out, numbered=False)
    listed = known_ids(sorted(listing.folder.iterdir()))
    drop_broken_rows(out, listed, key="id")
    there = listed & known_ids([part for part in before if not is_local(part)])
    progress.before += len(there)
    progress.done = listing.count - len(there)
    if progress.done:
        compute(model, listing, out, job, rows, cluster)
    new = [part for part in finished_parts(out) if part not in before]
    progress.broken = sum(count_broken(part) for part in new)
    repair_parts(finished_parts(out))
    return progress


def skip_known(
    names: Iterable[str], known: AbstractSet[str], progress: EmbedProgress
) -> Iterator[str]:
    """Names that are not known yet, each once; those that are, counted."""
    seen: set[str] = set()
    for name in names:
        if (key := utf8_name(name)) in seen:
            continue
        seen.add(key)
        if key in known:
            progress.before += 1
        else:
            yield name


def part_rows(shape: tuple[int, ...], rows: EmbeddingTable) -> int:
    """How many rows a part has."""
    each = int(np.prod(shape)) * np.dtype(rows.precision).itemsize
    return max(1, min(ROWS, BYTES // each))


def embed_one(model: Model, image: Item, manifest: Manifest, *, where: str) -> NDArray[Any]:
    """An image as those of a directory were embedded, by the same model."""
    if digest_of(model) != manifest.digest:
        raise UserError(
            f"{where}: its embeddings are of another model than {manifest.model or 'this'}"
        )
    job = Job(
        output=manifest.output,
        batch_size=1,
        exact=manifest.exact,
        native_resolution=manifest.native_resolution,
        max_tokens=manifest.max_tokens,
    )
    output = EmbeddingTable(manifest.precision).check_range(*Engine(model, job)([image]))
    if output.values is None:
        raise UserError(f"{output.name}: {output.problem}")
    return output.values.astype(manifest.precision)
