"""Which split of a data set is evaluated, and which of its classes is which output of the model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.core.errors import UserError, nearest
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Origin, Subset
from vitrail.evaluation.matching import LabelMatch, match_labels
from vitrail.models.model import Model

MIN_HELD_OUT, MAX_HELD_OUT = 500, 5000  # images of val that choose a temperature


@dataclass(frozen=True)
class Split:
    """One split of the data, and which of its classes is which output of the model."""

    name: str
    source: Source
    match: LabelMatch


def check_split(split: str | None, data: str | Path) -> None:
    check_known(split, data, open_data(data).parts)


def check_known(split: str | None, data: str | Path, known: Iterable[str]) -> None:
    """Refuse a split that the data does not have."""
    if split is not None and split not in known:
        hint = nearest(split, known, "available splits:")
        raise UserError(f"{data} has no split {split!r}, {hint}")


def val_share_of(model: Model) -> float:
    return float(model.passport.provenance.get("recipe", {}).get("val_share", 0.1))


def parts_of(model: Model, data: str) -> Mapping[str, Source]:
    """The splits of the data; one that was drawn for the training of this model is drawn again."""
    recipe = model.passport.provenance.get("recipe", {})
    folds, fold = recipe.get("folds"), recipe.get("fold")
    return open_data(data, val_share=val_share_of(model), folds=folds, fold=fold).parts


def open_splits(
    model: Model, names: tuple[str, str], split: str | None, *, by_index: bool
) -> tuple[dict[str, Split], str, list[str]]:
    """The split to evaluate on, and val where it can choose a temperature; which split it is; and
    what was assumed. `names` are those of the model and of the data."""
    passport, data = model.passport, names[1]
    parts = parts_of(model, data)
    labelled = [name for name in parts if parts[name].targets is not None] or list(parts)
    split = split or next(name for name in ("test", "val", *labelled) if name in labelled)
    chosen = {split: parts[split]}
    if split != "val" and "val" in labelled and is_enough(len(parts["val"]), len(parts[split])):
        chosen["val"] = thin_out(parts["val"])
    found: dict[str, Split] = {}
    for name, source in chosen.items():
        match = match_labels(
            passport.labels,
            source.labels if source.targets is not None else (),
            outputs=model.config.num_classes,
            names=names,
            by_index=by_index,
        )
        found[name] = Split(name, source, match)
    notes = [found[split].match.note, multi_label_note(model, parts[split])]
    if split == "val" and "val" not in open_data(data, val_share=0).parts:
        recipe = passport.provenance.get("recipe", {})
        share = f"{val_share_of(model):.0%}"
        if recipe.get("folds"):
            share = f"fold {recipe['fold']} of {recipe['folds']}"
        notes.append(
            f"the data has no val split: evaluated on the same {share} of train "
            "that training holds out"
        )
    return found, split, [note for note in notes if note is not None]


def multi_label_note(model: Model, source: Source) -> str | None:
    """Where one side has several labels an image and the other has one."""
    multi_label = source.targets is not None and source.targets.ndim == 2
    if multi_label == model.passport.multi_label or model.passport.labels is None:
        return None
    if multi_label:
        return "the model was trained for one label an image: each output counts above 0.5"
    return "the model was trained for several labels an image: the highest output counts"


def is_enough(images: int, evaluated: int) -> bool:
    """Whether a split can choose a temperature at least as well as half of those evaluated."""
    return images >= min(evaluated / 2, MIN_HELD_OUT)


def thin_out(source: Source, most: int = MAX_HELD_OUT) -> Source:
    """Of a large split some images, spread over it: a temperature is one number, for which they are
    enough."""
    if len(source) <= most or not isinstance(source, Origin):
        return source
    return Subset(source, np.linspace(0, len(source) - 1, most).astype(np.int64))
