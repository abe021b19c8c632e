"""`vitrail evaluate`: how good a model is on labelled images."""

from __future__ import annotations

import json as machine
from dataclasses import KW_ONLY, dataclass

from vitrail.cli.asking import use_threads
from vitrail.core.errors import UserError, nearest


@dataclass(frozen=True)
class Evaluate:
    """Which model to judge, on which images."""

    model: str
    """A Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    data: str
    """Class folders, a manifest, tars, arrays, IDX files, or digits."""
    _: KW_ONLY
    split: str | None = None
    """The part to judge on; by default test, else val."""
    batch_size: int = 64
    """Images computed at once."""
    threads: int | None = None
    """Threads to compute with."""
    json: bool = False
    """Print a JSON object."""


def evaluate(asked: Evaluate) -> None:
    """Judge a model: accuracy, or mean average precision where images have several labels."""

    from vitrail.data.sources import open_data
    from vitrail.evaluate.answers import answers_of
    from vitrail.evaluate.classify import score
    from vitrail.weights.load import load

    use_threads(asked.threads)
    known = open_data(asked.data).parts
    if asked.split is not None and asked.split not in known:
        raise UserError(f"{asked.data} has no part {asked.split!r}, {nearest(asked.split, known)}")
    model = load(asked.model)
    if not model.config.num_classes:
        raise UserError(
            f"{asked.model}: this model has no classes to be right about: give it some by vitrail "
            f"train DATA --from {asked.model}"
        )
    # a part that was drawn for the training of this model is drawn again
    recipe = model.passport.provenance.get("recipe", {})
    parts = open_data(asked.data, val_share=recipe.get("val_share", 0.1)).parts
    name = asked.split or next(part for part in ("test", "val", "train") if part in parts)
    source = parts[name]
    if source.targets is None:
        raise UserError(f"{asked.data}: its images have no labels to compare with")
    labels = model.passport.labels
    if labels is not None and labels != source.labels:
        raise UserError(
            f"{asked.model} knows {', '.join(labels[:3])}, …, but {asked.data} has "
            f"{', '.join(source.labels[:3])}, …: these are not the classes it was trained for"
        )
    answers = answers_of(model, source, name=asked.data, batch_size=asked.batch_size)
    several = source.targets.ndim == 2
    found = score(answers.logits, answers.targets, several=several)
    facts = {
        "part": name,
        "images": len(answers.logits),
        **found.values,
        "broken": answers.broken,
    }
    if asked.json:
        print(machine.dumps(facts))
        return
    print(f"{facts['images']} images of {name}")
    for metric, value in found.values.items():
        print(f"{metric:16}{value:.4f}")
    for path, reason in answers.broken.items():
        print(f"left out {path}: {reason}")
