"""`vitrail.probe`: how good the features of a model are, without training it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import numpy as np

from vitrail.core.broken import BrokenImage, list_broken
from vitrail.core.errors import UserError, nearest
from vitrail.core.eval_mode import eval_mode
from vitrail.core.json_text import plain_values
from vitrail.core.ranges import check_count, check_counts
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Origin, Subset
from vitrail.evaluation.fewshot import few_shot
from vitrail.evaluation.intervals import wilson_interval
from vitrail.evaluation.knn import knn_predict
from vitrail.evaluation.linear import (
    MAX_BYTES,
    MAX_ITERATIONS,
    LinearProbe,
    SweepOptions,
    fit_logistic_regression,
    needed_bytes,
    sweep_heads,
)
from vitrail.inference.engines.catalogue import AUTO, EAGER, check_engine
from vitrail.inference.features import Features, Reading, compute_features
from vitrail.inference.packing import check_native
from vitrail.models.model import Model
from vitrail.models.packing import native_size_of
from vitrail.pages.probe import ProbeRow, probe_page
from vitrail.pages.render import percent
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun, plan_images
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.keywords import ProbeKeywords
from vitrail.tasks.models import AnyModel, Device, Precision, open_model
from vitrail.tasks.names import name_of
from vitrail.tasks.progress import OnProgress, silent, steps_of
from vitrail.tasks.results import writing_results
from vitrail.tasks.splits import check_known
from vitrail.tasks.threads import use_threads

FACTS = "probe.json"
FILES = (PAGE, FACTS)
AXES = {"fewshot": "images of each class", "knn": "neighbours", "linear": "head"}
TITLES = "head                 features        with          held out  accuracy"

HEADS = (("SGD", "sweep", "learning_rate"), ("logistic regression", "regression", "C"))

Method = Literal["fewshot", "knn", "linear"]


@dataclass(frozen=True)
class Options:
    """What decides the result of a probe, beside the model and the data."""

    method: Method
    split: str | None
    shots: tuple[int, ...]
    seeds: int
    neighbours: tuple[int, ...]
    steps: int | None
    max_images: int | None
    seed: int
    on_progress: OnProgress

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"unknown method {self.method!r}, {nearest(self.method, METHODS)}")
        for name in ("max_images", "seeds", "steps"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), at_least=1)


@dataclass(frozen=True)
class Found:
    """The results of a method for machines, as lines for people, and notes."""

    facts: dict[str, Any]
    lines: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class ProbeResult(HtmlRecord):
    """How well the features of a frozen model separate the classes: `results` for each number of
    shots or neighbours, or the linear heads, and the same as a `table` of text; `notes` list what
    was left out."""

    model: str
    data: str
    method: str
    classes: int
    width: int
    train: dict[str, Any]
    test: dict[str, Any]
    results: dict[str, Any]
    table: tuple[str, ...]
    notes: tuple[str, ...]
    broken: tuple[BrokenImage, ...]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = asdict(self)
        results, _ = facts.pop("results"), facts.pop("table")
        notes, broken = facts.pop("notes"), facts.pop("broken")
        return plain_values({**facts, **results, "notes": notes, "broken": broken})

    def __repr__(self) -> str:
        return f"ProbeResult({self.model} on {self.data}, {self.method})\n" + "\n".join(self.table)

    def html(self) -> str:
        """The page: accuracy for each setting, as a table and a chart."""
        return probe_page(self.facts(), list(page_rows(self)), AXES[self.method])


@overload
def probe(
    model: AnyModel,
    data: str | Path,
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[ProbeKeywords],
) -> ProbeResult: ...
@overload
def probe(
    model: AnyModel,
    data: str | Path,
    *,
    dry_run: bool,
    **options: Unpack[ProbeKeywords],
) -> ProbeResult | DryRun: ...
def probe(
    model: AnyModel,
    data: str | Path,
    *,
    method: Method = "fewshot",
    split: str | None = None,
    shots: int | Sequence[int] = (1, 5, 10, 25),
    seeds: int = 3,
    neighbours: int | Sequence[int] = (10, 20, 100, 200),
    steps: int | None = None,
    max_images: int | None = None,
    batch_size: int = 64,
    workers: int = 0,
    engine: str = AUTO,
    native_resolution: bool = False,
    max_tokens: int | None = None,
    device: Device = "auto",
    threads: int | None = None,
    precision: Precision = None,
    seed: int = 0,
    cache: str | Path | None = "runs/features",
    out: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> ProbeResult | DryRun:
    """Evaluate the frozen features of a model. "fewshot": the paper's least squares from a few
    images of each class; "knn": the nearest training images vote; "linear": a sweep of linear
    heads, and logistic regression. At most `max_images` training images are used. `cache` keeps
    features, so that the next probe reads no image again; `out` gets report.html and probe.json.
    `engine` computes features, as in `predict`; "linear" also reads blocks, which eager alone
    gives, of images of one size. `native_resolution` and `max_tokens` are as in `predict`.
    `dry_run` checks everything and returns what would be computed.

    >>> model = create("vit_ti_16", depth=1, num_classes=10, channels=1, image_size=16)
    >>> found = probe(model, "digits", method="knn", neighbours=[5], cache=None)
    >>> [one["neighbours"] for one in found.results["results"]]
    [5]
    """
    few, near = some_counts("shots", shots), some_counts("neighbours", neighbours)
    options = Options(method, split, few, seeds, near, steps, max_images, seed, on_progress)
    check_count("batch_size", batch_size, at_least=1)
    check_count("workers", workers, at_least=0)
    check_reading(method, engine, native_resolution, max_tokens)
    check_not_swapped(model, data)
    how = {"overwrite": overwrite, "dry_run": dry_run}
    with use_threads(threads), writing_results(out, "probe", FILES, **how) as draft:
        loaded = open_model(model, device=device, precision=precision)
        native = native_size_of(loaded, max_tokens) if native_resolution else None
        sources = open_splits(str(data), loaded, options)
        names = (name or name_of(model), str(data))
        if dry_run:
            return plan(names, sources, {"method": method, "engine": engine}, batch_size, out)
        compute = partial(
            compute_features,
            loaded,
            with_blocks=method == "linear",
            cache=None if cache is None else Path(cache),
            engine=engine,
            reading=Reading(batch_size, workers, native),
        )
        with eval_mode(loaded):
            features = compute_all(compute, sources, str(data), on_progress)
        classes = len(sources["train"].labels)
        result = run_probe(options, names, features, classes)
        if draft is not None:
            result.save_report(draft, FACTS)
    return result


def check_reading(method: Method, engine: str, native: bool, max_tokens: int | None) -> None:
    """Refuse what a method cannot read."""
    if method == "linear" and check_engine(engine) not in (AUTO, EAGER):
        raise UserError(f"a linear probe reads blocks: engine must be eager or auto, got {engine}")
    if method == "linear" and native:
        raise UserError("a linear probe reads blocks of images of one size: omit native_resolution")
    check_native(native, max_tokens, engine)


def plan(
    names: tuple[str, str],
    sources: dict[str, Source],
    how: dict[str, str],
    batch_size: int,
    out: str | Path | None,
) -> DryRun:
    images = {split: len(source) for split, source in sources.items()}
    return plan_images(
        "probe", names, images, batch_size=batch_size, out=out, files=FILES, details=how
    )


def compute_all(
    compute: Callable[..., Features], sources: dict[str, Source], data: str, on_progress: OnProgress
) -> dict[str, Features]:
    """The features of each split."""
    return {
        split: compute(
            source, name=f"{data} ({split})", on_progress=steps_of(on_progress, f"reading {split}")
        )
        for split, source in sources.items()
    }


def some_counts(name: str, values: int | Sequence[int]) -> tuple[int, ...]:
    """At least one whole number of at least 1."""
    counts = check_counts(name, values, at_least=1)
    if not counts:
        raise UserError(f"{name} must name at least one number, got none")
    return counts


def run_probe(
    options: Options, names: tuple[str, str], features: dict[str, Features], classes: int
) -> ProbeResult:
    """The result of one method; `names` are those of the model and the data, `features` those of
    train and of the split to test on."""
    (_, train), (split, test) = features.items()
    found = METHODS[options.method](options, train, test, classes)
    return ProbeResult(
        model=names[0],
        data=names[1],
        method=options.method,
        classes=classes,
        width=train.head.shape[1],
        train={"split": "train", "images": len(train.indices), "cached": train.cached},
        test={"split": split, "images": len(test.indices), "cached": test.cached},
        results=found.facts,
        table=tuple(found.lines),
        notes=tuple(found.notes),
        broken=list_broken({**train.broken, **test.broken}),
    )


def open_splits(data: str, model: Model, options: Options) -> dict[str, Source]:
    """The images to learn from, as train, and those to test on, by the name of their split.

    Where the data has no split to test on, one is drawn from train, as for the training of this
    model; where it has one, all of train is learnt from.
    """
    splits = open_data(data, val_share=0).parts
    if not {options.split or "test", options.split or "val"} & splits.keys():
        share = model.passport.provenance.get("recipe", {}).get("val_share", 0.1)
        splits = open_data(data, val_share=share or 0.1).parts
    check_known(options.split, data, splits)
    if "train" not in splits:
        raise UserError(f"{data} must have a train split, got {', '.join(splits)}")
    name = options.split or next((split for split in ("test", "val") if split in splits), None)
    if name is None or name == "train":
        raise UserError(
            f"{data}: a probe must not be tested on its training images: add a test or val split"
        )
    train = splits["train"]
    if options.max_images is not None and options.max_images < len(train):
        assert isinstance(train, Origin)
        train = Subset(
            train, np.linspace(0, len(train) - 1, options.max_images).round().astype(np.int64)
        )
    return {"train": train, name: splits[name]}


def run_few_shot(options: Options, train: Features, test: Features, classes: int) -> Found:
    results = few_shot(
        train.head,
        train.targets,
        test.head,
        test.targets,
        classes=classes,
        shots=options.shots,
        seeds=range(options.seed, options.seed + options.seeds),
    )
    lines = [f"shots  images  accuracy  95% interval      std over {options.seeds} seeds"]
    facts = []
    for one in results:
        ends = interval_of(one.mean, test)
        lines.append(
            f"{one.shots:5}{one.images:8}{one.mean:10.4f}  {ends[0]:.4f} to {ends[1]:.4f}"
            f"{one.deviation:8.4f}"
        )
        mean = {"mean": one.mean, "interval": ends, "deviation": one.deviation}
        facts.append({**asdict(one), **mean})
    counts = np.bincount(train.targets, minlength=classes)
    most = max(one.shots for one in results)
    notes = []
    if few := int((counts < most).sum()):
        notes.append(f"{few} of {classes} classes have fewer than {most} training images")
    if more := sorted({count for count in options.shots if count > counts.max()}):
        skipped = ", ".join(map(str, more))
        notes.append(f"left out {skipped} shots: no class has as many training images")
    return Found({"results": facts}, lines, notes)


def run_knn(options: Options, train: Features, test: Features, classes: int) -> Found:
    predicted = knn_predict(
        train.head, train.targets, test.head, classes=classes, neighbours=options.neighbours
    )
    facts, lines = list[dict[str, Any]](), ["neighbours  accuracy  95% interval"]
    for count, labels in predicted.items():
        accuracy = float((labels == test.targets).mean())
        ends = interval_of(accuracy, test)
        facts.append({"neighbours": count, "accuracy": accuracy, "interval": ends})
        lines.append(f"{count:10}{accuracy:10.4f}  {ends[0]:.4f} to {ends[1]:.4f}")
    more = sorted({count for count in options.neighbours if count not in predicted})
    note = f"left out {', '.join(map(str, more))} neighbours: there are not as many training images"
    return Found({"results": facts}, lines, [note] if more else [])


def run_linear(options: Options, train: Features, test: Features, classes: int) -> Found:
    swept = sweep_heads(
        train.vectors,
        train.targets,
        test.vectors,
        test.targets,
        combinations=train.combinations,
        classes=classes,
        options=SweepOptions(steps=options.steps, seed=options.seed),
        on_progress=steps_of(options.on_progress, "training heads"),
    )
    facts = {"sweep": linear_facts(swept, "learning_rate", test), "regression": None}
    found = Found(facts, [TITLES, table_row("SGD", swept)])
    if swept.at_limit:
        found.notes.append("the highest learning rate did best: more steps may do better still")
    needed = needed_bytes(len(train.targets), train.head.shape[1], classes)
    if needed > MAX_BYTES:
        found.notes.append(
            f"no logistic regression: it needs {needed / 2**30:.1f} GiB of memory, more than "
            f"{MAX_BYTES / 2**30:.0f}: use fewer training images"
        )
        return found
    fitted = fit_logistic_regression(
        train.head,
        train.targets,
        test.head,
        test.targets,
        seed=options.seed,
        on_progress=steps_of(options.on_progress, "logistic regression"),
    )
    found.facts["regression"] = {**linear_facts(fitted, "C", test), "converged": fitted.converged}
    found.lines.append(table_row("logistic regression", fitted))
    if not fitted.converged:
        found.notes.append(f"logistic regression did not converge in {MAX_ITERATIONS} iterations")
    return found


def interval_of(accuracy: float, test: Features) -> tuple[float, float]:
    """What other test images would give, with 95 % confidence."""
    images = len(test.targets)
    return wilson_interval(round(accuracy * images), images)


def page_rows(found: ProbeResult) -> Iterator[ProbeRow]:
    """The settings of a probe, as its page lists them."""
    results = found.results
    for one in results.get("results", ()):
        place = one.get("shots", one.get("neighbours"))
        remarks = {}
        if found.method == "fewshot":
            seeds = f"std over {len(one['accuracies'])} seeds"
            remarks = {"images": f"{one['images']:,}", seeds: percent(one["deviation"])}
        accuracy = one["mean"] if found.method == "fewshot" else one["accuracy"]
        yield ProbeRow(str(place), accuracy, one["interval"], remarks, place)
    for title, name, choice in HEADS if found.method == "linear" else ():
        head = results[name]
        if head is not None:
            remarks = {"features": head["features"], "held out": percent(head["held_out"])}
            remarks["chosen"] = f"{choice} {head[choice]:g}"
            yield ProbeRow(title, head["accuracy"], head["interval"], remarks)


def linear_facts(one: LinearProbe, choice: str, test: Features) -> dict[str, Any]:
    return {
        "features": one.features,
        choice: one.choice,
        "held_out": one.held_out,
        "accuracy": one.accuracy,
        "interval": interval_of(one.accuracy, test),
        f"{choice}s": one.choices,
        "tried": dict(one.tried),
    }


def table_row(head: str, one: LinearProbe) -> str:
    choice = f"{'lr' if head == 'SGD' else 'C'} {one.choice:g}"
    return f"{head:21}{one.features:16}{choice:14}{one.held_out:8.4f}{one.accuracy:10.4f}"


METHODS: dict[str, Callable[[Options, Features, Features, int], Found]] = {
    "fewshot": run_few_shot,
    "knn": run_knn,
    "linear": run_linear,
}
