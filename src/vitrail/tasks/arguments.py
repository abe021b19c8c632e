"""Recognise a model and a data set that were given in each other's place."""

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.core.errors import UserError
from vitrail.data.sources.files import is_image
from vitrail.tasks.models import AnyModel, ModelSource
from vitrail.weights.files import PICKLES, SIDECARS, SUFFIXES
from vitrail.weights.native import is_native

DATA_NAMES = ("digits", "planted", "fashion-mnist")
MAX_LISTED = 100  # files of a directory that are looked at
DATA_PREFIXES = ("hf:", "torchvision:")


def check_not_swapped(model: AnyModel, data: Any) -> None:
    """Refuse a data set as the model, and a checkpoint as the data or as the first image.

    >>> check_not_swapped("digits", "runs/pets.safetensors")
    Traceback (most recent call last):
    vitrail.core.errors.UserError: expected MODEL, then DATA: digits is data, not a model
    """
    source = model.source if isinstance(model, ModelSource) else model
    first = data[0] if isinstance(data, list | tuple) and data else data
    if not isinstance(source, str | Path):
        return
    if isinstance(data, nn.Module | ModelSource):
        raise UserError(swapped_sentence(source))
    swapped = isinstance(first, str | Path) and is_checkpoint(first) and not is_checkpoint(source)
    if is_data(source) or swapped:
        raise UserError(swapped_sentence(source))
    if holds_images(Path(source)) and not is_checkpoint(source):
        raise UserError(f"the model must be a checkpoint, got the directory of images {source}")


def swapped_sentence(source: str | Path) -> str:
    return f"expected MODEL, then DATA: {source} is data, not a model"


def is_checkpoint(argument: str | Path) -> bool:
    """Whether it can be nothing but a model: an .npz file may hold images."""
    path = Path(argument)
    files = any((path / name).is_file() for name in SIDECARS)
    weights = path.suffix in (".safetensors", *PICKLES)
    return str(argument).startswith("hf-hub:") or weights or is_native(path) or files


def holds_images(path: Path) -> bool:
    """Whether it is a directory with images among its first files, and no weights."""
    if not os.path.isdir(path):
        return False
    with suppress(OSError):
        names = [file.name for file in islice(path.iterdir(), MAX_LISTED)]
        weights = any(Path(name).suffix in SUFFIXES for name in names)
        return not weights and any(is_image(name) for name in names)
    return False


def is_data(argument: str | Path) -> bool:
    """Whether it can be nothing but a data set."""
    text = str(argument)
    named = text in DATA_NAMES and not Path(text).exists()
    return named or text.startswith(DATA_PREFIXES)
