"""From the files of many processes to a model to use: OUT/best and OUT/last, written tensor by
tensor by the main process alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from vitrail.models.model import Model
from vitrail.training.lora import merge, merged_name
from vitrail.training.optimiser import MODEL
from vitrail.training.progress import Values
from vitrail.training.recipe import Recipe
from vitrail.training.shards import BEST, Shards
from vitrail.weights.native import replace_native


def weight_sources(shards: Shards, *, best: bool) -> dict[str, str]:
    """The weights to use by the objective's names, and where in a checkpoint each is: those kept as
    the best, or the last, their mean where there is one.

    A counter has no mean, and is the last one's.
    """
    if best:
        return {name.removeprefix(BEST): name for name in shards.entries if name.startswith(BEST)}
    now = [name.removeprefix("now.") for name in shards.entries if name.startswith("now.")]
    means = {name: f"average.{name}" for name in now if f"average.{name}" in shards.entries}
    return {name: means.get(name, f"now.{name}") for name in now}


def write_weights(
    shards: Shards, out: Path, recipe: Recipe, model: Model, *, step: int, scores: Values | None
) -> None:
    """A native checkpoint, to be used as it is; with `scores` of the best weights."""
    sources = weight_sources(shards, best=scores is not None)

    def read(name: str) -> Tensor:
        return shards.read(sources[name])

    state, beside = dict[str, Tensor](), dict[str, Tensor]()
    origin = dict[str, str]()
    for name, source in sources.items():
        entry = shards.entries[source]
        like = torch.empty(entry.shape, dtype=shards.dtype(source), device="meta")
        if not name.startswith(MODEL):
            beside[name], origin[name] = like, name
        elif (merged := merged_name(name.removeprefix(MODEL))) is not None:
            state[merged], origin[merged] = like, name
    provenance = {"recipe": asdict(recipe), "step": step}
    passport = replace(model.passport, provenance=provenance, scores=scores or {})
    replace_native(
        state,
        passport,
        out,
        beside=beside,
        read=lambda name: merge(origin[name], read, recipe.lora),
    )
