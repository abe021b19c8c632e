"""`vitrail.embed`: the features of images, in a directory that can be searched."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from torch import nn

from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.core.ranges import check
from vitrail.data.reader import ImageSource
from vitrail.inference.arrow import EmbeddingTable, pyarrow
from vitrail.inference.arrow import Precision as VectorPrecision
from vitrail.inference.embed import EmbedProgress, embed_local, embed_on_ray, embedding_shape
from vitrail.inference.engine import BATCH, Job, OutputKind, torch_threads, usable_threads
from vitrail.inference.on_ray import Cluster
from vitrail.inference.parts import Manifest, check_parts, count_rows, open_parts
from vitrail.inference.predict import iter_images
from vitrail.models.model import Model
from vitrail.tasks.dry_run import DryRun
from vitrail.tasks.duplicates import DuplicateReport, duplicates
from vitrail.tasks.models import Device, ModelSource, Precision, open_model
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.search import SearchResult, loading_facts, search
from vitrail.weights.digest import digest_of


@dataclass(frozen=True)
class Index:
    """A directory of embeddings: how many images had one `before`, were `embedded` now, and of
    those could not be read (`broken`)."""

    out: str
    before: int
    embedded: int
    broken: int
    model: Model = field(repr=False, compare=False)

    def search(self, image: ImageSource, k: int = 10) -> SearchResult:
        """The `k` nearest images."""
        return search(self.out, image, k=k, checkpoint=self.model)

    def duplicates(self, *, threshold: float | None = None) -> DuplicateReport:
        """Every two images that are nearly the same."""
        return duplicates(self.out, threshold=threshold)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("out", "before", "embedded", "broken")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How images are embedded."""

    tokens: bool = False
    exact: bool = True
    vector_precision: VectorPrecision = "float32"
    batch_size: int = BATCH
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, at_least=1)
        if self.threads is not None:
            check("threads", self.threads, at_least=1)
        if self.address is not None and self.engine != "ray":
            raise UserError("address is that of a Ray cluster: choose the engine ray too")

    @property
    def job(self) -> Job:
        output: OutputKind = "tokens" if self.tokens else "pooled"
        return Job(output=output, batch_size=self.batch_size, exact=self.exact)


class Keywords(TypedDict, total=False):
    """The options of `embed` that do not decide what it returns."""

    tokens: bool
    exact: bool
    vector_precision: VectorPrecision
    batch_size: int
    engine: Literal["local", "ray"]
    address: str | None
    device: Device
    precision: Precision
    threads: int | None
    on_progress: OnProgress


@overload
def embed(
    model: str | Path | nn.Module | ModelSource,
    images: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    dry_run: Literal[False] = False,
    **options: Unpack[Keywords],
) -> Index: ...
@overload
def embed(
    model: str | Path | nn.Module | ModelSource,
    images: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    dry_run: Literal[True],
    **options: Unpack[Keywords],
) -> DryRun: ...
def embed(
    model: str | Path | nn.Module | ModelSource,
    images: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    tokens: bool = False,
    exact: bool = True,
    vector_precision: VectorPrecision = "float32",
    batch_size: int = BATCH,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    device: Device = None,
    precision: Precision = None,
    threads: int | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> Index | DryRun:
    """Write the features of images (files, directories, patterns, addresses) to Parquet files in
    the directory `out`: what the head reads, or with `tokens` every token. An image that has a row
    there is not computed again, so that a run that was interrupted is resumed by the same call.

    >>> index = embed("pets-model", "photos/", out="vectors")
    >>> index.embedded, index.search("photos/0.png", k=1)[0].id
    (3, 'photos/0.png')
    """
    options = EmbedOptions(
        tokens=tokens,
        exact=exact,
        vector_precision=vector_precision,
        batch_size=batch_size,
        engine=engine,
        address=address,
        threads=threads,
    )
    if isinstance(model, str | Path):
        model = ModelSource(source=str(model))
    elif not isinstance(model, ModelSource):
        model = open_model(model, device=device, precision=precision)
    return embed_images(
        model,
        image_names([images] if isinstance(images, str | Path) else images),
        Path(out),
        options,
        device=device,
        precision=precision,
        dry_run=dry_run,
        on_progress=on_progress,
    )


def image_names(images: Iterable[str | Path]) -> Iterator[str]:
    for item in iter_images(images):
        if not isinstance(item, str):
            raise UserError("embed needs paths or addresses, whose names are the ids of its rows")
        yield item


def embed_images(
    model: Model | ModelSource,
    names: Iterable[str],
    out: Path,
    options: EmbedOptions,
    *,
    device: Device = None,
    precision: Precision = None,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> Index | DryRun:
    """Embed every image that has no row in `out` yet."""
    pyarrow()
    rest = iter(names)
    names = chain([next(rest)], rest)  # where there is none, it is said before anything is written
    source = model if isinstance(model, ModelSource) else None
    loaded = model if isinstance(model, Model) else model.load(device=device, precision=precision)
    with eval_mode(loaded):
        manifest = manifest_of(source, loaded, options)
        if dry_run:
            check_parts(out, manifest)
            details = {"images": sum(1 for _ in names), "before": count_rows(out)}
            return DryRun("embed", str(out), {**details, "shape": list(manifest.shape)})
        open_parts(out, manifest)
        done = compute_embeddings(loaded, names, out, options, on_progress)
    return Index(str(out), done.before, done.embedded, done.broken, loaded)


def compute_embeddings(
    model: Model, names: Iterable[str], out: Path, options: EmbedOptions, on_progress: OnProgress
) -> EmbedProgress:
    """In this process, or on Ray."""
    threads, rows = usable_threads(options.threads), EmbeddingTable(options.vector_precision)
    try:
        if options.engine == "ray":
            cluster = Cluster(options.address, threads)
            return embed_on_ray(model, names, out, options.job, rows, cluster)
        with torch_threads(1):
            return embed_local(
                model,
                names,
                out,
                options.job,
                rows,
                threads=threads,
                on_progress=lambda now: on_progress("embedding", now.done, None),
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped; what is done is in {out}, and the same command resumes from there"
        ) from None


def manifest_of(source: ModelSource | None, model: Model, options: EmbedOptions) -> Manifest:
    path = Path(source.source) if source is not None else Path()
    name = "" if source is None else source.source
    return Manifest(
        model=str(path.absolute()) if name and path.exists() else name,
        digest=digest_of(model),
        output=options.job.output,
        shape=embedding_shape(model, options.job),
        precision=options.vector_precision,
        exact=options.exact,
        batch_size=options.batch_size,
        loading={} if source is None else loading_facts(source, model),
    )
