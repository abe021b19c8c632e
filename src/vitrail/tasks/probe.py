"""`vitrail.probe`: how good the features of a model are, without training it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from vitrail.core.errors import UserError, nearest, writing
from vitrail.core.eval_mode import eval_mode
from vitrail.core.json_text import to_json
from vitrail.core.ranges import check
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Origin, Subset
from vitrail.evaluation.features import Features, features_of
from vitrail.evaluation.fewshot import few_shot
from vitrail.evaluation.knn import vote
from vitrail.evaluation.linear import ITERATIONS, LIMIT, Probed, needed_bytes, regress, sweep
from vitrail.models.model import Model
from vitrail.tasks.names import name_of
from vitrail.tasks.progress import OnProgress, silent, steps_of
from vitrail.tasks.results import writing_results
from vitrail.weights.load import load

OUT = "probe.json"
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
    images: int | None
    seed: int
    on_progress: OnProgress

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"unknown method {self.method!r}, {nearest(self.method, METHODS)}")
        for name in ("images", "seeds", "steps"):
            if getattr(self, name) is not None:
                check(name, getattr(self, name), at_least=1)
        for name in ("shots", "neighbours"):
            check(name, min(getattr(self, name), default=0), at_least=1)


@dataclass(frozen=True)
class Found:
    """What a method found: for machines, as lines for people, and what has to be said beside it."""

    facts: dict[str, Any]
    lines: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ProbeResult:
    """How well the classes can be told apart by the features of a frozen model: `results` for each
    number of shots or neighbours, or the linear heads; `notes` tell what was left out."""

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
    broken: dict[str, str]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = asdict(self)
        results, _ = facts.pop("results"), facts.pop("table")
        notes, broken = facts.pop("notes"), facts.pop("broken")
        return {**facts, **results, "notes": list(notes), "broken": broken}

    def __repr__(self) -> str:
        return f"ProbeResult({self.model} on {self.data}, {self.method})\n" + "\n".join(self.table)


def probe(
    model: str | Path | nn.Module,
    data: str | Path,
    *,
    method: Method = "fewshot",
    split: str | None = None,
    shots: Sequence[int] = (1, 5, 10, 25),
    seeds: int = 3,
    neighbours: Sequence[int] = (10, 20, 100, 200),
    steps: int | None = None,
    images: int | None = None,
    batch_size: int = 64,
    workers: int = 0,
    seed: int = 0,
    cache: str | Path | None = "runs/features",
    out: str | Path | None = None,
    overwrite: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> ProbeResult:
    """Evaluate the frozen features of a model. "fewshot": the paper's least squares from a few
    images of each class; "knn": the nearest training images vote; "linear": a sweep of linear
    heads, and logistic regression. At most `images` training images are used. `cache` keeps
    features, so that the next probe reads no image again; `out` gets probe.json.

    >>> model = create("vit_ti_16", depth=1, num_classes=10, channels=1, image_size=16)
    >>> found = probe(model, "digits", method="knn", neighbours=[5], cache=None)
    >>> [one["neighbours"] for one in found.results["results"]]
    [5]
    """
    options = Options(
        method, split, tuple(shots), seeds, tuple(neighbours), steps, images, seed, on_progress
    )
    check_work(batch_size, workers)
    with writing_results(out, "probe", [OUT], overwrite=overwrite) as draft:
        loaded = model if isinstance(model, Model) else load(model)
        part, train, test = open_parts(str(data), loaded, options)

        def read(source: Source, which: str) -> Features:
            return features_of(
                loaded,
                source,
                name=f"{data} ({which})",
                deep=method == "linear",
                cache=None if cache is None else Path(cache),
                batch_size=batch_size,
                workers=workers,
                on_progress=steps_of(on_progress, f"reading {which}"),
            )

        with eval_mode(loaded):
            learnt, tested = read(train, "train"), read(test, part)
        found = METHODS[method](options, learnt, tested, len(train.labels))
        result = ProbeResult(
            model=name or name_of(model),
            data=str(data),
            method=method,
            classes=len(train.labels),
            width=learnt.head.shape[1],
            train={"part": "train", "images": len(learnt.indices), "kept": learnt.kept},
            test={"part": part, "images": len(tested.indices), "kept": tested.kept},
            results=found.facts,
            table=tuple(found.lines),
            notes=tuple(found.notes),
            broken={**learnt.broken, **tested.broken},
        )
        if draft is not None:
            with writing(draft):
                (draft / OUT).write_text(to_json(result.facts()) + "\n", encoding="utf-8")
    return result


def check_work(batch_size: int, workers: int) -> None:
    check("batch_size", batch_size, at_least=1)
    check("workers", workers, at_least=0)


def open_parts(data: str, model: Model, options: Options) -> tuple[str, Source, Source]:
    """The name of the part to test on, the images to learn from, and those to test on.

    Where the data has no part to test on, one is drawn from train, as for the training of this
    model; where it has one, all of train is learnt from.
    """
    parts = open_data(data, val_share=0).parts
    if not {options.split or "test", options.split or "val"} & parts.keys():
        share = model.passport.provenance.get("recipe", {}).get("val_share", 0.1)
        parts = open_data(data, val_share=share or 0.1).parts
    if options.split is not None and options.split not in parts:
        raise UserError(f"{data} has no split {options.split!r}, {nearest(options.split, parts)}")
    if "train" not in parts:
        raise UserError(f"{data} has no part to learn from: {', '.join(parts)}, but no train")
    name = options.split or next((part for part in ("test", "val") if part in parts), None)
    if name is None or name == "train":
        raise UserError(
            f"{data}: learning from and testing on the same images says nothing: "
            "give test or val images too"
        )
    train = parts["train"]
    if options.images is not None and options.images < len(train):
        assert isinstance(train, Origin)
        train = Subset(
            train, np.linspace(0, len(train) - 1, options.images).round().astype(np.int64)
        )
    return name, train, parts[name]


def by_few_shots(options: Options, train: Features, test: Features, classes: int) -> Found:
    results = few_shot(
        train.head,
        train.targets,
        test.head,
        test.targets,
        classes=classes,
        shots=options.shots,
        seeds=range(options.seed, options.seed + options.seeds),
    )
    lines = [f"shots  images  accuracy  deviation over {options.seeds} seeds"]
    for one in results:
        lines.append(f"{one.shots:5}{one.images:8}{one.mean:10.4f}{one.deviation:11.4f}")
    facts = [{**asdict(one), "mean": one.mean, "deviation": one.deviation} for one in results]
    counts = np.bincount(train.targets, minlength=classes)
    most = max(one.shots for one in results)
    notes = []
    if few := int((counts < most).sum()):
        notes.append(f"{few} of {classes} classes have fewer than {most} images to learn from")
    if more := sorted({count for count in options.shots if count > counts.max()}):
        told = ", ".join(map(str, more))
        notes.append(f"left out {told} shots: no class has as many training images")
    return Found({"results": facts}, lines, notes)


def by_neighbours(options: Options, train: Features, test: Features, classes: int) -> Found:
    voted = vote(
        train.head, train.targets, test.head, classes=classes, neighbours=options.neighbours
    )
    facts = [
        {"neighbours": count, "accuracy": float((guess == test.targets).mean())}
        for count, guess in voted.items()
    ]
    lines = ["neighbours  accuracy"]
    lines += [f"{one['neighbours']:10}{one['accuracy']:10.4f}" for one in facts]
    more = sorted({count for count in options.neighbours if count not in voted})
    note = f"left out {', '.join(map(str, more))} neighbours: there are not as many training images"
    return Found({"results": facts}, lines, [note] if more else [])


def by_lines(options: Options, train: Features, test: Features, classes: int) -> Found:
    swept = sweep(
        train.pieces,
        train.targets,
        test.pieces,
        test.targets,
        readings=train.readings,
        classes=classes,
        steps=options.steps,
        seed=options.seed,
        on_progress=steps_of(options.on_progress, "training heads"),
    )
    found = Found({"sweep": plain(swept, "rate"), "regression": None}, [TITLES, row("SGD", swept)])
    if swept.highest:
        found.notes.append("the highest learning rate did best: more steps may do better still")
    needed = needed_bytes(len(train.targets), train.head.shape[1], classes)
    if needed > LIMIT:
        found.notes.append(
            f"no logistic regression: it would take {needed / 2**30:.1f} GiB, and at most "
            f"{LIMIT / 2**30:.0f} are taken: images= gives it fewer"
        )
        return found
    done = regress(
        train.head,
        train.targets,
        test.head,
        test.targets,
        seed=options.seed,
        on_progress=steps_of(options.on_progress, "logistic regression"),
    )
    found.facts["regression"] = {**plain(done, "strength"), "converged": done.converged}
    found.lines.append(row("logistic regression", done))
    if not done.converged:
        found.notes.append(f"logistic regression had not converged after {ITERATIONS} iterations")
    return found


TITLES = "head                 reading         with          held out  accuracy"


def plain(one: Probed, choice: str) -> dict[str, Any]:
    return {
        "reading": one.reading,
        choice: one.choice,
        "held_out": one.held_out,
        "accuracy": one.accuracy,
        f"{choice}s": one.choices,
        "tried": dict(one.tried),
    }


def row(head: str, one: Probed) -> str:
    choice = f"{'lr' if head == 'SGD' else 'C'} {one.choice:g}"
    return f"{head:21}{one.reading:16}{choice:14}{one.held_out:8.4f}{one.accuracy:10.4f}"


METHODS: dict[str, Callable[[Options, Features, Features, int], Found]] = {
    "fewshot": by_few_shots,
    "knn": by_neighbours,
    "linear": by_lines,
}
