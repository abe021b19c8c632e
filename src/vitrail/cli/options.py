"""Options that mean the same in every verb, and the parsing of sizes, fields, lists and models.

A verb's record inherits the options that it takes, so that each is defined once:

    class Evaluate(ModelOptions, ComputeOptions, OverwriteOption, OutputOptions): …
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Group, Parameter

from vitrail.core.errors import UserError
from vitrail.core.ranges import check_count

if TYPE_CHECKING:
    from vitrail.tasks.models import ModelSource

ARGUMENTS = "Arguments"  # what is given by position
MODEL = Group("Model", sort_key=2)
COMPUTING = Group("Computing", sort_key=3)
OUTPUT = Group("Output", sort_key=4)

MAX_THREADS = 256

# help calls it MODEL
Source: TypeAlias = Annotated[
    str,
    Parameter(
        name="model",
        help="Vitrail directory, file or directory of another library, or hub id owner/name.",
    ),
]
ExportedSource: TypeAlias = Annotated[
    str,
    Parameter(
        name="model",
        help="Vitrail directory, file or directory of another library, hub id owner/name, "
        "exported .onnx or .xml file, or address of a service.",
    ),
]
ServedSource: TypeAlias = Annotated[
    str,
    Parameter(
        name="model",
        help="Vitrail directory, file or directory of another library, hub id owner/name, or "
        "address of a service.",
    ),
]
Others: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        name="--and",
        metavar="MODEL",
        help="Another model to draw beside the first; repeat it for several models: --and B --and "
        "C. Options of the group Model are for the first alone.",
    ),
]
# help calls them IMAGES
Images: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        group=ARGUMENTS,
        help="Files, directories, patterns or http addresses; - reads names from standard input, "
        "one per line.",
    ),
]
Data: TypeAlias = Annotated[
    str,
    Parameter(
        help="Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, "
        "torchvision:NAME:ROOT, digits, planted or fashion-mnist."
    ),
]
Precision: TypeAlias = Literal["float16", "bfloat16", "float32", "float64"]
EnginePrecision: TypeAlias = Literal["float16", "bfloat16", "float32", "float64", "int8"]
Out: TypeAlias = Annotated[str | None, Parameter(group=OUTPUT)]
BatchSize: TypeAlias = Annotated[int, Parameter(group=COMPUTING, help="Images per batch.")]
ENGINE_HELP = "measures which is fastest on this machine and remembers it; short jobs run on eager."
EngineName: TypeAlias = Annotated[
    str,
    Parameter(
        group=COMPUTING,
        help="Engine: eager (PyTorch), compiled, onnxruntime, openvino, ray (a cluster), or "
        f"ray:openvino (an engine on each of its processes). auto {ENGINE_HELP}",
    ),
]
LocalEngineName: TypeAlias = Annotated[
    str,
    Parameter(
        group=COMPUTING,
        help=f"Engine: eager (PyTorch), compiled, onnxruntime or openvino. auto {ENGINE_HELP}",
    ),
]
Exact: TypeAlias = Annotated[
    bool,
    Parameter(
        group=COMPUTING,
        negative=["--fast", "--no-exact"],
        help="Decode and resize as in the authors' code. --fast decodes large images at reduced "
        "size and resizes with torch: faster, but scores and features differ in the third digit.",
    ),
]
NativeResolution: TypeAlias = Annotated[
    bool,
    Parameter(
        group=COMPUTING,
        help="Keep the aspect ratio of images, and their size up to a number of patches. For ViT, "
        "DeiT and DINOv2; computed by eager.",
    ),
]
MaxTokens: TypeAlias = Annotated[
    int | None,
    Parameter(
        group=COMPUTING,
        help="Patches that an image may have at native resolution. [default: those of the model's "
        "grid]",
    ),
]
SpeedUp: TypeAlias = Annotated[
    float | None,
    Parameter(
        group=COMPUTING,
        help="Merge similar tokens until the model is this many times as fast: 1.8. For ViT, DeiT "
        "and BEiT; measured before the run. Predictions change a little.",
    ),
]
Workers: TypeAlias = Annotated[
    int, Parameter(group=COMPUTING, help="Processes that read images; 0 reads in the main process.")
]
Device: TypeAlias = Annotated[
    str,
    Parameter(
        group=COMPUTING, help="Device: auto (cuda, then mps, then cpu), cpu, cuda, cuda:N or mps."
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    Parameter(group=COMPUTING, help="CPU threads. [default: one for each processor]"),
]
Seed: TypeAlias = Annotated[int, Parameter(group=COMPUTING, help="Random seed.")]


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How to read the checkpoint `source` if its file does not specify everything."""

    model: Annotated[str | None, Parameter(group=MODEL)] = None
    """Architecture, if the file does not name it (see vitrail models)."""
    dialect: Annotated[str | None, Parameter(group=MODEL)] = None
    """Format of a foreign file, if its tensor names are ambiguous: timm, torchvision, …"""
    grid: Annotated[str | None, Parameter(group=MODEL)] = None
    """Rows x columns of the position embedding, if the file does not specify it."""
    image_size: Annotated[str | None, Parameter(group=MODEL)] = None
    """Resize the model to another image size: 224, or height x width as 192x672."""
    set: Annotated[tuple[str, ...], Parameter(group=MODEL)] = ()
    """Set another field of the model's config: --set num_classes=10. May be repeated."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadOptions):
    """And how to normalise images for it."""

    mean: Annotated[str | None, Parameter(group=MODEL)] = None
    """Mean that pixels are normalised by, if the file does not specify it: 0.5 or
    0.485,0.456,0.406."""
    std: Annotated[str | None, Parameter(group=MODEL)] = None
    """Standard deviation that pixels are normalised by, if the file does not specify it."""


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where to compute."""

    device: Device = "auto"
    threads: Threads = None


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(PlaceOptions):
    """And how."""

    precision: Annotated[Precision | None, Parameter(group=COMPUTING)] = None
    """Precision of weights and activations. [default: that of the file]"""


@dataclass(frozen=True, kw_only=True)
class Int8Options(PlaceOptions):
    """And how, also in int8."""

    precision: Annotated[EnginePrecision | None, Parameter(group=COMPUTING)] = None
    """Precision of weights and activations. int8 (engines onnxruntime and openvino) is calibrated
    on real images before the run. [default: that of the file]"""
    calibrate: Annotated[tuple[str, ...] | None, Parameter(group=COMPUTING)] = None
    """Images that int8 is calibrated and measured on, at least 16; may be repeated.
    [default: the input images]"""
    max_drop: Annotated[float, Parameter(group=COMPUTING)] = 1.0
    """Largest share of labels, in per cent, that int8 may change; more is refused."""


@dataclass(frozen=True, kw_only=True)
class OverwriteOption:
    overwrite: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Replace what an earlier run of this command wrote to OUT."""


@dataclass(frozen=True, kw_only=True)
class DryRunOption:
    dry_run: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Check everything, print what would be done, and stop."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is printed; every verb has these."""

    json: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Print JSON; an error is a JSON object on standard error."""
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], group=OUTPUT)] = False
    """Print results and errors only: no progress, no notes."""
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], group=OUTPUT)] = False
    """Print versions and the time taken; show where an error was raised."""


def model_source(options: Any, source: str | None = None) -> "ModelSource":
    """The checkpoint that a record with `source` and `ModelOptions` describes."""
    from vitrail.tasks.models import ModelSource

    return ModelSource(
        source=source or options.source,
        model=options.model,
        dialect=options.dialect,
        grid=parse_grid(options.grid),
        changes=parse_changes(options.image_size, options.set),
        mean=parse_channels(options.mean, "--mean"),
        std=parse_channels(options.std, "--std"),
    )


def model_sources(options: Any) -> "ModelSource | list[ModelSource | str]":
    """MODEL, or a list of it and of those that --and names."""
    first = model_source(options)
    if not options.others:
        return first
    check_repeated(options.others, getattr(options, "images", None) or [options.data])
    return [first, *options.others]


def check_repeated(others: Sequence[str], given: Sequence[str | None]) -> None:
    """Refuse a model that stands behind the one of --and, and so in the place of data or images."""
    from vitrail.tasks.arguments import is_checkpoint

    for word in given:
        if word is not None and is_checkpoint(word):
            raise UserError(why_repeat_and([*others, word]))


def why_repeat_and(models: Sequence[str]) -> str:
    """
    >>> why_repeat_and(["b", "c"])
    '--and takes one model, repeat it for several: --and b --and c'
    """
    example = " ".join(f"--and {one}" for one in models)
    return f"--and takes one model, repeat it for several: {example}"


def arguments_of(options: Any, task: Callable[..., Any], **parsed: Any) -> dict[str, Any]:
    """The keyword arguments of a task: options of the same name, and those that had to be parsed.

    >>> arguments_of(OutputOptions(json=True), lambda *, json, out: None, out="x")
    {'json': True, 'out': 'x'}
    """
    parameters = signature(task).parameters.values()
    names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    return {name: getattr(options, name) for name in names if hasattr(options, name)} | parsed


def parse_size(text: str, option: str) -> tuple[int, int]:
    """
    >>> parse_size("224", "--image-size"), parse_size("192x672", "--image-size")
    ((224, 224), (192, 672))
    """
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip())
    if match is None:
        raise UserError(
            f"{option} must be a side like 224 or height x width like 192x672, got {text!r}"
        )
    return int(match[1]), int(match[2] or match[1])


def parse_grid(text: str | None) -> tuple[int, int] | None:
    return None if text is None else parse_size(text, "--grid")


def parse_list(texts: Sequence[str], option: str, example: str) -> list[str]:
    """The items of an option that takes commas and may be repeated, each once.

    >>> parse_list(["112, 160", "224"], "--resolutions", "112,160,224")
    ['112', '160', '224']
    """
    lists = [[item.strip() for item in text.split(",") if item.strip()] for text in texts]
    if not all(lists):
        raise UserError(f"{option} must be a list like {example}, got {','.join(texts)!r}")
    return list(dict.fromkeys(item for items in lists for item in items))


def parse_counts(texts: Sequence[str], option: str, example: str) -> list[int]:
    """A list of whole numbers of at least 1.

    >>> parse_counts(["8, 16"], "--patch-sizes", "8,16,32")
    [8, 16]
    """
    items = parse_list(texts, option, example)
    for item in items:
        if not (item.isascii() and item.isdecimal()) or int(item) < 1:
            raise UserError(
                f"{option} must be whole numbers of at least 1 like {example}, got {item!r}"
            )
    return [int(item) for item in items]


def parse_changes(image_size: str | None, fields: tuple[str, ...]) -> dict[str, Any]:
    """Fields of a model's config from --image-size and every --set field=value."""
    changes: dict[str, Any] = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or not name:
            raise UserError(f"--set must be field=value, such as num_classes=10, got {field!r}")
        try:
            changes[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            changes[name.strip()] = parse_numbers(value) or value.strip()  # a word: pool=mean
    if image_size is not None:
        changes["image_size"] = parse_size(image_size, "--image-size")
    return changes


def parse_numbers(text: str) -> list[int | float] | None:
    """
    >>> parse_numbers("1,1,2,1"), parse_numbers("mean")
    ([1, 1, 2, 1], None)
    """
    try:
        found = json.loads(f"[{text}]")
    except (ValueError, RecursionError):
        return None
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in found)
    return found if len(found) > 1 and numbers else None


def parse_channels(text: str | None, option: str) -> tuple[float, ...]:
    """A number for each channel, or one for all.

    >>> parse_channels("0.485, 0.456, 0.406", "--mean")
    (0.485, 0.456, 0.406)
    """
    if text is None:
        return ()
    try:
        values = tuple(float(word) for word in text.split(","))
        if not all(map(math.isfinite, values)):
            raise ValueError
    except ValueError:
        raise UserError(f"{option} must be numbers like 0.5,0.5,0.5, got {text!r}") from None
    if option == "--std" and min(values) <= 0:
        raise UserError(f"{option} must be above 0, got {text!r}")
    return values


def use_threads(threads: int | None) -> None:
    """Compute with this many CPU threads, if a number was given."""
    import torch

    if threads is not None:
        check_count("--threads", threads, at_least=1, at_most=MAX_THREADS)
        torch.set_num_threads(threads)
