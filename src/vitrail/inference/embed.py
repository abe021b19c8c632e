"""Embedding pictures into a directory of parts, from where the last run stopped."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.inference.arrow import Embedded, text
from vitrail.inference.engine import Answer, Engine, Job, answers
from vitrail.inference.on_ray import Cluster, compute, list_names
from vitrail.inference.parts import (
    Manifest,
    count_broken,
    forget_broken,
    is_local,
    known_ids,
    known_rows,
    mend,
    sweep,
    whole_parts,
    write_part,
)
from vitrail.models.model import Model
from vitrail.weights.digest import digest_of

ROWS = 1024  # in a part, unless that is more than
BYTES = 2**25


@dataclass
class Progress:
    """How far it is: images that were there already, that were done now, and of these the ones
    that cannot be read."""

    before: int = 0
    done: int = 0
    broken: int = 0

    @property
    def embedded(self) -> int:
        return self.done - self.broken


@torch.inference_mode()
def shape_of(model: Model, job: Job) -> tuple[int, ...]:
    """The shape of one picture's embedding."""
    how = model.passport.preprocessing
    like = next(model.parameters())
    black = torch.zeros(1, len(how.mean), *how.size).to(like)
    return tuple(Engine(model, job).ask(black).shape[1:])


def embed_here(
    model: Model,
    names: Iterable[str],
    out: Path,
    job: Job,
    rows: Embedded,
    *,
    threads: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Every name that has no row yet gets one, broken or not; a name given twice gets one too.
    What could not be read before is tried again.

    Parts are whole when they appear. On Ctrl-C what was computed is written first; after worse the
    rows of one part are computed again.
    """
    sweep(out)
    there: dict[str, bool] = {}
    for part in whole_parts(out):
        for name, read in known_rows(part).items():
            there[name] = read or there.get(name, False)
    known = {name for name, read in there.items() if read}
    progress = Progress()
    most = part_rows(shape_of(model, job), rows)
    waiting: list[Answer] = []
    try:
        for said in answers(model, unknown(names, known, progress), job, threads=threads):
            answer = rows.fitted(said)
            progress.done += 1
            progress.broken += answer.problem is not None
            if answer.problem is None or text(answer.name) not in there:
                waiting.append(answer)  # else it has a row that says so
            on_progress(progress)
            if len(waiting) == most:
                write_part(out, rows(waiting))
                waiting = []
    finally:
        if waiting:
            write_part(out, rows(waiting))
    mend(whole_parts(out))
    return progress


def embed_on_ray(
    model: Model, names: Iterable[str], out: Path, job: Job, rows: Embedded, cluster: Cluster
) -> Progress:
    """The same by Ray, whose checkpoint knows the rows that it wrote itself."""
    progress, before = Progress(), whole_parts(out)
    here = {
        name for part in before if is_local(part) for name, read in known_rows(part).items() if read
    }
    listing = list_names(unknown(names, here, progress), out, numbered=False)
    listed = known_ids(sorted(listing.folder.iterdir()))
    forget_broken(out, listed, key="id")
    there = listed & known_ids([part for part in before if not is_local(part)])
    progress.before += len(there)
    progress.done = listing.count - len(there)
    if progress.done:
        compute(model, listing, out, job, rows, cluster)
    new = [part for part in whole_parts(out) if part not in before]
    progress.broken = sum(count_broken(part) for part in new)
    mend(whole_parts(out))
    return progress


def unknown(names: Iterable[str], known: AbstractSet[str], progress: Progress) -> Iterator[str]:
    """Names that are not known yet, each once; those that are, counted."""
    seen: set[str] = set()
    for name in names:
        if (key := text(name)) in seen:
            continue
        seen.add(key)
        if key in known:
            progress.before += 1
        else:
            yield name


def part_rows(shape: tuple[int, ...], rows: Embedded) -> int:
    """How many rows a part has."""
    each = int(np.prod(shape)) * np.dtype(rows.precision).itemsize
    return max(1, min(ROWS, BYTES // each))


def embed_one(model: Model, picture: str, manifest: Manifest, *, where: str) -> NDArray[Any]:
    """A picture as those of a directory were embedded, by the same model."""
    if digest_of(model) != manifest.digest:
        raise UserError(f"{where}: its embeddings are of another model than {manifest.model}")
    job = Job(output=manifest.output, batch_size=1, exact=manifest.exact)
    answer = Embedded(manifest.precision).fitted(*Engine(model, job)([picture]))
    if answer.values is None:
        raise UserError(f"{picture}: {answer.problem}")
    return answer.values.astype(manifest.precision)
