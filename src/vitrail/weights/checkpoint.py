"""A checkpoint opened and translated, and the model that is built from it."""

import logging
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Origin, Passport, Preprocessing, ResizeMethod
from vitrail.models.catalogue import build_empty, family_of, shapes_of
from vitrail.models.config import Config
from vitrail.models.model import Model
from vitrail.weights.dialect import Dialect, Foreign
from vitrail.weights.families import family_weights
from vitrail.weights.families.family import NamedTensors, Request
from vitrail.weights.resize_state import needs_new_head, resize_state
from vitrail.weights.rows import Tensors
from vitrail.weights.translate import Coverage, Translation, check_total, read, refuse_partial

log = logging.getLogger("vitrail")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint opened and translated, but not yet a model: our tensors as the file has them,
    in its precision."""

    state: Tensors
    config: Config
    passport: Passport
    dialect: str
    coverage: Coverage
    notes: tuple[str, ...]


def translate(
    foreign: Foreign,
    dialect: Dialect,
    *,
    origin: str,
    named: Config | None = None,
    grid: tuple[int, int] | None = None,
    overrides: dict[str, Any],
) -> Checkpoint:
    """Foreign tensors as ours, by their dialect; `named`, `grid` and `overrides` answer what they
    leave open, `origin` is where they are from."""
    request = Request(foreign.source, named, grid, overrides, dialect.square)
    made, config, notes = read_config(foreign, dialect, request)
    check_total(made, shapes_of(config), foreign.tensors, where=foreign.source)
    passport = Passport(
        family=dialect.family,
        config=asdict(config),
        preprocessing=dialect.preprocessing(foreign, config),
        labels=dialect.labels(foreign),
        multi_label=dialect.multi_label(foreign),
        resize=dialect.resize_method(config),
        origin=Origin(
            source=origin,
            dialect=dialect.name,
            licence=dialect.licence(foreign),
            changes=tuple(notes),
        ),
    )
    return Checkpoint(made.state, config, passport, dialect.name, made.coverage, tuple(notes))


def read_config(
    foreign: Foreign, dialect: Dialect, request: Request
) -> tuple[Translation, Config, list[str]]:
    """Our tensors, the config in them, and a sentence for each thing that was looked up."""
    if request.named is not None and family_of(request.named) != dialect.family:
        raise UserError(
            f"{foreign.source}: its tensors are those of {dialect.name}, a {dialect.family}, but "
            f"the model you named is a {family_of(request.named)}"
        )
    family, where = family_weights(dialect.family), foreign.source
    hints = dict(dialect.hints(foreign, request))
    notes = [*foreign.notes, *hints.pop("notes", ())]
    made = read(dialect.table, foreign.tensors, hints, where=where)
    ours = NamedTensors(where, made.state)
    try:
        facts = {**family.config_of(ours), **dialect.constants, **made.facts}
        facts |= {name: value for name, value in hints.items() if not name.startswith("{")}
        if why := dialect.refuse_rectangles(facts.get("patch_size")):
            raise UserError(f"{where}: {why}")
        specified = dict(dialect.sidecar_facts(foreign, facts))
        notes += specified.pop("notes", ())
        config, looked_up = family.resolve_config(facts | specified, ours, request)
    except UserError:
        # where tensors are left over, that they are is the reason
        refuse_partial(made.coverage.unread, [], [], {}, where=where)
        raise
    return made, config, notes + looked_up


def build_model(
    checkpoint: Checkpoint,
    config: Config,
    *,
    method: ResizeMethod | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """The model of `config` with the checkpoint's tensors, resized where the two differ, in one
    precision: `dtype`, or what `own_dtype` gives."""
    state, passport = resize_checkpoint(checkpoint, config, method=method)
    dtype = dtype or own_dtype(checkpoint)
    # a copy, so that the model does not hang on a memory-mapped file that somebody may replace
    state = {name: tensor.to(dtype, copy=True) for name, tensor in state.items()}
    for sentence in passport.origin.changes:
        log.info("%s: %s", passport.origin.source, sentence)
    model = build_empty(config)
    model.load_state_dict(state, assign=True)
    model.passport = passport
    return model.to(dtype).eval()  # fixed tables in that precision too


def own_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The precision that a model has unless another is requested. One of ours has what it was saved
    with. In other people's files half precision is how weights are stored, not how they are
    computed with: they become float32, which changes no value, and float64 stays. Where tensors
    differ, the widest decides."""
    dtypes = [tensor.dtype for tensor in checkpoint.state.values()]
    widest = reduce(torch.promote_types, dtypes)
    return widest if checkpoint.dialect == "vitrail" else torch.promote_types(widest, torch.float32)


def resize_checkpoint(
    checkpoint: Checkpoint, config: Config, *, method: ResizeMethod | None = None
) -> tuple[Tensors, Passport]:
    """Tensors and passport for another config, in the precision of the file."""
    old, passport = checkpoint.config, checkpoint.passport
    state, done = resize_state(checkpoint.state, old, config, method=method or passport.resize)
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
    model = build_empty(config)
    model.new_head()  # these have values
    named = model.state_dict().items()
    return {name: tensor.to(like.dtype) for name, tensor in named if name.startswith("head")}


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
