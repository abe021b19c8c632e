"""transformers' config.json: its fields and ours in one table, by which it is read and written.

Most of it only repeats the shapes of tensors, and is written but never read. A `Kind` lists its
fields, and the few of them that no tensor shows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing
from vitrail.models.config import Config
from vitrail.weights.dialect import AllowList, Foreign, read_record
from vitrail.weights.dialects import transformers_processor as processor
from vitrail.weights.families.family import pair
from vitrail.weights.rows import Facts

CONFIG = "config.json"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
SPELLED = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
MULTI_LABEL = "multi_label_classification"  # of problem_type
# Their names for our config fields, first those that every kind has.
COMMON = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "num_channels": "channels",
    "layer_norm_eps": "norm_eps",
}
VIT = COMMON | {
    "hidden_size": "dim",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "hidden_act": "activation",
}


@dataclass(frozen=True, kw_only=True)
class SidecarConfig:
    """The fields of config.json that tensors do not show, or not exactly."""

    architectures: tuple[str, ...] | None = None
    num_attention_heads: int | None = None
    image_size: int | tuple[int, int] | None = None
    patch_size: int | None = None
    hidden_act: str | None = None
    layer_norm_eps: float | None = None
    layerscale_value: float | None = None
    layer_scale_init_value: float | None = None
    window_size: int | None = None
    pretrained_window_sizes: tuple[int, ...] | None = None
    expand_ratio: float | None = None
    mlp_ratio: float | None = None
    output_stride: int | None = None
    id2label: dict[str, str | int] | None = None
    problem_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of transformers' model types: its names, and its fields of config.json.

    fields   their name for each of our config fields, as they are written
    reads    those of them that are read too, because no tensor shows them
    eps      of LayerNorm, where transformers has a default of its own
    extras   fields that are not one of ours by another name
    usual    how images are prepared where there is no preprocessor_config.json
    """

    model_type: str
    classes: str  # how the names of its classes begin, ...
    suffixes: tuple[str, str] = (
        "ForImageClassification",
        "Model",
    )  # ... and end, with a head or not
    classifies: bool = True
    prefix: str | None = None  # what a model with a head calls its encoder, if not its type
    fields: Mapping[str, str]
    reads: tuple[str, ...]
    eps: float | None = None
    usual: Preprocessing
    extras: Callable[[Any], dict[str, Any]] = lambda _: {}
    write_preprocessing: Callable[[Preprocessing], dict[str, Any]] = processor.write_preprocessing

    @property
    def base(self) -> str:
        return f"{self.model_type}." if self.prefix is None else self.prefix

    def class_name(self, config: Any) -> str:
        with_head, without = self.suffixes
        return self.classes + (with_head if config.num_classes else without)

    def facts(self, foreign: Foreign) -> Facts:
        """Our config fields that config.json specifies."""
        given = vars(read_sidecar(foreign, self.reads))
        found: Facts = {
            self.fields[name]: given[name] for name in self.reads if given[name] is not None
        }
        if "image_size" in found:
            found["image_size"] = pair(found["image_size"], "image_size")
        if "activation" in found:
            found["activation"] = read_activation(found["activation"], foreign.source)
        if self.eps is not None and "norm_eps" not in found:
            note = f"LayerNorm eps {self.eps:g}, the default of transformers"
            found |= {"norm_eps": self.eps, "notes": [note]}
        return found

    def sidecars(self, passport: Passport, config: Any) -> dict[str, dict[str, Any]]:
        """Files from which Auto classes build this very model, and its processor."""
        written = {
            "architectures": [self.class_name(config)],
            "model_type": self.model_type,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.02,
            **{name: as_json(name, getattr(config, ours)) for name, ours in self.fields.items()},
            **(write_labels(passport, config) if self.classifies else {}),
            **self.extras(config),
        }
        before = self.write_preprocessing(passport.preprocessing)
        return {CONFIG: written, processor.FILE: before}

    @property
    def in_common(self) -> dict[str, Any]:
        """What the dialects of all kinds have in common. {root} stands before the names of an
        encoder, but a model without a head is its encoder itself."""
        return {
            "name": f"transformers-{self.model_type}",
            "values": {"root": (self.base, "")},
            "unbound": lambda config, _: {"root": self.base if config.num_classes else ""},
            "preprocessing": lambda foreign, config: processor.read_preprocessing(
                foreign, config, self.usual
            ),
            "resize": "hf",
            "sidecars": self.sidecars,
            "labels": read_labels,
            "multi_label": read_multi_label,
            "architectures": AllowList(
                "transformers", {self.model_type}.__contains__, self.classes
            ),
        }


def as_json(name: str, value: Any) -> Any:
    """One of our values as config.json spells it."""
    if name == "hidden_act":
        return SPELLED.get(value, "gelu")  # a gated MLP does not read it
    if name == "image_size":
        return value[0] if value[0] == value[1] else list(value)
    return list(value) if isinstance(value, tuple) else value


def read_sidecar(foreign: Foreign, names: Iterable[str]) -> SidecarConfig:
    """The named fields of config.json, with their types checked."""
    given = foreign.sidecars.get(CONFIG, {})
    known = {name: given[name] for name in names if name in given}
    return read_record(SidecarConfig, known, where=f"{foreign.source}: {CONFIG}")


def read_activation(name: str, where: str) -> str:
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(f"{where}: hidden_act must be one of {known}, got {name!r}")
    return ACTIVATIONS[name]


def require(foreign: Foreign, name: str, allowed: tuple[Any, ...], why: str) -> None:
    """Refuse a model that its config.json makes another than the one we compute."""
    value = getattr(read_sidecar(foreign, [name]), name)
    if value not in (None, *allowed):
        raise UserError(f"{foreign.source}: {name} must be {allowed[0]!r}, got {value!r}: {why}")


def architectures_of(foreign: Foreign) -> str:
    """The classes that config.json names."""
    return " ".join(read_sidecar(foreign, ["architectures"]).architectures or ())


def head_of(foreign: Foreign) -> str | None:
    """What the classifier is called; None where there is none."""
    found = (n for n in ("classifier", "cls_classifier") if f"{n}.weight" in foreign.tensors)
    return next(found, None)


def classes_of(foreign: Foreign) -> int:
    head = head_of(foreign)
    return foreign.shape(f"{head}.weight", 2)[0] if head else 0


def read_labels(foreign: Foreign) -> tuple[str, ...] | None:
    """The names of the classes in order; transformers calls them LABEL_0, LABEL_1, … where they
    have none."""
    classes, given = classes_of(foreign), read_sidecar(foreign, ["id2label"]).id2label
    if not classes or not given:
        return None
    names = [given.get(str(index)) for index in range(classes)]
    if len(given) != classes or None in names:
        raise UserError(
            f"{foreign.source}: the head has {classes} classes, but id2label in config.json names "
            f"{len(given)}, expected one for each of 0 to {classes - 1}"
        )
    if names == [f"LABEL_{index}" for index in range(classes)]:
        return None
    return tuple(str(name) for name in names)


def write_labels(passport: Passport, config: Config) -> dict[str, Any]:
    """Without any labels a transformers model returns its features."""
    names = passport.labels or [f"LABEL_{index}" for index in range(config.num_classes)]
    return {
        **({"problem_type": MULTI_LABEL} if passport.multi_label else {}),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def read_multi_label(foreign: Foreign) -> bool:
    """Whether an image may have several labels; a model that was trained to give numbers, or one
    whose problem is unknown, is no classifier."""
    problem = read_sidecar(foreign, ["problem_type"]).problem_type
    if problem in (None, "single_label_classification"):
        return False
    if problem != MULTI_LABEL:
        raise UserError(
            f"{foreign.source}: problem_type in config.json must be single_label_classification "
            f"or {MULTI_LABEL}, got {problem!r}: Vitrail has classifiers only"
        )
    return True
