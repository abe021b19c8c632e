"""The plan of a comparison: models x share of the labels x image size x seed, and its YAML file.

    data: photos
    models: [vit_s_16, resnet18, "vit_r26_s_32:dropout=0.1"]
    shares: [0.01, 0.1, 1]
    seeds: 3
    epochs: 20

A model is an architecture, perhaps with fields of its config; a mapping in place of the list gives
each a name of its own: `small: {model: vit_s_16, depth: 6}`. `start` is a checkpoint to begin from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from vitrail.core.errors import UserError
from vitrail.core.ranges import check, check_count
from vitrail.core.records import validate
from vitrail.core.yaml_text import load_yaml
from vitrail.models.catalogue import change, find
from vitrail.models.config import Config
from vitrail.tasks.run_options import Precision

LONGEST_NAME = 120  # bytes of a directory's name that a model's may take
SUFFIXES = (".yaml", ".yml")
DEFAULT_SEEDS = 3
# What every run of a comparison has, unless `set` says otherwise: its last weights are tested, so
# that no label beyond its share chooses them, and its report is about training alone.
RUN_SETTINGS: dict[str, Any] = {
    "monitor.eval_every_epochs": 1e6,
    "monitor.patience": None,
    "monitor.examine_data": False,
}
# Fields of a recipe that the runs of a comparison differ in, and the option that gives them.
VARIED = {
    "data": "data",
    "model": "models",
    "start": "the start of a model",
    "seed": "seeds",
    "train_share": "shares",
    "fields.image_size": "image_sizes",
}

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """An architecture with the fields of its config that differ, under the name that pages show."""

    name: str
    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    start: str | None = None

    def config(self, size: Size | None) -> Config:
        """Its config; an unknown name or field, or a size that does not fit, is refused."""
        if size is not None and "image_size" in self.fields:
            raise UserError(f"{self.name}: image_size is set here and in image_sizes: give one")
        values = self.fields | ({} if size is None else {"image_size": size})
        try:
            return change(find(self.model), values)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run of a comparison."""

    model: ModelChoice
    share: float
    seed: int
    size: Size | None

    @property
    def name(self) -> str:
        """Its directory: model, share, image size and seed."""
        size = () if self.size is None else ("x".join(map(str, dict.fromkeys(self.size))),)
        return "-".join([slug(self.model.name), f"{self.share:g}", *size, f"seed{self.seed}"])


@dataclass(frozen=True, kw_only=True)
class ComparePlan:
    """What is compared, and how each run is trained; None leaves a choice to the recipe."""

    data: str
    models: tuple[ModelChoice, ...]
    shares: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = tuple(range(DEFAULT_SEEDS))
    image_sizes: tuple[Size | None, ...] = (None,)
    recipe: str | None = None
    epochs: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    val_share: float | None = None
    precision: Precision | None = None
    set: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for share in self.shares:
            check("shares", share, above=0, at_most=1)
        for seed in self.seeds:
            check_count("seeds", seed, at_least=0, below=2**63)
        if self.epochs is not None and self.steps is not None:
            raise UserError("epochs and steps both set the length of the runs: give one")
        for what, values in (("shares", self.shares), ("seeds", self.seeds)):
            if not values:
                raise UserError(f"{what} must not be empty")
            if again := [one for place, one in enumerate(values) if one in values[:place]]:
                raise UserError(f"{what} must be different, got {again[0]} twice")
        for name in self.set:
            if name in VARIED:
                raise UserError(f"set {name} would be that of every run: give {VARIED[name]}")
        if not self.models:
            raise UserError("compare needs at least one model, got none: give models=[…]")
        names = [cell.name for cell in self.cells]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(
                f"every run needs a name of its own, got {twice[0]} twice: give the models "
                "different names"
            )
        for model, size in product(self.models, self.image_sizes):
            model.config(size)

    @property
    def cells(self) -> list[Cell]:
        """All runs; the seeds come last, so that a comparison that is stopped has compared all
        models with its first seeds."""
        return [
            Cell(model=model, share=share, seed=seed, size=size)
            for seed, share, size, model in product(
                self.seeds, self.shares, self.image_sizes, self.models
            )
        ]

    def arguments(self, cell: Cell) -> dict[str, Any]:
        """The arguments of `vitrail.train` that decide a run."""
        given = dict(cell.model.fields)
        own = given.pop("image_size", None)
        fields = {f"fields.{name}": value for name, value in given.items()}
        own_share = (self.recipe or "").endswith(SUFFIXES)  # a recipe.yaml may have another
        share = {} if cell.share == 1 and not own_share else {"train_share": cell.share}
        return {
            "model": cell.model.model,
            "start": cell.model.start,
            "recipe": self.recipe,
            "epochs": self.epochs,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "image_size": cell.size or (tuple(own) if isinstance(own, list) else own),
            "val_share": self.val_share,
            "seed": cell.seed,
            "precision": self.precision,
            "set": {**RUN_SETTINGS, **self.set, **fields, **share},
        }

    def settings(self, cell: Cell) -> dict[str, Any]:
        """What must not change once a run has begun, in plain values."""
        found: dict[str, Any] = json.loads(
            json.dumps({"data": self.data, **self.arguments(cell)}, default=str)
        )
        return found


def slug(name: str) -> str:
    """A name that is safe as that of a directory; the end of a long one is its digest.

    >>> slug("vit_s_16:depth=6,dim=192"), slug("../ViT B")
    ('vit_s_16-depth6-dim192', 'ViT-B')
    """
    safe = re.sub(r"[^\w.]+", "-", name.replace("=", "")).strip("-.") or "model"
    if len(safe.encode()) <= LONGEST_NAME:
        return safe
    return f"{safe[: LONGEST_NAME // 4]}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


def parse_model(text: str) -> ModelChoice:
    """An architecture, perhaps with fields after a colon, and with a name for it before `=`.

    >>> parse_model("small=vit_s_16:depth=6").name
    'small'

    >>> parse_model("vit_s_16:depth=6,dim=192").fields
    {'depth': 6, 'dim': 192}
    >>> parse_model("swin_t:depths=2,2,2,2,window_size=4").fields
    {'depths': [2, 2, 2, 2], 'window_size': 4}
    """
    head, _, rest = text.strip().partition(":")
    name, equals, model = head.partition("=")
    fields: dict[str, Any] = {}
    for part in re.split(r",(?=\s*[A-Za-z_]\w*=)", rest) if rest else ():
        key, is_, value = part.partition("=")
        if not is_ or not key.strip():
            raise UserError(
                f"a model must be NAME or NAME:field=value,field=value, got {text!r}: write "
                "vit_s_16:depth=6,dim=192"
            )
        fields[key.strip()] = parse_value(value.strip())
    called = name.strip() if equals else text.strip()
    return ModelChoice(name=called, model=model if equals else name, fields=fields)


def parse_value(text: str) -> Any:
    """A number, true, a list of numbers or JSON; else a word.

    >>> parse_value("4,4"), parse_value("mean"), parse_value("0.5")
    ([4, 4], 'mean', 0.5)
    """
    for attempt in (text, f"[{text}]"):
        try:
            return json.loads(attempt)
        except ValueError:
            continue
    return text


def model_choice(value: Any, name: str | None = None) -> ModelChoice:
    """A model as a plan or a caller gives it: text, a mapping with `model`, or a choice."""
    if isinstance(value, ModelChoice):
        return value
    if isinstance(value, str):
        found = parse_model(value)
        return found if name is None else ModelChoice(**(vars(found) | {"name": name}))
    if not isinstance(value, Mapping) or not isinstance(value.get("model"), str):
        where = "a model" if name is None else f"models: {name}"
        raise UserError(f"{where} must be an architecture, or a mapping with model, got {value!r}")
    given = {key: one for key, one in value.items() if key not in ("model", "start", "name")}
    return ModelChoice(
        name=str(name or value.get("name") or value["model"]),
        model=value["model"],
        fields=given,
        start=value.get("start"),
    )


def model_choices(models: Any) -> tuple[ModelChoice, ...]:
    """Several models: a list, or a mapping from names to models."""
    if isinstance(models, str | ModelChoice):
        models = [models]
    if isinstance(models, Mapping):
        return tuple(model_choice(value, str(name)) for name, value in models.items())
    if not isinstance(models, Sequence):
        raise UserError(f"models must be a list or a mapping, got {models!r}")
    return tuple(model_choice(value) for value in models)


def make_plan(data: str | Path, options: Mapping[str, Any]) -> ComparePlan:
    """The plan of a call: options, over those of the YAML file that `data` may name."""
    values: dict[str, Any] = {"data": str(data)}
    where = "compare"
    if Path(data).suffix.lower() in SUFFIXES:
        values, where = read_plan(Path(data)), str(data)
    values |= {name: value for name, value in options.items() if value is not None}
    if "models" not in values:
        raise UserError("compare needs models: give models=[…], such as vit_s_16 and resnet18")
    values["models"] = model_choices(values["models"])
    values["seeds"] = seeds_of(values.get("seeds", DEFAULT_SEEDS))
    values["shares"] = listed(values.get("shares", 1.0))
    values["image_sizes"] = sizes_of(values.get("image_sizes"))
    return validate(ComparePlan, values, where=where)


def read_plan(path: Path) -> dict[str, Any]:
    """The values of a plan's file."""
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # 2020-99-99 is no date
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: the plan cannot be read: {reason}") from None
    if not isinstance(values, dict) or not isinstance(values.get("data"), str):
        raise UserError(f"{path}: a plan must have the fields data and models")
    return values


def seeds_of(seeds: Any) -> list[Any]:
    """A number of seeds from 0, or the seeds.

    >>> seeds_of(3), seeds_of([7])
    ([0, 1, 2], [7])
    """
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        return list(seeds)
    check_count("seeds", seeds, at_least=1, at_most=1000)
    return list(range(seeds))


def listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def sizes_of(sizes: Any) -> list[Any]:
    """Sides or (height, width); none leaves the size to each model.

    >>> sizes_of(28), sizes_of([224, [192, 160]]), sizes_of(None)
    ([(28, 28)], [(224, 224), [192, 160]], [None])
    """
    if sizes is None or (isinstance(sizes, list | tuple) and not sizes):
        return [None]
    return [(one, one) if isinstance(one, int) else one for one in listed(sizes)]
