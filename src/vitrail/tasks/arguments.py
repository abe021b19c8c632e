"""Recognise a model and a data set that were given in each other's place."""

from pathlib import Path

from torch import nn

from vitrail.core.errors import UserError
from vitrail.weights.files import PICKLES, SIDECARS
from vitrail.weights.native import is_native

DATA_NAMES = ("digits", "planted", "fashion-mnist")
DATA_PREFIXES = ("hf:", "torchvision:")


def check_not_swapped(model: str | Path | nn.Module, data: str | Path) -> None:
    """
    >>> check_not_swapped("digits", "runs/pets.safetensors")
    Traceback (most recent call last):
    vitrail.core.errors.UserError: the model comes first, then the data, got the data digits first
    """
    if isinstance(model, nn.Module):
        return
    if is_data(model) or (is_checkpoint(data) and not is_checkpoint(model)):
        raise UserError(f"the model comes first, then the data, got the data {model} first")


def is_checkpoint(argument: str | Path) -> bool:
    """Whether it can be nothing but a model: an .npz file may hold images."""
    path = Path(argument)
    files = any((path / name).is_file() for name in SIDECARS)
    weights = path.suffix in (".safetensors", *PICKLES)
    return str(argument).startswith("hf-hub:") or weights or is_native(path) or files


def is_data(argument: str | Path) -> bool:
    """Whether it can be nothing but a data set."""
    text = str(argument)
    named = text in DATA_NAMES and not Path(text).exists()
    return named or text.startswith(DATA_PREFIXES)
