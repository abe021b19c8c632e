"""timm's config.json: what it specifies beside the tensors, and how it is written.

It names an architecture, the arguments that its model was made with (model_args) and how images are
prepared for the weights (pretrained_cfg).
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing
from vitrail.core.records import validate
from vitrail.models.config import Config
from vitrail.weights.dialect import AllowList, Foreign
from vitrail.weights.rows import Facts

ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu")
POOLS = {"token": "cls", "avg": "mean"}

# Their names for our config fields, where a value is the same in both.
SHAPE = {
    "img_size": "image_size",
    "patch_size": "patch_size",
    "in_chans": "channels",
    "embed_dim": "dim",
    "depth": "depth",
    "num_heads": "heads",
    "init_values": "layer_scale",
}


def section(foreign: Foreign, name: str) -> dict[str, Any]:
    """model_args or pretrained_cfg; empty where there is none."""
    value = foreign.sidecars.get("config.json", {}).get(name)
    return value if isinstance(value, dict) else {}


def config_arguments(foreign: Foreign) -> Facts:
    """What timm's own config.json adds: its architecture's name and the arguments it was made
    with; the config that comes of it checks their types."""
    config, arguments = foreign.sidecars.get("config.json", {}), section(foreign, "model_args")
    facts = image_size(foreign)
    read = ("num_heads", "init_values")
    facts |= {SHAPE[name]: arguments[name] for name in read if name in arguments}
    pool = arguments.get("global_pool", config.get("global_pool")) or None
    if isinstance(pool, str) and pool in POOLS:
        facts["pool"] = POOLS[pool]
    if pool is not None and "pool" not in facts:
        raise UserError(
            f"{foreign.source}: global_pool must be 'token' or 'avg', got {pool!r}: "
            "Vitrail computes no other"
        )
    act = arguments.get("act_layer")
    if isinstance(act, str) and act in ACTIVATIONS:
        facts["activation"] = act
    return facts


def image_size(foreign: Foreign) -> Facts:
    """The size of the arguments, or else the one that the weights were published with."""
    size = section(foreign, "model_args").get("img_size")
    whole = section(foreign, "pretrained_cfg").get("input_size")
    if size is None and isinstance(whole, list) and len(whole) == 3:
        size = whole[1:]
    if size is None:
        return {}
    return {"image_size": [size, size] if isinstance(size, int) else size}


def evaluated(
    foreign: Foreign,
    config: Config,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    crop: float,
) -> Preprocessing:
    """As pretrained_cfg specifies, or else as given."""
    if config.channels != len(mean):
        mean = std = (0.5,) * config.channels
    pretrained = section(foreign, "pretrained_cfg")
    share: Any = pretrained.get("crop_pct", crop)
    if not isinstance(share, int | float) or not 0.01 <= share <= 1:
        raise UserError(f"{foreign.source}: crop_pct must be in [0.01, 1], got {share!r}")
    height, width = config.image_size
    squash = pretrained.get("crop_mode") == "squash"
    return validate(
        Preprocessing,
        {
            "size": config.image_size,
            "resize": None if squash else (math.floor(height / share), math.floor(width / share)),
            "interpolation": pretrained.get("interpolation", "bicubic"),
            "mean": pretrained.get("mean", mean),
            "std": pretrained.get("std", std),
        },
        where=f"{foreign.source}: pretrained_cfg",
    )


def labels(foreign: Foreign, head: str) -> tuple[str, ...] | None:
    config = foreign.sidecars.get("config.json", {})
    names, classes = config.get("label_names"), foreign.tensors.get(f"{head}.weight")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names) if classes is not None and len(names) == len(classes) else None


def licence(foreign: Foreign) -> str | None:
    found = section(foreign, "pretrained_cfg").get("license")
    return found if isinstance(found, str) else None


def arguments_by_name(names: Mapping[str, str], config: Config) -> dict[str, Any]:
    """Arguments of timm that are fields of ours under another name."""
    values = {theirs: getattr(config, ours) for theirs, ours in names.items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def in_common(
    entry: Callable[[Any], str | None],
    arguments: Callable[[Any], dict[str, Any]],
    architectures: Callable[[str], bool],
    head: str = "head.fc",
) -> dict[str, Any]:
    """What the dialects of all families have in common. Their config.json is one with which
    `timm.create_model("local-dir:…", pretrained=True)` builds this very model: `entry` is the
    function of timm that makes it of these arguments."""

    def sidecars(passport: Passport, config: Config) -> dict[str, dict[str, Any]]:
        return {"config.json": config_json(passport, config, entry(config), arguments(config))}

    return {
        "resize": "timm",
        "sidecars": sidecars,
        "labels": partial(labels, head=head),
        "licence": licence,
        "architectures": AllowList("timm", architectures),
    }


def config_json(
    passport: Passport, config: Config, entry: str | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The config.json of a model that `entry` makes of these arguments."""
    before = passport.preprocessing
    pretrained = {
        "input_size": [config.channels, *config.image_size],
        "interpolation": before.interpolation,
        "mean": list(before.mean),
        "std": list(before.std),
        "crop_pct": before.crop_share,
        "crop_mode": "center" if before.resize else "squash",
        "num_classes": config.num_classes,
    }
    return {
        **({"architecture": entry} if entry else {}),
        "num_classes": config.num_classes,
        "num_features": config.features,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": pretrained,
        **({"label_names": list(passport.labels)} if passport.labels else {}),
    }
