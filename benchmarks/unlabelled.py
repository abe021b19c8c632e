"""What images teach without labels: encoders pre-trained on all of them, then fine-tuned with the
labels of 1 % and of 10 %, beside the same encoders from scratch.

An encoder has the shape that `vitrail pretrain` chooses for the data, and learns from every
training image by its recipe, for as many looks at images as `Field` says. The labelled images are
the same number of every class, drawn by the seed. Fine-tuning takes the same steps from scratch as
from each encoder. Learning rates are the best of `RATES` at 1 % on a seed that is not counted
(`--try`): from scratch with the ViT, from encoders with MAE's, and then for all. Judged are the
weights of the last step, on all test images. ViT and BEiT are different encoders, so each has a row
from scratch. Costs are seconds of one core.

    python -m benchmarks.unlabelled [fashion-mnist | cifar10] --runs DIRECTORY [--only START ...]
        [--share SHARE ...] [--seeds N] [--try]

What a directory of runs holds already is not done again, so a table can be made in several sittings
and by several processes; without anything left to do the table is printed.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
import torch

from vitrail.core.randomness import words
from vitrail.data.source import Source, Splits
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Subset
from vitrail.evaluation.classify import score
from vitrail.recipes.choice import Choice
from vitrail.recipes.pretrain import choose_pretraining
from vitrail.recipes.small import augmentation_for, size_of
from vitrail.training.goal import Labels, Masked, MaskedObjective
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Monitor, Optimiser, Recipe, Schedule

GOLDEN = Path("../shared/golden")
GOAL = 3.0  # points at 1 %, of at least masked-patch and mae
TRIED = 99  # the seed that chooses settings and is not counted
RATES = (5e-4, 1e-3, 2e-3)


@dataclass(frozen=True)
class Field:
    """Where it is run: looks at images by each objective; then, for each share of the labels, steps
    of 32 images; and the learning rates from scratch and from an encoder."""

    data: str
    looks: dict[str, int]
    steps: dict[float, int]
    scratch_lr: float
    tuned_lr: float
    layer_decay: float  # from an encoder; from scratch all layers learn alike


FIELDS = {
    "fashion-mnist": Field(
        "fashion-mnist",
        looks={
            "mae": 300_000,
            "masked-patch": 300_000,
            "simmim": 300_000,
            "beit": 150_000,
            "tokenizer": 60_000,
        },
        steps={0.01: 600, 0.1: 1_200},
        scratch_lr=2e-3,
        tuned_lr=2e-3,
        layer_decay=0.75,
    ),
    "cifar10": Field(
        "cifar10",
        looks={
            "mae": 400_000,
            "masked-patch": 400_000,
            "simmim": 200_000,
            "beit": 150_000,
            "tokenizer": 60_000,
        },
        steps={0.01: 200, 0.1: 600},
        scratch_lr=2e-3,
        tuned_lr=2e-3,
        layer_decay=0.5,
    ),
}


@dataclass(frozen=True)
class Start:
    """Where fine-tuning begins: from scratch, or from what an objective has made of the images."""

    family: str
    objective: MaskedObjective | None
    target: str | None = None  # of masked-patch


STARTS = {
    "scratch": Start("vit", None),
    "masked-patch": Start("vit", "masked-patch"),
    "masked-patch-downsized": Start("vit", "masked-patch", "downsized"),
    "mae": Start("vit", "mae"),
    "simmim": Start("vit", "simmim"),
    "scratch-beit": Start("beit", None),
    "beit": Start("beit", "beit"),
}


@dataclass(frozen=True)
class Result:
    """One fine-tuned model."""

    data: str
    start: str
    share: float
    seed: int
    lr: float
    layer_decay: float
    steps: int
    accuracy: float
    seconds: float


def main() -> None:
    """Do what is left of a table, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", choices=list(FIELDS), help="default: both")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(STARTS), default=list(STARTS))
    parser.add_argument("--share", nargs="*", type=float, default=[0.01, 0.1])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--try", dest="trying", action="store_true", help="settings, not the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fields = [FIELDS[arguments.data]] if arguments.data else list(FIELDS.values())
    for field in fields:
        work = Work(field, arguments.runs / field.data)
        for start, share in product(arguments.only, arguments.share):
            if arguments.trying:
                for lr in RATES:
                    work.tuned(start, share, TRIED, lr)
                continue
            for seed in range(arguments.seeds):
                work.tuned(start, share, seed, rate_of(field, start))
        print_table(field, work, seeds=arguments.seeds)


@dataclass(frozen=True)
class Work:
    """The runs of one data set, done or to do."""

    field: Field
    runs: Path

    @property
    def splits(self) -> Splits:
        if self.field.data != "cifar10":
            return open_data(self.field.data, val_share=0)
        golden = Path(os.environ.get("VITRAIL_GOLDEN", GOLDEN))
        return open_data(str(golden / "cifar10"), val_share=0)

    def pretrained(self, name: str) -> Path:
        """The encoder that a start makes of all images, or the tokenizer; its cost is in
        seconds.json."""
        out = self.runs / name
        if (out / "seconds.json").exists():
            return out / "last"
        begin = STARTS.get(name, Start("tokenizer", "tokenizer"))
        objective = begin.objective
        assert objective is not None
        tokenizer = str(self.pretrained("tokenizer")) if objective == "beit" else None
        splits = self.splits
        choice = Choice(data=self.field.data, train=splits["train"])
        recipe = choose_pretraining(objective, choice, tokenizer=tokenizer)
        assert isinstance(recipe.goal, Masked)
        looks = self.field.looks[objective]
        steps = looks // recipe.batch_size
        recipe = replace(
            recipe,
            goal=replace(recipe.goal, options={"target": begin.target} if begin.target else {}),
            schedule=replace(recipe.schedule, steps=steps, warmup=steps // 20),
            monitor=Monitor(eval_every_epochs=looks / len(splits["train"]) / 4),
        )
        task = prepare_task(recipe, splits, scorer)
        began = time.process_time()
        Trainer(task, out).run(resume=(out / "steps").exists())
        (out / "seconds.json").write_text(json.dumps(time.process_time() - began))
        return out / "last"

    def seconds(self, name: str) -> float:
        path = self.runs / name / "seconds.json"
        took = float(json.loads(path.read_text())) if path.exists() else 0.0
        return took + (self.seconds("tokenizer") if name == "beit" else 0.0)

    def tuned(self, start: str, share: float, seed: int, lr: float) -> None:
        """One line of results.jsonl, unless it is there."""
        begin, steps = STARTS[start], self.field.steps[share]
        decay = self.field.layer_decay if begin.objective else 1.0
        arguments = (start, share, seed, lr, decay, steps)
        if any(
            arguments == (o.start, o.share, o.seed, o.lr, o.layer_decay, o.steps)
            for o in self.results()
        ):
            return
        splits = self.splits
        train = labelled(splits["train"], share, seed)
        side, channels = size_of(train)
        recipe = Recipe(
            data=self.field.data,
            goal=Labels(smoothing=0.1),
            optimiser=Optimiser(lr=lr, weight_decay=0.05, layer_decay=decay),
            schedule=Schedule(steps=steps, warmup=steps // 10),
            augmentation=augmentation_for(side, mirrored=channels == 3),
            batch_size=32,
            ema_decay=0.99,
            monitor=Monitor(eval_every_epochs=1e9),
            seed=seed,
        )
        parts = Splits({**splits.parts, "train": train})
        task = prepare_task(self.begun(recipe, start), parts, scorer)
        began = time.process_time()
        out = self.runs / "tuned" / f"{start}-{share:g}-{seed}-{lr:g}-{decay:g}"
        outcome = Trainer(task, out).run()
        assert outcome.run_state.best is not None
        took = time.process_time() - began
        result = Result(self.field.data, *arguments, outcome.run_state.best, took)
        with (self.runs / "results.jsonl").open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(result, flush=True)

    def begun(self, recipe: Recipe, start: str) -> Recipe:
        """With the encoder, or with a fresh one of the same shape."""
        begin = STARTS[start]
        if begin.objective is not None:
            return replace(recipe, start=str(self.pretrained(start)))
        name: Literal["beit", "mae"] = "beit" if begin.family == "beit" else "mae"
        choice = Choice(data=recipe.data, train=self.splits["train"])
        fresh = choose_pretraining(name, choice, tokenizer=None)
        fields = dict(fresh.fields)
        if begin.family == "beit":  # which a pre-trained one becomes by itself
            fields |= {"relative_bias": "block", "pool": "mean"}
        return replace(recipe, model=fresh.model, fields=fields)

    def results(self) -> Iterator[Result]:
        path = self.runs / "results.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            yield Result(**json.loads(line))


def scorer(answers: Any, targets: Any) -> tuple[str, dict[str, float]]:
    scores = score(answers, targets, multi_label=False)
    return scores.key, scores.values


def rate_of(field: Field, start: str) -> float:
    return field.tuned_lr if STARTS[start].objective else field.scratch_lr


def labelled(train: Any, share: float, seed: int) -> Source:
    """The same number of images of every class, drawn by the seed."""
    targets = np.asarray(train.targets)
    count = round(share * len(targets) / len(train.labels))
    order = np.argsort(words("labels", seed, np.arange(len(targets))), kind="stable")
    chosen = [order[targets[order] == label][:count] for label in range(len(train.labels))]
    return Subset(train, np.sort(np.concatenate(chosen)))


def print_table(field: Field, work: Work, *, seeds: int) -> None:
    """Mean and deviation of every start, and how far it is from its own scratch."""
    found: dict[tuple[str, float], list[float]] = {}
    for one in work.results():
        decay = field.layer_decay if STARTS[one.start].objective else 1.0
        chosen = one.lr == rate_of(field, one.start) and one.layer_decay == decay
        if one.seed < seeds and chosen:
            found.setdefault((one.start, one.share), []).append(100 * one.accuracy)
    shares = list(field.steps)
    heads = "".join(f" {share:.0%} of labels | |" for share in shares)
    print(f"\n| {field.data} | looks | pre-training |{heads}")
    print("|---|---|---|" + "---|---|" * len(shares))
    for start, begin in STARTS.items():
        cells = []
        for share in shares:
            values = found.get((start, share), [])
            base = found.get(("scratch-beit" if begin.family == "beit" else "scratch", share), [])
            if not values:
                cells += ["", ""]
                continue
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            gain = f"{mean(values) - mean(base):+.2f}" if base and begin.objective else ""
            cells += [f"{mean(values):.2f}{spread} ({len(values)})", gain]
        if not any(cells):
            continue
        looks, cost = "", ""
        if begin.objective is not None:
            looks = f"{field.looks[begin.objective]:,}"
            cost = f"{work.seconds(start):,.0f} s"
        print(f"| {start} | {looks} | {cost} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
