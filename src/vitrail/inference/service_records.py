"""What a service responds, as typed records; a response that does not fit is refused in one
sentence. Nothing here needs torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.inference.prediction import Output, Prediction

T = TypeVar("T")


@dataclass(frozen=True)
class ServedModel:
    """A model of a service. `classes` is 0 for a model without a head; `state` is ready, loading or
    draining; `digest` changes with the weights. Of one that is being loaded for the first time only
    its name is known."""

    name: str
    state: str
    family: str = ""
    image_size: tuple[int, int] = (0, 0)
    channels: int = 0
    classes: int = 0
    digest: str = ""
    task: str = ""
    labels: tuple[str, ...] | None = None
    multi_label: bool = False
    parameters: int = 0
    engine: str = ""
    can_inspect: bool = False


@dataclass(frozen=True)
class ExplainedClass:
    """The class that a map explains."""

    index: int
    label: str
    score: float


@dataclass(frozen=True)
class ExplainedImage:
    """How much each patch of an image matters, by `method`: `map` has (rows, columns). An image
    that cannot be read has none, and `problem` says why."""

    name: str
    method: str | None
    target: ExplainedClass | None
    map: NDArray[np.float32] | None
    reason: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class ServiceMatch:
    """An image of the service's data and its cosine to the query."""

    name: str
    score: float


@dataclass(frozen=True)
class SearchedImage:
    """The nearest images to one query, the nearest first, or the problem that prevented it."""

    name: str
    matches: tuple[ServiceMatch, ...] = field(default=())
    problem: str | None = None


@dataclass(frozen=True)
class Health:
    """Whether the process responds, and whether its models take requests."""

    live: bool
    ready: bool


def parse_json(body: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{where}: must respond with a JSON object: is it a Vitrail service?")
    return found


def rows_of(body: bytes, key: str, count: int | None, where: str) -> list[Any]:
    """The list under `key`, one for each image that was sent."""
    rows = parse_json(body, where).get(key)
    if not isinstance(rows, list) or (count is not None and len(rows) != count):
        got = f"{len(rows)}" if isinstance(rows, list) else "none"
        wanted = "a list of" if count is None else f"{count}"
        raise UserError(f"{where}: must respond with {wanted} {key}, got {got}")
    return rows


def record_of(kind: type[T], row: Any, where: str) -> T:
    """The record from a JSON object; fields that it does not know are for newer clients."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: must respond with an object for each result, got {row!r:.60}")
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    values = {key: value for key, value in row.items() if key in known}
    return validate(kind, values, where=f"response of {where}")


def problem_of(row: Any) -> str | None:
    """Why a row has no result, where that is so."""
    return str(row["error"]) if isinstance(row, Mapping) and "error" in row else None


def to_prediction(name: str, row: Any, where: str) -> Prediction:
    if (problem := problem_of(row)) is not None:
        return Prediction(name, None, None, (), problem)
    try:
        top = tuple((str(one["label"]), float(one["score"])) for one in row["top"])
        return Prediction(name, str(row["label"]), float(row["score"]), top)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{where}: must predict a label, a score and top, got {row!r:.60}"
        ) from None


def to_vector(name: str, row: Any, where: str) -> Output:
    if (problem := problem_of(row)) is not None:
        return Output(name, None, problem)
    return Output(name, numbers(row, axes=1, where=where))


def to_explained(name: str, row: Any, where: str) -> ExplainedImage:
    if (problem := problem_of(row)) is not None:
        return ExplainedImage(name, None, None, None, problem=problem)
    try:
        target, method, found = row["target"], str(row["method"]), row["map"]
    except (KeyError, TypeError):
        raise UserError(f"{where}: must explain by a method and a map, got {row!r:.60}") from None
    explained = None if target is None else record_of(ExplainedClass, target, where)
    heat = numbers(found, axes=2, where=where)
    reason = row.get("reason")
    return ExplainedImage(name, method, explained, heat, None if reason is None else str(reason))


def to_searched(name: str, row: Any, where: str) -> SearchedImage:
    if (problem := problem_of(row)) is not None:
        return SearchedImage(name, problem=problem)
    if not isinstance(row, Sequence):
        raise UserError(f"{where}: must respond with a list of matches, got {row!r:.60}")
    return SearchedImage(name, tuple(record_of(ServiceMatch, one, where) for one in row))


def numbers(values: Any, *, axes: int, where: str) -> NDArray[np.float32]:
    try:
        found = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        found = np.zeros((), np.float32)
    if found.ndim != axes:
        raise UserError(f"{where}: must respond with numbers of {axes} axes, got {values!r:.60}")
    return found
