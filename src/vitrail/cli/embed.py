"""`vitrail embed`: what a model makes of pictures before it names them, and which are alike."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.options import (
    ComputeOptions,
    ModelOptions,
    OutputOptions,
    check_batch_size,
    check_threads,
    load_model,
)
from vitrail.cli.output import plural, say, say_json
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError
from vitrail.data.paths import check_paths, pictures

if TYPE_CHECKING:
    from vitrail.inference.embed import Progress
    from vitrail.inference.parts import Manifest
    from vitrail.models.model import Model


@dataclass(frozen=True)
class Embed(ModelOptions, ComputeOptions, OutputOptions):
    """Which model embeds which pictures, or which embeddings to search."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name; with --search or
    --duplicates a directory of embeddings, or its model before it."""
    paths: tuple[str, ...] = ()
    """Files, directories, patterns or http addresses; - reads names from standard input, one a
    line."""
    _: KW_ONLY
    out: str | None = None
    """The directory for Parquet parts. Pictures that have a row there are not computed again."""
    tokens: bool = False
    """Every token's features instead of the pooled ones that the head reads."""
    vector_precision: Literal["float16", "float32"] = "float32"
    """Precision of the stored vectors."""
    search: str | None = None
    """A picture: tell which embedded ones are nearest to it."""
    count: int = 10
    """With --search: how many."""
    duplicates: bool = False
    """Tell which embedded pictures are nearly the same."""
    threshold: float | None = None
    """With --duplicates: the least cosine between the two; by default chosen from the data, so that
    images count that are far nearer to each other than is usual in it."""
    fast: bool = False
    """Decode large photos smaller and resize with torch: faster, and features differ a little. By
    default both are done exactly as the weights' authors did."""
    batch_size: int = 8
    """Pictures computed at once."""
    engine: Literal["local", "ray"] = "local"
    """Compute in this process, or on Ray."""
    address: str | None = None
    """The Ray cluster: auto, or host:port; by default one on this machine."""


def embed(asked: Embed) -> None:
    """Write the features of pictures to Parquet, going on where the last run stopped; find the
    nearest pictures and near duplicates among them."""
    if asked.search is not None and asked.duplicates:
        raise UserError("--search and --duplicates are two questions: ask one")
    if asked.search is not None:
        answer_search(asked, asked.search)
    elif asked.duplicates:
        answer_duplicates(asked)
    else:
        write(asked)


def write(asked: Embed) -> None:
    """Embed all pictures."""
    check(asked)
    from vitrail.inference.arrow import Embedded, pyarrow
    from vitrail.inference.embed import embed_here, embed_on_ray
    from vitrail.inference.engine import Job, torch_threads, usable_threads
    from vitrail.inference.on_ray import Cluster
    from vitrail.inference.parts import open_parts

    pyarrow()
    out, threads = Path(asked.out or ""), usable_threads(asked.threads)
    names = pictures(asked.paths)
    names = chain([next(names)], names)  # none at all is told before anything is written
    model = load_model(asked)
    output: Literal["tokens", "pooled"] = "tokens" if asked.tokens else "pooled"
    job = Job(output=output, batch_size=asked.batch_size, exact=not asked.fast)
    open_parts(out, manifest_of(asked, model, job))
    rows = Embedded(asked.vector_precision)

    def show(progress: Progress) -> None:
        watch("embedding", progress.done, None)

    try:
        if asked.engine == "ray":
            done = embed_on_ray(model, names, out, job, rows, Cluster(asked.address, threads))
        else:
            with progress() as watch, torch_threads(1):
                done = embed_here(model, names, out, job, rows, threads=threads, on_progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped; what is done is in {out}, and the same command goes on from there"
        ) from None
    tell(asked, done)


def check(asked: Embed) -> None:
    """Refuse what cannot be meant before a model is loaded."""
    if asked.out is None:
        raise UserError("missing --out DIR; or add --search IMAGE or --duplicates, and a DIR")
    check_batch_size(asked.batch_size)
    check_threads(asked.threads)
    if asked.address is not None and asked.engine != "ray":
        raise UserError("--address is that of a Ray cluster: add --engine ray")
    check_paths(asked.paths)


def manifest_of(asked: Embed, model: Model, job: Any) -> Manifest:
    from vitrail.inference.embed import shape_of
    from vitrail.inference.parts import Manifest
    from vitrail.weights.digest import digest_of

    path = Path(asked.source)
    return Manifest(
        model=str(path.absolute()) if path.exists() else asked.source,
        digest=digest_of(model),
        output=job.output,
        shape=shape_of(model, job),
        precision=asked.vector_precision,
        exact=job.exact,
        batch_size=asked.batch_size,
        asked={one.name: getattr(asked, one.name) for one in fields(ModelOptions)},
    )


def tell(asked: Embed, done: Progress) -> None:
    facts = {
        "out": asked.out,
        "before": done.before,
        "embedded": done.embedded,
        "broken": done.broken,
    }
    if asked.json:
        say_json(facts)
        return
    known = f", {done.before} were there already" if done.before else ""
    embedded = plural(done.embedded, "image")
    say(f"{asked.out}: {embedded} embedded, {done.broken} cannot be read{known}")


# Questions


def answer_search(asked: Embed, picture: str) -> None:
    """The nearest pictures, one a line."""
    import numpy as np

    from vitrail.inference.embed import embed_one
    from vitrail.inference.nearest import search

    if asked.count < 1:
        raise UserError(f"--count is {asked.count}, but must be at least 1")
    folder, manifest = asked_folder(asked)
    if manifest.output != "pooled":
        raise UserError(f"{folder}: holds tokens, and a search compares pooled features")
    loading = asked if len(asked.paths) == 1 else with_loading(asked, manifest, folder)
    model = load_model(loading)
    vector = embed_one(model, picture, manifest, where=str(folder))
    for match in search(folder, np.asarray(vector), count=asked.count):
        if asked.json:
            say_json(asdict(match))
        else:
            say(f"{match.cosine:.4f}  {match.id}")


def answer_duplicates(asked: Embed) -> None:
    """Pairs of images, one a line, after how many there are and what counts as one."""
    from vitrail.inference.nearest import duplicates

    folder, manifest = asked_folder(asked)
    if manifest.output != "pooled":
        raise UserError(f"{folder}: holds tokens, and duplicates are found by pooled features")
    found = duplicates(folder, threshold=asked.threshold)
    if asked.json:
        say_json(asdict(found))
        return
    limit = f"a cosine of at least {found.threshold:.6g} ({found.threshold_source})"
    say(f"{plural(len(found.pairs), 'pair')} with {limit}")
    for pair in found.pairs:
        say(f"{pair.cosine:.4f}  {pair.one}  {pair.other}")


def asked_folder(asked: Embed) -> tuple[Path, Manifest]:
    """The directory of embeddings: the last of one or two arguments."""
    from vitrail.inference.parts import read_manifest

    if len(asked.paths) > 1:
        raise UserError(f"expected one directory of embeddings, got {len(asked.paths)}")
    folder = Path(asked.paths[0] if asked.paths else asked.source)
    return folder, read_manifest(folder)


def with_loading(asked: Embed, manifest: Manifest, folder: Path) -> Embed:
    """As if the model of the embeddings had been asked for, in the way it was then."""
    from vitrail.core.records import validate
    from vitrail.inference.parts import MANIFEST

    then = validate(ModelOptions, manifest.asked, where=str(folder / MANIFEST))
    return replace(asked, source=manifest.model, **asdict(then))
