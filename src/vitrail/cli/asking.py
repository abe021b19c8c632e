"""How a command line says sizes, fields and checkpoints."""

import json
import math
import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.models.model import Model

MOST_THREADS = 256
MOST_AT_ONCE = 4096  # images


def parse_size(text: str, option: str) -> tuple[int, int]:
    """ "224" or "192x672" (height x width)."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip())
    if match is None:
        raise UserError(
            f"{option} is {text!r}, expected a side like 224 or height x width like 192x672"
        )
    return int(match[1]), int(match[2] or match[1])


def parse_changes(image_size: str | None, fields: tuple[str, ...]) -> dict[str, Any]:
    """Fields of a model's config from --image-size and every --set field=value."""
    changes: dict[str, Any] = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or not name:
            raise UserError(f"--set is {field!r}, expected field=value, such as num_classes=10")
        try:
            changes[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            changes[name.strip()] = listed_numbers(value) or value.strip()  # a word: pool=mean
    if image_size is not None:
        changes["image_size"] = parse_size(image_size, "--image-size")
    return changes


def listed_numbers(text: str) -> list[int | float] | None:
    """
    >>> listed_numbers("1,1,2,1"), listed_numbers("mean")
    ([1, 1, 2, 1], None)
    """
    try:
        found = json.loads(f"[{text}]")
    except (ValueError, RecursionError):
        return None
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in found)
    return found if len(found) > 1 and numbers else None


def refuse_existing(out: str, *, overwrite: bool) -> None:
    """Nothing is replaced unless that is asked for."""
    if os.path.lexists(out) and not overwrite:
        raise UserError(f"{out}: exists already: choose another name, or add --overwrite")


def arguments_of(record: Any) -> list[str]:
    """The command line that gives this record, for another process to read."""
    words: list[str] = []
    for field in fields(record):
        value = getattr(record, field.name)
        option = "--from" if field.name == "start" else f"--{field.name.replace('_', '-')}"
        if not field.kw_only:
            words.append(str(value))
        elif value is True:
            words.append(option)
        elif isinstance(value, tuple):
            words += [word for each in value for word in (option, str(each))]
        elif value is not None and value is not False and value != field.default:
            words += [option, str(value)]
    return words


def parse_grid(text: str | None) -> tuple[int, int] | None:
    return None if text is None else parse_size(text, "--grid")


@Parameter(name="*")  # its fields are options of the verb
@dataclass(frozen=True, kw_only=True)
class Loading:
    """How to read a model, where its file does not tell or something is to be different."""

    model: str | None = None
    """The variant that a foreign file holds, where it does not tell."""
    dialect: str | None = None
    """The dialect of a foreign file, where its names do not tell."""
    grid: str | None = None
    """Rows x columns of a foreign file's positions, where it does not tell."""
    image_size: str | None = None
    """Another image size: 224, or height x width as 192x672."""
    set: tuple[str, ...] = ()
    """Another field of the model, or one that its file leaves open: --set heads=8."""
    mean: str | None = None
    """What the model's pixels are normalised by, where its file does not tell: 0.5 or
    0.485,0.456,0.406."""
    std: str | None = None
    """The same for the standard deviation."""


def load_asked(asked: Any, **changes: Any) -> "Model":
    """The model that a record asks for by its fields source and loading; `changes` are fields of
    its config that are not as the record has them."""
    from vitrail.weights.load import load

    how: Loading = asked.loading
    changes = parse_changes(how.image_size, how.set) | changes
    grid = parse_grid(how.grid)
    model = load(asked.source, model=how.model, dialect=how.dialect, grid=grid, **changes)
    known = model.passport.preprocessing
    mean = parse_channels(how.mean, "--mean", len(known.mean)) or known.mean
    std = parse_channels(how.std, "--std", len(known.std)) or known.std
    model.passport = replace(model.passport, preprocessing=replace(known, mean=mean, std=std))
    return model.eval()


def parse_channels(text: str | None, option: str, channels: int) -> tuple[float, ...] | None:
    """A number for each channel, or one for all.

    >>> parse_channels("0.5", "--mean", 3)
    (0.5, 0.5, 0.5)
    """
    if text is None:
        return None
    try:
        values = tuple(float(word) for word in text.split(","))
        if not all(map(math.isfinite, values)):
            raise ValueError
    except ValueError:
        raise UserError(f"{option} is {text!r}, expected numbers like 0.5,0.5,0.5") from None
    if option == "--std" and min(values) <= 0:
        raise UserError(f"{option} is {text!r}, but a deviation is above 0")
    if len(values) not in (1, channels):
        raise UserError(
            f"{option} has {len(values)} numbers, but the model has {channels} channels"
        )
    return values * channels if len(values) == 1 else values


def use_threads(threads: int | None) -> None:
    """Compute with so many threads, where that was said."""
    import torch

    check_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)


def check_threads(threads: int | None) -> None:
    if threads is not None:
        check_between("--threads", threads, 1, MOST_THREADS)


def check_batch_size(size: int) -> None:
    check_between("--batch-size", size, 1, MOST_AT_ONCE)


def check_between(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise UserError(f"{option} is {value}, but must be {bound}")


def is_checkpoint(model: str) -> bool:
    """Whether a MODEL argument means a checkpoint rather than the name of a variant."""
    from vitrail.weights.files import SUFFIXES

    path = Path(model)
    return model.startswith("hf-hub:") or "/" in model or path.suffix in SUFFIXES or path.exists()
