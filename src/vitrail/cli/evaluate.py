"""`vitrail evaluate`: how good a model is on labelled images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.asking import Loading, load_asked, parse_size, use_threads
from vitrail.cli.display import Watch, progress
from vitrail.cli.explain import known_as
from vitrail.cli.output import plural, say, say_json
from vitrail.core.errors import UserError, nearest

if TYPE_CHECKING:
    from vitrail.data.source import Source
    from vitrail.evaluation.evaluation import Evaluation
    from vitrail.evaluation.judged import Judged
    from vitrail.evaluation.sizes import Sized
    from vitrail.models.model import Model
    from vitrail.weights.results import Results

ENOUGH, MOST_HELD_OUT = 500, 5000  # images of val that choose a temperature
FILES = {"report.html": "report", "evaluation.json": "facts", "predictions.csv": "predictions"}
MOST_CLASSES, MOST_PAIRS, MOST_BROKEN = 5, 5, 10  # lines: --out has all


@dataclass(frozen=True)
class Evaluate:
    """Which model to judge, on which images."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    data: str
    """Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, torchvision:NAME:ROOT,
    digits, planted or fashion-mnist."""
    _: KW_ONLY
    split: str | None = None
    """The part to judge on; by default test, else val."""
    corruptions: bool = False
    """Judge it under 15 common corruptions at 5 severities too: 75 times the work."""
    corrupted_images: int | None = None
    """How many images to corrupt, spread over the part; by default all."""
    resolutions: str | None = None
    """Judge it at other image sizes too: 112,160,224."""
    patch_sizes: str | None = None
    """Judge it with other patch sizes too, in pixels of the image, its kernels resized: 8,16,32."""
    out: str | None = None
    """A directory for report.html, evaluation.json and predictions.csv."""
    overwrite: bool = False
    """Replace these where they exist."""
    by_order: bool = False
    """Take the classes of data and model by their order, whatever they are called."""
    batch_size: int = 64
    """Images computed at once."""
    workers: int = 0
    """Processes that read and prepare images."""
    seed: int = 0
    """Random seed for the bootstrap, the temperature's split and the corruptions."""
    loading: Loading = field(default_factory=Loading)
    threads: int | None = None
    """Threads to compute with."""
    json: bool = False
    """Print a JSON object."""


def evaluate(asked: Evaluate) -> None:
    """Judge a model: headline numbers with confidence intervals, calibration, classes, confusions;
    where asked for, corrupted images and other sizes."""
    from vitrail.data.sources import open_data

    refuse_mistakes(asked)
    resolutions, patches = asked_sizes(asked)
    use_threads(asked.threads)
    known = open_data(asked.data).parts
    if asked.split is not None and asked.split not in known:
        raise UserError(f"{asked.data} has no part {asked.split!r}, {nearest(asked.split, known)}")
    model = load_asked(asked)
    with writing_to(asked) as draft, progress() as watch:
        found = found_of(asked, model, resolutions, patches, watch)
        if draft is not None:
            write(found, draft)
    files = {} if asked.out is None else {FILES[n]: str(Path(asked.out) / n) for n in FILES}
    report(asked, found, files)


def results(asked: Evaluate) -> Results | None:
    from vitrail.weights.results import Results

    return None if asked.out is None else Results(Path(asked.out), "evaluate", asked.overwrite)


def writing_to(asked: Evaluate) -> AbstractContextManager[Path | None]:
    where = results(asked)
    return nullcontext() if where is None else where.draft()


def refuse_mistakes(asked: Evaluate) -> None:
    least = {"--batch-size": (asked.batch_size, 1), "--workers": (asked.workers, 0)}
    if asked.corrupted_images is not None:
        least["--corrupted-images"] = asked.corrupted_images, 1
        if not asked.corruptions:
            raise UserError("--corrupted-images says how many, but there are no --corruptions")
    if (where := results(asked)) is not None:
        where.check(list(FILES))
    for option, (value, lowest) in least.items():
        if value < lowest:
            raise UserError(f"{option} is {value}, but must be at least {lowest}")


Sizes = list[tuple[str, dict[str, Any]]]


def asked_sizes(asked: Evaluate) -> tuple[Sizes, Sizes]:
    """What --resolutions and --patch-sizes ask for: each size as it was said, and as fields."""
    resolutions = [
        (size, {"image_size": parse_size(size, "--resolutions")})
        for size in listed(asked.resolutions, "--resolutions")
    ]
    patches: Sizes = []
    for size in listed(asked.patch_sizes, "--patch-sizes"):
        if not size.isdecimal() or int(size) < 1:
            raise UserError(f"--patch-sizes has {size!r}, expected sides like 8,16,32")
        patches.append((size, {"patch_size": int(size)}))
    return resolutions, patches


def listed(text: str | None, option: str) -> list[str]:
    """
    >>> listed("112, 160", "--resolutions")
    ['112', '160']
    """
    if text is None:
        return []
    sizes = [size.strip() for size in text.split(",") if size.strip()]
    if not sizes:
        raise UserError(f"{option} is {text!r}, expected sizes like 112,160,224")
    return list(dict.fromkeys(sizes))


def in_stem_pixels(patches: Sizes, model: Model) -> Sizes:
    """Patch sizes in pixels of the image as the field has them: a hybrid's patches are cut from
    what its stem makes of the image, in which a pixel stands for `stride` of the image's."""
    from vitrail.models.vit import ViTConfig

    config = model.config
    stride = config.stride // config.patch_size if isinstance(config, ViTConfig) else 1
    for size, _ in patches:
        if int(size) % stride:
            raise UserError(
                f"--patch-sizes has {size}, but must be multiples of {stride}, the stride of the "
                "model's stem"
            )
    return [(size, {"patch_size": int(size) // stride}) for size, _ in patches]


def found_of(
    asked: Evaluate, model: Model, resolutions: Sizes, patches: Sizes, watch: Watch
) -> Evaluation:
    """Everything that was asked for, measured."""
    from vitrail.evaluation.evaluation import Evaluation, judge
    from vitrail.evaluation.robustness import robustness_of
    from vitrail.evaluation.sizes import at_sizes

    patches = in_stem_pixels(patches, model)
    sources, part, notes = opened(asked, model)
    judged = judged_of(asked, model, sources[part], part, watch)
    held_out = None
    if "val" in sources and part != "val":
        held_out = judged_of(asked, model, sources["val"], "val", watch)
    work = {"batch_size": asked.batch_size, "workers": asked.workers, "seed": asked.seed}
    robustness = None
    if asked.corruptions:
        robustness = robustness_of(
            model, judged, most=asked.corrupted_images, watch=told(watch, "corruptions"), **work
        )
    again = partial(load_asked, asked)
    return Evaluation(
        title=known_as(asked.source),
        model=asked.source,
        data=asked.data,
        seed=asked.seed,
        judged=judged,
        preprocessing=model.passport.preprocessing,
        judgement=judge(judged, held_out=held_out, seed=asked.seed),
        robustness=robustness,
        resolutions=at_sizes(
            again, sources[part], resolutions, watch=told(watch, "image sizes"), **work
        ),
        patch_sizes=at_sizes(
            again, sources[part], patches, watch=told(watch, "patch sizes"), **work
        ),
        notes=notes,
    )


def opened(asked: Evaluate, model: Model) -> tuple[dict[str, Source], str, list[str]]:
    """The part to judge on, and val where it can choose a temperature, with the model's classes;
    which part it is; and what was assumed."""
    from vitrail.data.sources import open_data
    from vitrail.evaluation.matching import matched

    # a part that was drawn for the training of this model is drawn again
    share = model.passport.provenance.get("recipe", {}).get("val_share", 0.1)
    parts = open_data(asked.data, val_share=share).parts
    labelled = [name for name in parts if parts[name].targets is not None] or list(parts)
    part = asked.split or next(name for name in ("test", "val", *labelled) if name in labelled)
    chosen = {part: parts[part]}
    if part != "val" and "val" in labelled and enough(len(parts["val"]), len(parts[part])):
        chosen["val"] = fewer(parts["val"])
    notes: list[str] = []
    for name, source in chosen.items():
        names = (asked.source, asked.data)
        chosen[name], note = matched(model, source, names=names, by_order=asked.by_order)
        notes += [note] if note is not None and name == part else []
    if part == "val" and "val" not in open_data(asked.data, val_share=0).parts:
        notes.append(
            f"val was drawn from train, {share:.0%} of it, as training draws it: --split train "
            "judges on the rest"
        )
    return chosen, part, notes


def enough(images: int, judged: int) -> bool:
    """Whether a part can choose a temperature at least as well as half of those that are judged."""
    return images >= min(judged / 2, ENOUGH)


def fewer(source: Source) -> Source:
    """A temperature is one number: of a large part some images, spread over it, will do."""
    import numpy as np

    from vitrail.data.sources.origin import Origin, Subset

    if len(source) <= MOST_HELD_OUT or not isinstance(source, Origin):
        return source
    return Subset(source, np.linspace(0, len(source) - 1, MOST_HELD_OUT).astype(np.int64))


def judged_of(asked: Evaluate, model: Model, source: Source, part: str, watch: Watch) -> Judged:
    from vitrail.evaluation.answers import answers_of
    from vitrail.evaluation.judged import judged_answers

    answers = answers_of(
        model,
        source,
        name=f"{asked.data}, {part}",
        batch_size=asked.batch_size,
        workers=asked.workers,
        watch=told(watch, f"images of {part}"),
    )
    return judged_answers(answers, source, part)


def told(watch: Watch, what: str) -> Callable[[int, int], None]:
    return lambda done, total: watch(what, done, total)


def write(found: Evaluation, out: Path) -> None:
    """The page, the same for machines, and what was said of every image."""
    from vitrail.core.errors import writing
    from vitrail.core.json_text import to_json
    from vitrail.evaluation.evaluation import plain, write_predictions
    from vitrail.evaluation.evaluation_page import evaluation_page

    page, facts, table = (out / name for name in FILES)
    with writing(out):
        page.write_text(evaluation_page(found), encoding="utf-8")
        facts.write_text(to_json(plain(found), indent=1) + "\n", encoding="utf-8")
        write_predictions(found.judged, table)


def report(asked: Evaluate, found: Evaluation, files: dict[str, str]) -> None:
    from vitrail.evaluation.evaluation import all_notes, plain

    if asked.json:
        say_json({**plain(found), "files": files})
        return
    judged = found.judged
    images, classes = plural(judged.images, "image"), plural(len(judged.labels), "class", "classes")
    say(f"{images} of {judged.part}, {classes}")
    for note in all_notes(found):
        say(f"note: {note}")
    print_numbers(found)
    print_classes(judged)
    if found.robustness is not None:
        print_robustness(found)
    print_sizes("image size", found.resolutions)
    print_sizes("patch size", found.patch_sizes)
    broken = list(judged.broken.items())
    for path, reason in broken[:MOST_BROKEN]:
        say(f"left out {path}: {reason}")
    if len(broken) > MOST_BROKEN:
        say(f"left out {len(broken) - MOST_BROKEN} more: --out names all {len(broken)}")
    for name, file in files.items():
        say(f"{name}: {file}")


def print_numbers(found: Evaluation) -> None:
    from vitrail.evaluation.intervals import LEVEL

    measured, tempered = found.judgement.measured, found.judgement.tempered
    for name, value in measured.values.items():
        ends = measured.intervals.get(name)
        say(f"{name:16}{value:.4f}" + (f"  ({ends[0]:.4f} to {ends[1]:.4f})" if ends else ""))
    if measured.intervals:
        say(
            f"in brackets: {LEVEL:.0%} confidence; accuracy, top5 and exact by Wilson, the others "
            f"by {measured.resamples:,} bootstrap samples of the images, all classes together"
        )
    if tempered is None:
        say("temperature     none: too few wrong answers to fit one to")
    else:
        say(
            f"temperature     {tempered.temperature:.4f}  with it ece "
            f"{tempered.reliability.error:.4f}, nll {tempered.loss:.4f}, brier "
            f"{tempered.brier:.4f}; fitted on {tempered.fitted_on}"
            f"{'; at the edge of what was tried' if tempered.at_edge else ''}"
        )


def print_classes(judged: Judged) -> None:
    from vitrail.evaluation.judged import class_scores, most_confused

    marked = [row for row in class_scores(judged) if row.marked]
    key = "average precision" if judged.several else "F1"
    marked.sort(key=lambda row: row.average_precision if judged.several else row.f1)
    for row in marked[:MOST_CLASSES]:
        value = row.average_precision if judged.several else row.f1
        say(
            f"lowest {key}: {row.label} {value:.4f} (precision {dash(row.precision)}, recall "
            f"{dash(row.recall)}, {plural(row.images, 'image')})"
        )
    for pair in [] if judged.several else most_confused(judged, MOST_PAIRS):
        say(f"confused: {pair.truth} taken for {pair.said}: {plural(pair.images, 'image')}")


def dash(value: float) -> str:
    """
    >>> dash(0.5), dash(float("nan"))
    ('0.5000', '–')
    """
    return f"{value:.4f}" if value == value else "–"


def print_robustness(found: Evaluation) -> None:
    from vitrail.evaluation.corruptions import CORRUPTIONS

    known = found.robustness
    assert known is not None
    say(
        f"{known.metric} under corruption (constants for {known.side} pixels, {known.images} "
        f"images, {known.clean:.4f} without), severity 1 to 5 and mean"
    )
    for name, values in zip(CORRUPTIONS, known.values, strict=True):
        row = "".join(f"{value:8.4f}" for value in (*values, values.mean()))
        say(f"  {name:18}{row}")
    say(f"  {'mean':18}{''.join(f'{v:8.4f}' for v in known.values.mean(axis=0))}{known.mean:8.4f}")
    if known.relative_error is not None:
        say(
            f"  mean error {1 - known.mean:.4f}, {known.relative_error:.2f} times that without "
            "corruption (of this model: not the paper's mCE, which divides by AlexNet's)"
        )


def print_sizes(what: str, rows: Sequence[Sized]) -> None:
    for row in rows:
        if row.value is None:
            say(f"{what} {row.size}: {row.problem}")
            continue
        ends = f"  ({row.interval[0]:.4f} to {row.interval[1]:.4f})" if row.interval else ""
        say(f"{what} {row.size:>9}  {row.metric} {row.value:.4f}{ends}")
