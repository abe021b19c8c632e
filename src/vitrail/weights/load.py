"""Loading: any checkpoint, native or foreign, to a model at the requested size."""

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.core.devices import choose_device, choose_dtype
from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.core.run_directory import refuse_run
from vitrail.models.catalogue import change, family_of, find
from vitrail.models.config import Config
from vitrail.models.model import Model
from vitrail.weights.checkpoint import Checkpoint, build_model, translate
from vitrail.weights.families import family_weights
from vitrail.weights.files import read_foreign
from vitrail.weights.hub import HUB, is_hub_id, located
from vitrail.weights.loaded_from import remember_source
from vitrail.weights.native import MANIFEST, TENSORS, is_native, left_out, read_native
from vitrail.weights.translate import Coverage


def load(
    source: str | Path | nn.Module,
    *,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    method: ResizeMethod | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **changes: Any,
) -> Model:
    """A model with trained weights, from a Vitrail directory, a foreign file or directory,
    owner/name on the hub, or a copy of a module: another library's, or a ViT written by hand.

    What a foreign file does not specify has to be given: `model` names the variant it holds, `grid`
    the rows and columns of its positions, and `changes` are the fields of `create`: what the file
    leaves open, or what is to be different from now on (another `image_size` resizes positions,
    another `num_classes` gives a new head that starts at zero); `model.passport.origin.changes`
    lists what was done. `method` is another way to resize than that of the weights' publisher.

    The model is on the CPU, or on `device` ("auto": cuda, then mps, then cpu); a module's copy is
    where the module is. Weights have the precision that they were saved with by `save`, or that a
    module has; those of other libraries' files are float32, or float64 where the file is. `dtype`
    ("float16", "bfloat16", "float32", "float64") requests another.

    >>> load("pets-model", num_classes=10, image_size=384).passport.origin.changes[0]
    'positions resized from 14x14 to 24x24 (paper)'
    """
    check_source(source)
    place = choose_device(device)  # before anything is read
    precision = None if dtype is None else choose_dtype(dtype)
    # whatever device or mode the caller is in, a loaded model has values and can be trained
    with torch.device("cpu"), torch.inference_mode(False):
        checkpoint = open_checkpoint(
            source, model=model, dialect=dialect, grid=grid, overrides=changes
        )
        config = change(checkpoint.config, fine_tuned(checkpoint.config, changes))
        if not isinstance(source, nn.Module):
            loaded = build_model(checkpoint, config, method=method, dtype=precision).to(place)
            if method is not None:
                return loaded
            return remember_source(
                loaded, str(source), variant=model, dialect=dialect, grid=grid, changes=changes
            )
        from vitrail.weights.modules import freeze_like, noted_dtype

        if device is None:
            place = next(source.parameters()).device
        if precision is None:
            precision, checkpoint = noted_dtype(source, checkpoint)
        loaded = build_model(checkpoint, config, method=method, dtype=precision).to(place)
        freeze_like(loaded, source, checkpoint)
        return loaded


def check_source(source: object) -> None:
    if not isinstance(source, str | PathLike | nn.Module):
        raise UserError(
            f"source must be a path, a hub id or a module, got {type(source).__name__}: save a "
            "state dict to a file, or load the module that it is of"
        )


def fine_tuned(config: Config, changes: dict[str, Any]) -> dict[str, Any]:
    """New classes for a pre-trained model mean the paper's fine-tuning: its whole head gives way to
    one linear layer, unless a head is requested, and what else its family changes then."""
    changes = family_weights(family_of(config)).follow(config, changes) | changes
    if changes.get("num_classes", config.num_classes) == config.num_classes:
        return changes
    head = {"head": "linear"} if hasattr(config, "head") else {}
    return head | family_weights(family_of(config)).fine_tuned(config) | changes


def open_checkpoint(
    source: str | Path | nn.Module,
    *,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    overrides: dict[str, Any] | None = None,
) -> Checkpoint:
    """Read and map a checkpoint without building its model."""
    if isinstance(source, nn.Module):
        from vitrail.weights.adopt.from_module import open_any_module

        return open_any_module(source, dialect=dialect, overrides=overrides or {})
    path = located(source)
    refuse_run(path)
    if path.name == TENSORS and is_native(path.parent):  # with its manifest, so that it is verified
        path = path.parent
    if is_native(path):
        if dialect not in (None, "vitrail"):
            raise UserError(
                f"{source}: this is a Vitrail checkpoint, not one of dialect {dialect!r}"
            )
        state, passport, config = read_native(path)
        notes = left_out(path, passport)
        changes = (*passport.origin.changes, *notes)
        passport = replace(passport, origin=replace(passport.origin, changes=changes))
        return Checkpoint(state, config, passport, "vitrail", Coverage(), notes)
    # here: ours are read without them, and sooner
    from vitrail.weights.dialects import recognise
    from vitrail.weights.own_state import is_own_state, open_own_state, refuse_adapted

    named = find(model) if model else None
    foreign = replace(read_foreign(path), source=str(source))
    origin = f"{HUB}{str(source).removeprefix(HUB)}" if is_hub_id(source) else Path(source).name
    refuse_adapted(foreign)
    if dialect in (None, "vitrail") and is_own_state(foreign):
        if path.is_dir() and "vitrail" in foreign.sidecars.get("config.json", {}):
            raise UserError(
                f"{source}: {MANIFEST} is missing, so nothing can be verified: copy the directory "
                f"whole, or load its {TENSORS}"
            )
        return open_own_state(foreign, origin=origin, named=named, overrides=overrides or {})
    return translate(
        foreign,
        recognise(foreign, dialect),
        origin=origin,
        named=named,
        grid=grid,
        overrides=overrides or {},
    )
