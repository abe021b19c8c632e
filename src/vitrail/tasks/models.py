"""The model of a task: loaded from where it lies, on the device and in the precision asked for."""

from pathlib import Path

import torch
from torch import nn

from vitrail.core.devices import choose_device, choose_dtype
from vitrail.models.model import Model
from vitrail.weights.load import load


def open_model(
    model: str | Path | nn.Module,
    *,
    device: str | torch.device | None = None,
    precision: str | torch.dtype | None = None,
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
