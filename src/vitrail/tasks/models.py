"""The model of a task: a checkpoint that is loaded, or a module in memory."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.core.addresses import is_address
from vitrail.core.devices import choose_device, choose_dtype
from vitrail.core.errors import UserError
from vitrail.core.exported import is_exported
from vitrail.core.matrix_unit import check_bfloat16
from vitrail.inference.client import Client
from vitrail.inference.engine import usable_threads
from vitrail.inference.exported_model import ExportedModel
from vitrail.inference.merging import merge_tokens
from vitrail.inference.remote_model import RemoteModel
from vitrail.models.model import Model
from vitrail.weights.load import load
from vitrail.weights.loaded_from import unchanged_source

Device = str | torch.device
Precision = str | torch.dtype | None


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A checkpoint and how to load it: the arguments of `load`, and the mean and standard deviation
    of pixels if its file does not specify them (one number, or one for each channel)."""

    source: str
    model: str | None = None
    dialect: str | None = None
    grid: tuple[int, int] | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def load(
        self,
        *,
        device: Device = "auto",
        precision: Precision = None,
        threads: int | None = None,
    ) -> Model:
        """The model, ready to evaluate; an exported file computes with so many threads."""
        if is_exported(self.source) or is_address(self.source):
            self.refuse_changes()
            return open_model(self.source, device=device, precision=precision, threads=threads)
        model = load(
            self.source,
            model=self.model,
            dialect=self.dialect,
            grid=self.grid,
            device=device,
            dtype=precision,
            **self.changes,
        )
        preprocessing = model.passport.preprocessing.normalised_by(self.mean, self.std)
        model.passport = replace(model.passport, preprocessing=preprocessing)
        return computable(model.eval())

    def refuse_changes(self) -> None:
        """An exported file and a service are complete: nothing about the model can be changed."""
        names = ("model", "dialect", "grid", "changes", "mean", "std")
        if given := [name for name in names if getattr(self, name)]:
            what, again = "an exported file", "export the model again with it"
            if is_address(self.source):
                what, again = "a model behind an address", "serve the model with it"
            raise UserError(f"{self.source}: {given[0]} must not be given for {what}: {again}")


def open_exported_model(
    source: str | Path, *, device: Device, precision: Precision, threads: int | None = None
) -> Model:
    """An exported file as a model; it computes on the CPU, in the precision that it has, with as
    many threads as torch would use if none are given."""
    if precision is not None or (device != "auto" and choose_device(device).type != "cpu"):
        raise UserError(
            f"{source}: an exported file computes on the CPU, in its own precision: leave device "
            "and precision out"
        )
    return ExportedModel(source, threads=usable_threads(threads))


def open_remote_model(source: str, *, device: Device, precision: Precision) -> Model:
    """A model behind an address; its service computes as it was started to, and gives float32."""
    dtype = None if precision is None else choose_dtype(precision)
    if dtype not in (None, torch.float32) or device not in ("auto", "cpu"):
        raise UserError(
            f"{source}: a service computes on its own device and in its own precision: leave "
            "device and precision out"
        )
    return RemoteModel(Client(source))


AnyModel = str | Path | nn.Module | ModelSource


def is_remote(model: AnyModel) -> bool:
    """Whether a model is behind an address."""
    source = model.source if isinstance(model, ModelSource) else model
    return isinstance(source, RemoteModel) or (isinstance(source, str) and is_address(source))


def refuse_without_weights(model: AnyModel, verb: str) -> None:
    """An exported file and a service predict, evaluate and embed; the rest needs the weights."""
    if isinstance(model, ExportedModel | RemoteModel):
        source = str(model.file.path) if isinstance(model, ExportedModel) else model.address
    elif isinstance(model, nn.Module):
        return
    else:
        source = str(model.source if isinstance(model, ModelSource) else model)
    if is_address(source):
        what = "a model behind an address"
    elif is_exported(source):
        what = "an exported file"
    else:
        return
    raise UserError(f"{source}: {what} cannot be used to {verb}: give the checkpoint")


def source_of(model: AnyModel) -> ModelSource | None:
    """Where a model can be loaded from again; None for one that exists in memory only, or was
    changed since it was loaded."""
    if isinstance(model, ModelSource):
        return model
    if not isinstance(model, nn.Module):
        return ModelSource(source=str(model))
    found = unchanged_source(model)
    if found is None:
        return None
    return ModelSource(
        source=found.source,
        model=found.model,
        dialect=found.dialect,
        grid=found.grid,
        changes=found.changes,
    )


def open_model(
    model: AnyModel,
    *,
    device: Device = "auto",
    precision: Precision = None,
    threads: int | None = None,
) -> Model:
    """Load a checkpoint onto `device`; "auto" is cuda, then mps, then cpu. A model in memory stays
    where it is with "auto"; for another device or precision it is copied, never changed. `threads`
    compute an exported file: torch has its own setting.

    >>> open_model(model) is model, open_model(model, precision="float64") is model
    (True, False)
    """
    if isinstance(model, ModelSource):
        return model.load(device=device, precision=precision, threads=threads)
    if isinstance(model, str) and is_address(model):
        return open_remote_model(model, device=device, precision=precision)
    if not isinstance(model, nn.Module) and is_exported(model):
        return open_exported_model(model, device=device, precision=precision, threads=threads)
    if not isinstance(model, nn.Module):
        return computable(load(model, device=device, dtype=precision))
    if not isinstance(model, Model):
        where = None if device == "auto" else device
        return computable(load(model, device=where, dtype=precision))
    weights = next(model.parameters())
    place = weights.device if device == "auto" else choose_device(device)
    dtype = weights.dtype if precision is None else choose_dtype(precision)
    if (place, dtype) != (weights.device, weights.dtype):
        model = load_again(model, device=place, dtype=dtype)
    return computable(model)


def load_again(model: Model, **changes: Any) -> Model:
    """A copy of a model in memory, with the arguments of `load`. It merges tokens as the model
    does: weights alone do not say so."""
    copy = load(model, **changes)
    return merge_tokens(copy.eval(), model.merged_tokens) if model.merged_tokens else copy


def computable(model: Model) -> Model:
    """The model, unless this machine would fail at its first product."""
    weights = next(model.parameters(), None)
    if weights is not None and (weights.device.type, weights.dtype) == ("cpu", torch.bfloat16):
        check_bfloat16()
    return model
