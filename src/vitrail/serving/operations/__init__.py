"""What the page asks of a model: functions that know nothing of HTTP, by their names.

Options are records that need no torch, so that a server can check a request without it; the
function of an operation is imported when it first runs, where the model is.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitrail.core.json_text import plain_values
from vitrail.core.packed import Packed
from vitrail.core.records import validate
from vitrail.serving.operations.options import (
    DataImageOptions,
    DataOptions,
    ExplainOptions,
    NeighboursOptions,
    NoOptions,
    SampleOptions,
    WalkOptions,
    WhatIfOptions,
)

if TYPE_CHECKING:
    from PIL import Image

    from vitrail.serving.operations.context import Context


@dataclass(frozen=True)
class File:
    """The content of a file, and its media type."""

    content: bytes
    media_type: str


Result = dict[str, Any] | Packed | File


@dataclass(frozen=True)
class Operation:
    """`path` is the address below /v1/, with the fields of the options that stand in it."""

    name: str
    path: str
    options: type[Any]
    needs_image: bool
    summary: str

    def run(self, context: "Context", image: "Image.Image | None", options: Any) -> Result:
        """Compute it: plain JSON values, packed arrays, or a file."""
        found = self.function()(context, image, options)
        return plain_values(found) if isinstance(found, dict) else found

    def function(self) -> Callable[["Context", "Image.Image | None", Any], Result]:
        """`run_NAME` of the module that is called like the first part of the path."""
        module = import_module(f"{__name__}.{self.path.split('/')[0]}")
        found: Callable[[Context, Image.Image | None, Any], Result]
        found = getattr(module, f"run_{self.name}")
        return found

    def read_options(self, values: Mapping[str, Any]) -> Any:
        """The options as a record, or `UserError` with what does not fit."""
        return validate(self.options, values, where=self.name)

    def read_query(self, values: Mapping[str, str]) -> Any:
        """The same from the text of an address, where 3 and [3, 4] are what JSON makes of them."""
        return self.read_options({name: _plain(text) for name, text in values.items()})


def _plain(text: str) -> Any:
    """
    >>> _plain("3"), _plain("auto")
    (3, 'auto')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


OPERATIONS: dict[str, Operation] = {
    one.name: one
    for one in (
        Operation(
            "inspect",
            "inspect",
            NoOptions,
            needs_image=True,
            summary="All attention of one image, the prediction after every block, and rollout",
        ),
        Operation(
            "explain",
            "explain",
            ExplainOptions,
            needs_image=True,
            summary="Which parts of the image drive a prediction, by one method",
        ),
        Operation(
            "walk",
            "walk",
            WalkOptions,
            needs_image=True,
            summary="One image through the model step by step, with equations and numbers",
        ),
        Operation(
            "what_if",
            "what_if",
            WhatIfOptions,
            needs_image=True,
            summary="The prediction after edits of the image",
        ),
        Operation(
            "neighbours",
            "neighbours",
            NeighboursOptions,
            needs_image=True,
            summary="The images, or patches, whose features are nearest",
        ),
        Operation(
            "model",
            "model",
            NoOptions,
            needs_image=False,
            summary="Config, passport, cost, filters and positions of the model",
        ),
        Operation(
            "data",
            "data",
            DataOptions,
            needs_image=False,
            summary="The images of a run or of an embedded folder, mistakes and a map of them",
        ),
        Operation(
            "data_image",
            "data/{id}/image",
            DataImageOptions,
            needs_image=False,
            summary="One image of the data by its number",
        ),
        Operation(
            "distances",
            "distances",
            NoOptions,
            needs_image=False,
            summary="How far each head looks in the images of the data, on average",
        ),
        Operation(
            "samples",
            "samples",
            NoOptions,
            needs_image=False,
            summary="Sample photos to begin with",
        ),
        Operation(
            "sample",
            "samples/{id}",
            SampleOptions,
            needs_image=False,
            summary="One sample photo by its number",
        ),
    )
}
