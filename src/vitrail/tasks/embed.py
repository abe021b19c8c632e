"""`vitrail.embed`: the features of images, in a directory that can be searched."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args, overload

from vitrail.core.broken import BrokenImage, list_broken
from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.core.html_text import html_table
from vitrail.core.ranges import check_count
from vitrail.data.paths import STDIN
from vitrail.data.reader import ImageSource
from vitrail.inference.arrow import EmbeddingTable, pyarrow
from vitrail.inference.arrow import Precision as VectorPrecision
from vitrail.inference.calibration import Calibration
from vitrail.inference.embed import EmbedProgress, embed_local, embed_on_ray, embedding_shape
from vitrail.inference.engine import (
    BATCH,
    Job,
    OutputKind,
    plan_of,
    torch_threads,
    usable_threads,
)
from vitrail.inference.engines.auto import OpenRunner, open_runner
from vitrail.inference.engines.catalogue import AUTO, EAGER, RAY, split_ray
from vitrail.inference.merging import merge_tokens
from vitrail.inference.on_ray import Cluster
from vitrail.inference.packing import check_native
from vitrail.inference.parts import (
    MANIFEST,
    Manifest,
    check_parts,
    columns_of,
    count_rows,
    finished_parts,
    open_parts,
    problem_column,
    read_manifest,
)
from vitrail.inference.predict import count_ahead, iter_images
from vitrail.inference.quantisation import MAX_DROP, Quantisation
from vitrail.inference.speed_up import SpeedUp
from vitrail.models.model import Model
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun
from vitrail.tasks.duplicates import DuplicateReport, duplicates
from vitrail.tasks.int8 import check_int8, make_calibration, open_float
from vitrail.tasks.models import AnyModel, Device, ModelSource, Precision, source_of
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.search import SearchResult, loading_facts, search
from vitrail.tasks.speed_up import with_speed_up
from vitrail.weights.digest import digest_of


@dataclass(frozen=True, repr=False)
class Index:
    """A directory of embeddings: how many images had one `before` and how many were `embedded` now;
    `broken` are all images of the directory that could not be read. `speed_up` and `quantisation`
    have what merged tokens and int8 cost, if they were wanted."""

    out: str
    before: int
    embedded: int
    broken: tuple[BrokenImage, ...]
    model: Model = field(compare=False)
    speed_up: dict[str, Any] | None = None
    quantisation: Quantisation | None = None

    def search(self, image: ImageSource, k: int = 10) -> SearchResult:
        """The `k` nearest images."""
        return search(self.out, image, k=k, checkpoint=self.model)

    def duplicates(self, *, threshold: float | None = None) -> DuplicateReport:
        """Every two images that are nearly the same."""
        return duplicates(self.out, threshold=threshold)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("out", "before", "embedded", "speed_up")
        quantisation = None if self.quantisation is None else self.quantisation.facts()
        return {
            **{name: getattr(self, name) for name in names},
            "broken": [asdict(one) for one in self.broken],
            "quantisation": quantisation,
        }

    def __repr__(self) -> str:
        images = f"{self.before + self.embedded:,} images, {self.embedded:,} of them new"
        return f"Index({self.out}, {images}, {len(self.broken):,} cannot be read)"

    def _repr_html_(self) -> str:
        return html_table("Index", {**self.facts(), "broken": len(self.broken)})


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How images are embedded."""

    tokens: bool = False
    exact: bool = True
    vector_precision: VectorPrecision = "float32"
    batch_size: int = BATCH
    engine: str = AUTO
    address: str | None = None
    speed_up: float | None = None
    native_resolution: bool = False
    max_tokens: int | None = None
    threads: int | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, at_least=1)
        known = get_args(VectorPrecision)
        if self.vector_precision not in known:
            raise UserError(
                f"vector_precision must be {' or '.join(known)}, got {self.vector_precision!r}"
            )
        if self.threads is not None:
            check_count("threads", self.threads, at_least=1)
        if self.address is not None and not self.on_ray:
            raise UserError("address is for a Ray cluster: use engine ray with it")
        split_ray(self.engine)  # it refuses what is unknown or not installed
        check_native(
            self.native_resolution,
            self.max_tokens,
            self.engine,
            tokens=self.tokens,
            speed_up=self.speed_up is not None,
            int8=self.calibration is not None,
        )

    @property
    def on_ray(self) -> bool:
        return split_ray(self.engine)[0]

    @property
    def job(self) -> Job:
        output: OutputKind = "tokens" if self.tokens else "pooled"
        return Job(
            output=output,
            batch_size=self.batch_size,
            exact=self.exact,
            native_resolution=self.native_resolution,
            max_tokens=self.max_tokens,
        )


class Keywords(TypedDict, total=False):
    """The options of `embed` that do not decide what it returns."""

    tokens: bool
    exact: bool
    vector_precision: VectorPrecision
    batch_size: int
    engine: str
    address: str | None
    speed_up: float | None
    native_resolution: bool
    max_tokens: int | None
    device: Device
    precision: Precision
    calibrate: str | Path | Iterable[str | Path] | None
    max_drop: float
    threads: int | None
    on_progress: OnProgress


@overload
def embed(
    model: AnyModel,
    images: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    dry_run: Literal[False] = False,
    **options: Unpack[Keywords],
) -> Index: ...
@overload
def embed(
    model: AnyModel,
    images: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    dry_run: Literal[True],
    **options: Unpack[Keywords],
) -> DryRun: ...
@overload
def embed(
    model: AnyModel,
    images: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    dry_run: bool,
    **options: Unpack[Keywords],
) -> Index | DryRun: ...
def embed(
    model: AnyModel,
    images: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    tokens: bool = False,
    exact: bool = True,
    vector_precision: VectorPrecision = "float32",
    batch_size: int = BATCH,
    engine: str = AUTO,
    address: str | None = None,
    speed_up: float | None = None,
    native_resolution: bool = False,
    max_tokens: int | None = None,
    device: Device = "auto",
    precision: Precision = None,
    calibrate: str | Path | Iterable[str | Path] | None = None,
    max_drop: float = MAX_DROP,
    threads: int | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> Index | DryRun:
    """Write the features of images (files, directories, patterns, addresses) to Parquet files in
    the directory `out`: what the head reads, or with `tokens` every token. An image that has a row
    there is not computed again, so that a run that was interrupted is resumed by the same call.
    `engine` is that of `predict`; "auto" stays with the engine that a directory was begun with.
    `speed_up` and `precision="int8"` are those of `predict`; int8 is refused if it changes features
    by more than 5 %. `native_resolution` and `max_tokens` are those of `predict` too. A directory
    that was begun with one of them is resumed with the same.

    >>> index = embed("pets-model", "photos/", out="vectors")
    >>> index.embedded, index.search("photos/0.png", k=1)[0].id
    (3, 'photos/0.png')
    """
    fields_of, given = {field.name for field in fields(EmbedOptions)}, locals()
    options = EmbedOptions(**{name: given[name] for name in fields_of & given.keys()})
    check_not_swapped(model, images)
    check_int8(precision, calibrate, max_drop, engine, native_resolution=native_resolution)
    pyarrow()
    count, names = count_names(images)
    names = chain([next(names)], names)  # no image at all is an error before anything is written
    source = source_of(model)
    loaded = open_float(model, device=device, precision=precision, threads=threads)
    loaded, merged = merge_as_begun(loaded, Path(out), options, dry_run=dry_run)
    int8 = make_calibration(loaded, images, precision, calibrate, max_drop)
    options = replace(options, calibration=int8)
    with eval_mode(loaded):
        engine = engine_of(Path(out), options)
        manifest = manifest_of(source, loaded, options, EAGER if engine == AUTO else engine)
        check_parts(Path(out), manifest)
        if dry_run:
            return plan_embedding(names, Path(out), batch_size, list(manifest.shape))
        threads = usable_threads(options.threads)
        with stopping(Path(out)), torch_threads(1):
            opened = None
            if not options.on_ray:
                plan = plan_of(loaded, options.job, callers=threads)
                opened = open_runner(
                    loaded, plan, engine, images=count, calibration=int8, on_progress=on_progress
                )
                manifest = replace(manifest, engine=opened.engine)
            open_parts(Path(out), manifest)
            compute = partial(compute_embeddings, loaded, names, Path(out), options)
            done = compute(manifest.engine, threads, opened, on_progress)
    return to_index(str(out), done, loaded, merged, opened)


def to_index(
    out: str,
    done: EmbedProgress,
    model: Model,
    merged: SpeedUp | None,
    opened: OpenRunner | None,
) -> Index:
    speed_up = None if merged is None else merged.facts()
    quantisation = None if opened is None else opened.quantisation
    broken = broken_rows(Path(out))
    return Index(out, done.before, done.embedded, broken, model, speed_up, quantisation)


def merge_as_begun(
    model: Model, out: Path, options: EmbedOptions, *, dry_run: bool = False
) -> tuple[Model, SpeedUp | None]:
    """The model with tokens merged; a directory that was begun so is resumed with as many. A dry
    run measures nothing."""
    if options.speed_up is None:
        return model, None
    if options.on_ray:
        raise UserError("speed_up is measured on this machine: use another engine than ray")
    if (out / MANIFEST).exists() and (known := read_manifest(out).merged_tokens):
        with eval_mode(model):
            return merge_tokens(model, known), None
    if dry_run:
        return model, None
    return with_speed_up(
        model,
        options.speed_up,
        batch_size=options.batch_size,
        engine=options.engine,
        threads=options.threads,
    )


def image_names(images: Iterable[str | Path]) -> Iterator[str]:
    for item in iter_images(images):
        if not isinstance(item, str):
            raise UserError(
                "embed needs paths or addresses (they become the ids of the rows), got images in "
                "memory"
            )
        yield item


def count_names(images: str | Path | Iterable[str | Path]) -> tuple[int | None, Iterator[str]]:
    """How many images there are at least, unless their names must be waited for on standard input;
    and the names."""
    names = image_names([images] if isinstance(images, str | Path) else images)
    if images == STDIN or (isinstance(images, Sequence) and STDIN in images):
        return None, names
    count, items = count_ahead(names)
    return count, map(str, items)


def broken_rows(out: Path) -> tuple[BrokenImage, ...]:
    """The images of a directory that have a problem in place of an embedding."""
    reasons = dict[str, str]()
    for part in finished_parts(out):
        columns = columns_of(part, "id", problem_column(part))
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        reasons |= {name: problem for name, problem in rows if problem is not None}
    return list_broken(reasons)


def engine_of(out: Path, options: EmbedOptions) -> str:
    """The engine that computes; auto goes on with that of a directory that was begun. Images of
    native resolution are eager's."""
    if options.native_resolution:
        return EAGER
    _, engine = split_ray(options.engine)
    is_open = options.engine in (AUTO, RAY)
    return read_manifest(out).engine if is_open and (out / MANIFEST).exists() else engine


def compute_embeddings(
    model: Model,
    names: Iterable[str],
    out: Path,
    options: EmbedOptions,
    engine: str,
    threads: int,
    opened: OpenRunner | None,
    on_progress: OnProgress,
) -> EmbedProgress:
    """In this process, or where nothing was opened in it on Ray."""
    rows = EmbeddingTable(options.vector_precision)
    if opened is None:
        cluster = Cluster(options.address, threads, engine)
        return embed_on_ray(model, names, out, options.job, rows, cluster)
    return embed_local(
        model,
        names,
        out,
        options.job,
        rows,
        threads=threads,
        runner=opened.run,
        on_progress=lambda now: on_progress("embedding", now.done, None),
    )


def plan_embedding(names: Iterable[object], out: Path, batch_size: int, shape: list[int]) -> DryRun:
    """How many images would be embedded, and how many are already."""
    images = sum(1 for _ in names)
    details: dict[str, Any] = {"images": images, "batches": math.ceil(images / batch_size)}
    return DryRun("embed", str(out), details | {"before": count_rows(out), "shape": shape})


@contextmanager
def stopping(out: Path) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped; finished images are saved in {out}: repeat the command to resume"
        ) from None


def manifest_of(
    source: ModelSource | None, model: Model, options: EmbedOptions, engine: str
) -> Manifest:
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
        engine=engine,
        merged_tokens=model.merged_tokens,
        calibration="" if options.calibration is None else options.calibration.samples.digest,
        native_resolution=options.native_resolution,
        max_tokens=options.max_tokens,
        loading={} if source is None else loading_facts(source, model),
    )
