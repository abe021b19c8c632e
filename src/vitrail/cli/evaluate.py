"""`vitrail evaluate`: how good a model is on labelled images."""

from __future__ import annotations

import json as machine
from dataclasses import KW_ONLY, dataclass

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
    import torch

    from vitrail.data.loader import in_order
    from vitrail.data.sources import open_data
    from vitrail.evaluate.classify import score
    from vitrail.weights.load import load

    if asked.threads:
        torch.set_num_threads(asked.threads)
    parts = open_data(asked.data).parts
    name = asked.split or next(part for part in ("test", "val", "train") if part in parts)
    if name not in parts:
        raise UserError(f"{asked.data} has no part {name!r}, {nearest(name, parts)}")
    source, model = parts[name], load(asked.model)
    if source.targets is None:
        raise UserError(f"{asked.data}: its images have no labels to compare with")
    known = model.passport.labels
    if known is not None and known != source.labels:
        raise UserError(
            f"{asked.model} knows {', '.join(known[:3])}, …, but {asked.data} has "
            f"{', '.join(source.labels[:3])}, …: these are not the classes it was trained for"
        )
    logits, targets, broken = [], [], dict[str, str]()
    with torch.inference_mode():
        for batch in in_order(source, model.passport.preprocessing, asked.batch_size):
            broken |= {bad.path: bad.reason for bad in batch.broken}
            if len(batch.images):
                logits.append(model(batch.images).float())
                targets.append(batch.targets)
    if not logits:
        raise UserError(f"{asked.data}: none of its images can be read")
    several = source.targets.ndim == 2
    found = score(torch.cat(logits).numpy(), torch.cat(targets).numpy(), several=several)
    facts = {"part": name, "images": sum(map(len, logits)), **found.values, "broken": broken}
    if asked.json:
        print(machine.dumps(facts))
        return
    print(f"{facts['images']} images of {name}")
    for metric, value in found.values.items():
        print(f"{metric:16}{value:.4f}")
    for path, reason in broken.items():
        print(f"left out {path}: {reason}")
