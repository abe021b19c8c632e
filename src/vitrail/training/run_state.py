"""The state of a run beside its tensors, as its checkpoints keep it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from vitrail.models.model import Model
from vitrail.training.tally import Tally

# Fields by the names that they had in earlier versions.
RENAMED = {"guide": "teacher_digest", "decides": "metric", "unjudged": "needs_evaluation"}


@dataclass
class RunState:
    """Best score so far, steps to skip, images that cannot be used, and running means."""

    metric: str = ""  # by which weights are chosen
    best: float | None = None
    best_step: int = 0
    best_scores: dict[str, float] = field(default_factory=dict)  # of the same evaluation as `best`
    since_best: int = 0
    skip: list[int] = field(default_factory=list)  # steps whose update was not finite
    broken: dict[str, str] = field(default_factory=dict)  # images that cannot be used, and why
    lost_images: list[str] = field(default_factory=list)  # of them, in the epoch `lost_epoch`
    lost_epoch: int = 0
    needs_evaluation: bool = False  # on resuming: too few validation images could be read
    shown: list[str] = field(default_factory=list)  # rows of the sheets of images
    warning: str | None = None  # of the last evaluation
    teacher_digest: str = ""  # SHA-256 of the teacher's or the tokenizer's weights
    tally: Tally = field(default_factory=Tally)  # of the steps since the last line of metrics

    @classmethod
    def from_saved(cls, saved: dict[str, Any]) -> RunState:
        """From the values of `dataclasses.asdict`, perhaps those of an earlier version."""
        saved = {RENAMED.get(name, name): value for name, value in saved.items()}
        known = {field.name for field in fields(cls)}
        saved = {name: value for name, value in saved.items() if name in known}
        return cls(**{**saved, "tally": Tally(**saved.get("tally", {}))})


def weights_digest(model: Model | None) -> str:
    """The SHA-256 of all weights; of no model nothing."""
    total = hashlib.sha256()
    for name, tensor in ({} if model is None else model.state_dict()).items():
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return "" if model is None else total.hexdigest()
