"""Loading: any checkpoint, native or foreign, to a model at the size that is asked for."""

import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Origin, Passport, Preprocessing, ResizeMethod
from vitrail.models.catalogue import FAMILIES, change, family_of, find, skeleton
from vitrail.models.config import Config
from vitrail.models.model import Model
from vitrail.weights.dialect import Dialect, Foreign
from vitrail.weights.dialects import recognise
from vitrail.weights.files import read_foreign
from vitrail.weights.fit import FITTINGS, fit, needs_new_head
from vitrail.weights.hub import HUB, fetch
from vitrail.weights.native import is_native, read_native
from vitrail.weights.rows import Coverage, Tensors, read
from vitrail.weights.settle import settle

log = logging.getLogger("vitrail")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint opened and understood, but not yet a model: our tensors as the file has them,
    in its precision."""

    state: Tensors
    config: Config
    passport: Passport
    dialect: str
    coverage: Coverage
    notes: tuple[str, ...]


def load(
    source: str | Path,
    *,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    method: ResizeMethod | None = None,
    **changes: Any,
) -> Model:
    """A model with trained weights, from a Vitrail directory, a foreign file or directory, or
    hf-hub:owner/name.

    What a foreign file does not tell is asked for: `model` names the variant it holds, `grid` the
    rows and columns of its positions, and `changes` are the fields of `create`: what the file
    leaves open, or what is to be different from now on (another `image_size` resizes positions,
    another `num_classes` gives a new head that starts at zero); `model.passport.origin.changes`
    tells what was done. `method` resizes otherwise than those who published the weights do.

    >>> load("pets-model", num_classes=10, image_size=384).passport.origin.changes[0]
    'positions resized from 14x14 to 24x24 (paper)'
    """
    # whatever device or mode the caller is in, a loaded model has values and can be trained
    with torch.device("cpu"), torch.inference_mode(False):
        checkpoint = open_checkpoint(source, model=model, dialect=dialect, grid=grid, said=changes)
        config = change(checkpoint.config, fine_tuned(checkpoint.config, changes))
        return materialise(checkpoint, config, method=method)


def fine_tuned(config: Config, changes: dict[str, Any]) -> dict[str, Any]:
    """New classes for a pre-trained model mean the paper's fine-tuning: its whole head gives way to
    one linear layer, unless a head is asked for, and what else its family changes then."""
    changes = FITTINGS[family_of(config)].follows(config, changes) | changes
    if changes.get("num_classes", config.num_classes) == config.num_classes:
        return changes
    head = {"head": "linear"} if hasattr(config, "head") else {}
    return head | FITTINGS[family_of(config)].fine_tuned(config) | changes


def open_checkpoint(
    source: str | Path,
    *,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    said: dict[str, Any] | None = None,
) -> Checkpoint:
    """Read and map a checkpoint without building its model."""
    path = fetch(str(source)) if str(source).startswith(HUB) else Path(source)
    if is_native(path):
        if dialect not in (None, "vitrail"):
            raise UserError(
                f"{source}: this is a Vitrail checkpoint, not one of dialect {dialect!r}"
            )
        state, passport, config = read_native(path)
        return Checkpoint(state, config, passport, "vitrail", Coverage(), ())
    named = find(model) if model else None
    foreign = replace(read_foreign(path), source=str(source))
    speaks = recognise(foreign, dialect)
    if dialect:
        _refuse_misnamed(foreign, speaks)
    config, notes = settle(foreign, speaks, named=named, grid=grid, said=said or {})
    shapes = {name: tensor.shape for name, tensor in skeleton(config).state_dict().items()}
    state, coverage = read(speaks.rows(config), foreign.tensors, shapes, where=str(source))
    passport = Passport(
        family=speaks.family,
        config=asdict(config),
        preprocessing=speaks.preprocessing(foreign, config),
        labels=speaks.labels(foreign),
        resize=speaks.resizes(config),
        origin=Origin(
            source=str(source) if str(source).startswith(HUB) else Path(source).name,
            dialect=speaks.name,
            licence=speaks.licence(foreign),
            changes=tuple(notes),
        ),
    )
    return Checkpoint(state, config, passport, speaks.name, coverage, tuple(notes))


def _refuse_misnamed(foreign: Foreign, speaks: Dialect) -> None:
    """Tell a wrong name for the dialect from a damaged file."""
    try:
        speaks.infer(foreign)
    except UserError:
        other = recognise(foreign)
        if other.name == speaks.name:
            raise
        raise UserError(
            f"{foreign.source}: its tensors have the names of {other.name}, not of {speaks.name}"
        ) from None


def materialise(
    checkpoint: Checkpoint, config: Config, *, method: ResizeMethod | None = None
) -> Model:
    """The model of `config` with the checkpoint's tensors, resized where the two differ."""
    state, passport = refit(checkpoint, config, method=method)
    state = _widened(state)
    for sentence in passport.origin.changes:
        log.info("%s: %s", passport.origin.source, sentence)
    with torch.device("meta"):
        model = FAMILIES[passport.family].model(config)
    model.load_state_dict(state, assign=True)
    model.passport = passport
    return model.to(next(iter(state.values())).dtype).eval()  # fixed tables in that precision too


def refit(
    checkpoint: Checkpoint, config: Config, *, method: ResizeMethod | None = None
) -> tuple[Tensors, Passport]:
    """Tensors and passport for another config, in the precision of the file."""
    old, passport = checkpoint.config, checkpoint.passport
    state, done = fit(checkpoint.state, old, config, method=method or passport.resize)
    if needs_new_head(old, config):
        state |= _new_head(config, like=next(iter(state.values())))
    return state, replace(
        passport,
        config=asdict(config),
        labels=passport.labels if config.num_classes == old.num_classes else None,
        origin=replace(passport.origin, changes=(*passport.origin.changes, *done)),
        scores={} if done else passport.scores,  # they were another model's
        preprocessing=_preprocessing(passport.preprocessing, old, config),
    )


def _new_head(config: Config, like: Tensor) -> Tensors:
    with torch.device("meta"):
        model = FAMILIES[family_of(config)].model(config)
    model.new_head()  # outside the meta device: these have values
    named = model.state_dict().items()
    return {name: tensor.to(like.dtype) for name, tensor in named if name.startswith("head")}


def _widened(state: Tensors) -> Tensors:
    """In one precision that a CPU computes well: float64 where there is any, else float32."""
    double = any(tensor.dtype is torch.float64 for tensor in state.values())
    dtype = torch.float64 if double else torch.float32
    # a copy, so that the model does not hang on a memory-mapped file that somebody may replace
    return {name: tensor.to(dtype, copy=True) for name, tensor in state.items()}


def _preprocessing(before: Preprocessing, old: Config, new: Config) -> Preprocessing:
    """The same preparation at another size, with as many channels as the model now has."""
    if new.image_size != old.image_size:
        (height, width), (tall, wide), cover = new.image_size, old.image_size, before.resize
        resize = cover and (round(cover[0] * height / tall), round(cover[1] * width / wide))
        before = replace(before, size=new.image_size, resize=resize)
    if new.channels != old.channels:
        mean, std = (sum(values) / len(values) for values in (before.mean, before.std))
        before = replace(before, mean=(mean,) * new.channels, std=(std,) * new.channels)
    return before
