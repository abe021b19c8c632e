"""`vitrail probe`: how good the features of a model are, without training it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.asking import Loading, load_asked, use_threads
from vitrail.cli.display import MOST_BROKEN, Watch, progress
from vitrail.cli.output import plural, say, say_json
from vitrail.core.errors import UserError, nearest
from vitrail.core.json_text import to_json

if TYPE_CHECKING:
    from vitrail.data.source import Source
    from vitrail.evaluation.features import Features
    from vitrail.evaluation.linear import Probed
    from vitrail.models.model import Model

OUT = "probe.json"
LEAST = {"images": 1, "seeds": 1, "steps": 1, "batch_size": 1, "workers": 0}


@dataclass(frozen=True)
class Probe:
    """Which model's features to judge, on which images, and how."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    data: str
    """Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, torchvision:NAME:ROOT,
    digits, planted or fashion-mnist; one label an image."""
    _: KW_ONLY
    method: Literal["fewshot", "knn", "linear"] = "fewshot"
    """fewshot: the paper's least squares from a few images of each class. knn: the nearest training
    images vote. linear: a sweep of linear heads, and logistic regression."""
    split: str | None = None
    """The part to test on; by default test, else val."""
    shots: tuple[int, ...] = (1, 5, 10, 25)
    """For fewshot: images of each class. May be repeated."""
    seeds: int = 3
    """For fewshot: how many draws of images."""
    neighbours: tuple[int, ...] = (10, 20, 100, 200)
    """For knn: how many neighbours vote. May be repeated."""
    steps: int | None = None
    """For linear: steps of 128 images; by default 12,500, or 100 rounds through a small set."""
    images: int | None = None
    """At most so many training images, spread evenly over the part; by default all."""
    batch_size: int = 64
    """Images that the model computes at once."""
    workers: int = 0
    """Processes that read images."""
    seed: int = 0
    """The first seed of fewshot; for linear the one that holds images out and orders them."""
    cache: str = "runs/features"
    """A directory that keeps features, so that the next probe reads no image again. It may be
    deleted at any time."""
    no_cache: bool = False
    """Neither use features that were kept nor keep any."""
    out: str | None = None
    """A directory for probe.json."""
    overwrite: bool = False
    """Replace probe.json where it exists."""
    loading: Loading = field(default_factory=Loading)
    threads: int | None = None
    """Threads to compute with."""
    json: bool = False
    """Print a JSON object."""


@dataclass
class Found:
    """What a method found: for machines, as lines for people, and what has to be said beside it."""

    facts: dict[str, Any]
    lines: list[str]
    notes: list[str] = field(default_factory=list)


def probe(asked: Probe) -> None:
    """Judge a model's frozen features: few-shot least squares, nearest neighbours, linear heads."""
    for option, least in LEAST.items():
        value = getattr(asked, option)
        if value is not None and value < least:
            name = option.replace("_", "-")
            raise UserError(f"--{name} is {value}, but must be at least {least}")
    for option in ("shots", "neighbours"):
        if (least := min(getattr(asked, option), default=0)) < 1:
            raise UserError(f"--{option} is {least}, but must be at least 1")
    where = None
    if asked.out is not None:
        from vitrail.weights.results import Results

        where = Results(Path(asked.out), "probe", asked.overwrite)
        where.check([OUT])
    use_threads(asked.threads)
    model = load_asked(asked)
    name, train, test = parts_of(asked, model)
    with nullcontext() if where is None else where.draft() as draft:
        with progress() as watch:
            learnt = read(asked, model, train, "train", watch)
            tested = read(asked, model, test, name, watch)
            found = METHODS[asked.method](asked, learnt, tested, len(train.labels), watch)
        facts = facts_of(asked, learnt, tested, found, name, len(train.labels))
        if draft is not None:
            write(draft / OUT, to_json(facts))
    if asked.json:
        say_json(facts)
        return
    report(facts, found)
    if where is not None:
        say(f"written: {where.out / OUT}")


def facts_of(
    asked: Probe, learnt: Features, tested: Features, found: Found, name: str, classes: int
) -> dict[str, Any]:
    """What machines read."""
    return {
        "model": asked.source,
        "data": asked.data,
        "method": asked.method,
        "classes": classes,
        "width": learnt.head.shape[1],
        "train": {"part": "train", "images": len(learnt.indices), "kept": learnt.kept},
        "test": {"part": name, "images": len(tested.indices), "kept": tested.kept},
        **found.facts,
        "notes": found.notes,
        "broken": {**learnt.broken, **tested.broken},
    }


# Images and features


def parts_of(asked: Probe, model: Model) -> tuple[str, Source, Source]:
    """The name of the part to test on, the images to learn from, and those to test on.

    Where the data has no part to test on, one is drawn from train, as for the training of this
    model; where it has one, all of train is learnt from.
    """
    import numpy as np

    from vitrail.data.sources import open_data
    from vitrail.data.sources.origin import Origin, Subset

    parts = open_data(asked.data, val_share=0).parts
    if not {asked.split or "test", asked.split or "val"} & parts.keys():
        share = model.passport.provenance.get("recipe", {}).get("val_share", 0.1)
        parts = open_data(asked.data, val_share=share or 0.1).parts
    if asked.split is not None and asked.split not in parts:
        raise UserError(f"{asked.data} has no part {asked.split!r}, {nearest(asked.split, parts)}")
    if "train" not in parts:
        raise UserError(f"{asked.data} has no part to learn from: {', '.join(parts)}, but no train")
    name = asked.split or next((part for part in ("test", "val") if part in parts), None)
    if name is None or name == "train":
        raise UserError(
            f"{asked.data}: learning from and testing on the same images says nothing: "
            "give test or val images too"
        )
    train = parts["train"]
    if asked.images is not None and asked.images < len(train):
        assert isinstance(train, Origin)
        train = Subset(train, np.linspace(0, len(train) - 1, asked.images).round().astype(np.int64))
    return name, train, parts[name]


def read(asked: Probe, model: Model, source: Source, part: str, watch: Watch) -> Features:
    from vitrail.evaluation.features import features_of

    return features_of(
        model,
        source,
        name=f"{asked.data} ({part})",
        deep=asked.method == "linear",
        cache=None if asked.no_cache else Path(asked.cache),
        batch_size=asked.batch_size,
        workers=asked.workers,
        watch=partial(watch, f"reading {part}"),
    )


# Methods


def by_few_shots(
    asked: Probe, train: Features, test: Features, classes: int, watch: Watch
) -> Found:
    import numpy as np

    from vitrail.evaluation.fewshot import few_shot

    results = few_shot(
        train.head,
        train.targets,
        test.head,
        test.targets,
        classes=classes,
        shots=asked.shots,
        seeds=range(asked.seed, asked.seed + asked.seeds),
    )
    lines = [f"shots  images  accuracy  deviation over {asked.seeds} seeds"]
    for one in results:
        lines.append(f"{one.shots:5}{one.images:8}{one.mean:10.4f}{one.deviation:11.4f}")
    facts = [{**asdict(one), "mean": one.mean, "deviation": one.deviation} for one in results]
    counts = np.bincount(train.targets, minlength=classes)
    most = max(one.shots for one in results)
    notes = []
    if few := int((counts < most).sum()):
        notes.append(f"{few} of {classes} classes have fewer than {most} images to learn from")
    if more := sorted({count for count in asked.shots if count > counts.max()}):
        told = ", ".join(map(str, more))
        notes.append(f"left out {told} shots: no class has as many training images")
    return Found({"results": facts}, lines, notes)


def by_neighbours(
    asked: Probe, train: Features, test: Features, classes: int, watch: Watch
) -> Found:
    from vitrail.evaluation.knn import vote

    said = vote(train.head, train.targets, test.head, classes=classes, neighbours=asked.neighbours)
    facts = [
        {"neighbours": count, "accuracy": float((guess == test.targets).mean())}
        for count, guess in said.items()
    ]
    lines = ["neighbours  accuracy"]
    lines += [f"{one['neighbours']:10}{one['accuracy']:10.4f}" for one in facts]
    more = sorted({count for count in asked.neighbours if count not in said})
    note = f"left out {', '.join(map(str, more))} neighbours: there are not as many training images"
    return Found({"results": facts}, lines, [note] if more else [])


def by_lines(asked: Probe, train: Features, test: Features, classes: int, watch: Watch) -> Found:
    from vitrail.evaluation.linear import ITERATIONS, LIMIT, needed_bytes, regress, sweep

    swept = sweep(
        train.pieces,
        train.targets,
        test.pieces,
        test.targets,
        readings=train.readings,
        classes=classes,
        steps=asked.steps,
        seed=asked.seed,
        watch=partial(watch, "training heads"),
    )
    found = Found({"sweep": said(swept, "rate"), "regression": None}, [TITLES, row("SGD", swept)])
    if swept.highest:
        found.notes.append("the highest learning rate did best: more --steps may do better still")
    needed = needed_bytes(len(train.targets), train.head.shape[1], classes)
    if needed > LIMIT:
        found.notes.append(
            f"no logistic regression: it would take {needed / 2**30:.1f} GiB, and at most "
            f"{LIMIT / 2**30:.0f} are taken: --images gives it fewer"
        )
        return found
    done = regress(
        train.head,
        train.targets,
        test.head,
        test.targets,
        seed=asked.seed,
        watch=partial(watch, "logistic regression"),
    )
    found.facts["regression"] = {**said(done, "strength"), "converged": done.converged}
    found.lines.append(row("logistic regression", done))
    if not done.converged:
        found.notes.append(f"logistic regression had not converged after {ITERATIONS} iterations")
    return found


TITLES = "head                 reading         with          held out  accuracy"


def said(one: Probed, choice: str) -> dict[str, Any]:
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


METHODS = {"fewshot": by_few_shots, "knn": by_neighbours, "linear": by_lines}


# What is told


def report(facts: dict[str, Any], found: Found) -> None:
    for part in (facts["train"], facts["test"]):
        kept = ", from features that were kept (--no-cache reads them again)"
        images = plural(part["images"], "image")
        say(f"{images} of {part['part']}{kept if part['kept'] else ''}")
    classes = plural(facts["classes"], "class", "classes")
    say(f"{classes}, features of {facts['width']} numbers", "", *found.lines)
    if found.notes or facts["broken"]:
        say("")
    for note in found.notes:
        say(f"note: {note}")
    broken = sorted(facts["broken"].items())
    for path, reason in broken[:MOST_BROKEN]:
        say(f"left out {path}: {reason}")
    if len(broken) > MOST_BROKEN:
        say(f"left out {len(broken) - MOST_BROKEN} more: --json names all {len(broken)}")


def write(file: Path, text: str) -> None:
    from vitrail.core.errors import writing

    with writing(file):
        file.write_text(text + "\n", encoding="utf-8")
