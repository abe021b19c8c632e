"""What an exported file says about itself: the model's passport, and what its graph takes and
gives. Nothing here needs torch, so that a file can be read and run without it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, Literal

from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json
from vitrail.core.layout import TokenLayout
from vitrail.core.passport import Passport
from vitrail.core.records import validate

# Keys under which a file carries its metadata; the labels alone are for other people's programs.
PASSPORT, GRAPH, LABELS = "vitrail.passport", "vitrail.graph", "labels"

# Exported files by their suffix; the first two are run as MODEL arguments, the others on devices.
SUFFIXES = {
    ".onnx": "ONNX",
    ".xml": "OpenVINO",
    ".mlpackage": "Core ML",
    ".pte": "ExecuTorch",
    ".tflite": "LiteRT",
}

# float: preprocessed, (B, C, H, W). uint8: RGB pixels at the model's size, (B, H, W, C).
InputKind = Literal["float", "uint8"]
# the last two: weights alone, activations stay in float
ExportPrecision = Literal["float32", "float16", "int8", "int8-weights", "int4-weights"]
# older files and other tools call them so
OLD_PRECISIONS: dict[str, ExportPrecision] = {"fp32": "float32", "fp16": "float16"}


@dataclass(frozen=True, kw_only=True)
class ExportedGraph:
    """`input` is what the graph reads, `outputs` are the names of what it returns. `batch` is the
    number of images at once, None for any number. Height and width are those of the passport, or
    any multiples of `sides`. `merged_tokens` are merged in each block. `attention`
    says where the tokens of each attention output lie in the image, by its name. With `checksum`
    the file ends with one."""

    target: str
    outputs: tuple[str, ...]
    input: InputKind = "float"
    precision: ExportPrecision = "float32"
    batch: int | None = None
    sides: int | None = None
    merged_tokens: tuple[int, ...] = ()
    attention: dict[str, TokenLayout] = field(default_factory=dict)
    checksum: Literal["crc32"] | None = None
    version: str = ""  # of Vitrail


@dataclass(frozen=True)
class Exported:
    """The metadata of an exported file."""

    passport: Passport
    graph: ExportedGraph

    def to_strings(self) -> dict[str, str]:
        """As formats hold metadata: one text for each key."""
        found = {PASSPORT: to_json(asdict(self.passport)), GRAPH: to_json(asdict(self.graph))}
        if self.passport.labels is not None:
            found[LABELS] = to_json(self.passport.labels)
        return found

    @property
    def num_classes(self) -> int:
        """Classes that its logits have; 0 for a model without a head."""
        return int(self.passport.config.get("num_classes", 0))


def is_exported(source: object) -> bool:
    """Whether this names an exported file.

    >>> is_exported("pets.onnx"), is_exported("PETS.ONNX"), is_exported("pets.safetensors")
    (True, True, False)
    """
    return isinstance(source, str | PathLike) and PurePath(source).suffix.lower() in SUFFIXES


def check_exported(path: Path) -> None:
    """Refuse what is no file, and say what it is."""
    if path.is_file():
        return
    if not path.is_dir():
        raise UserError(f"{path}: no such file")
    if (path / "config.json").is_file() and (path / "model.safetensors").is_file():
        raise UserError(
            f"{path}: is a checkpoint directory, not an exported file: rename it without "
            f"{path.suffix}, or export it"
        )
    inside = sorted(one for one in path.iterdir() if one.suffix.lower() == path.suffix.lower())
    fix = f"give {inside[0]}" if inside else "give a file that vitrail export wrote"
    raise UserError(f"{path}: is a directory, not an exported file: {fix}")


def read_metadata(strings: Mapping[str, str], *, where: str, has_checksum: bool = True) -> Exported:
    """The metadata from its texts, checked. `has_checksum` is whether one was found in the file.

    >>> read_metadata({}, where="model.onnx")
    Traceback (most recent call last):
    vitrail.core.errors.UserError: model.onnx: must be a file that vitrail export wrote, but it has\
 no vitrail.passport: export the model again
    """
    for key in (PASSPORT, GRAPH):
        if key not in strings:
            raise UserError(
                f"{where}: must be a file that vitrail export wrote, but it has no {key}: "
                "export the model again"
            )
    passport = validate(Passport, _parse(strings, PASSPORT, where), where=f"{where}: {PASSPORT}")
    values = _parse(strings, GRAPH, where)
    if isinstance(found := values.get("precision"), str):
        values["precision"] = OLD_PRECISIONS.get(found, found)
    graph = validate(ExportedGraph, values, where=f"{where}: {GRAPH}")
    if graph.checksum is not None and not has_checksum:
        raise UserError(
            f"{where}: is damaged, or was changed after the export: the checksum at its end is "
            "missing: copy the file or export the model again"
        )
    return Exported(passport, graph)


def _parse(strings: Mapping[str, str], key: str, where: str) -> Any:
    try:
        found = json.loads(strings[key])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {key} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{where}: {key} must be a JSON object, got {type(found).__name__}")
    return found
