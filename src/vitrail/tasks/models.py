"""The model of a task: loaded from where it lies, on the device and in the precision asked for."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.core.devices import choose_device, choose_dtype
from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.weights.load import load

Device = str | torch.device | None
Precision = str | torch.dtype | None


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A checkpoint and how to load it: the arguments of `load`, and the mean and standard deviation
    of pixels where its file does not tell them (one number, or one for each channel)."""

    source: str
    model: str | None = None
    dialect: str | None = None
    grid: tuple[int, int] | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def load(self, *, device: Device = None, precision: Precision = None) -> Model:
        """The model, ready to evaluate."""
        model = load(
            self.source,
            model=self.model,
            dialect=self.dialect,
            grid=self.grid,
            device=device,
            dtype=precision,
            **self.changes,
        )
        known = model.passport.preprocessing
        preprocessing = replace(
            known,
            mean=for_channels("mean", self.mean, len(known.mean)) or known.mean,
            std=for_channels("std", self.std, len(known.std)) or known.std,
        )
        model.passport = replace(model.passport, preprocessing=preprocessing)
        return model.eval()


def for_channels(name: str, values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """
    >>> for_channels("mean", (0.5,), 3)
    (0.5, 0.5, 0.5)
    """
    if len(values) not in (0, 1, channels):
        raise UserError(
            f"{name} must have 1 or {channels} numbers, one a channel, got {len(values)}"
        )
    return values * channels if len(values) == 1 else values


def open_model(
    model: str | Path | nn.Module, *, device: Device = None, precision: Precision = None
) -> Model:
    """A checkpoint is loaded, onto the CPU unless `device` is given. A Vitrail model in memory is
    taken as it is; one that is elsewhere or has another precision is copied, never changed.

    >>> open_model(model) is model, open_model(model, precision="float64") is model
    (True, False)
    """
    if not isinstance(model, Model):
        return load(model, device=device, dtype=precision)
    weights = next(model.parameters())
    place = weights.device if device is None else choose_device(device)
    dtype = weights.dtype if precision is None else choose_dtype(precision)
    if (place, dtype) == (weights.device, weights.dtype):
        return model
    return load(model, device=place, dtype=dtype)
