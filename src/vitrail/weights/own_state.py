"""Tensors of a Vitrail model without its checkpoint: `torch.save(model.state_dict(), "x.pth")`.

Their names are ours, but the config is not among them. It comes from a config.json of ours
beside them, from the model that the person names, or from the one published model they fit.
"""

from dataclasses import replace
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport
from vitrail.models.catalogue import (
    FAMILIES,
    change,
    family_of,
    fresh_passport,
    shapes_of,
    variant_of,
)
from vitrail.models.config import Config, Purpose, fields_for
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.dialect import Foreign
from vitrail.weights.families import family_weights
from vitrail.weights.native import check_state, read_passport
from vitrail.weights.translate import Coverage

# The tensors show them, or another is requested.
SIZES = ("image_size", "channels", "num_classes", "head")
# Names that a family without attention has, and no other code base.
CONVOLUTIONAL = (
    {"stem.first.conv.weight", "stages.0.0.conv1.conv.weight"},  # ResNet
    {"stem.conv.weight", "stages.0.0.norm1.weight", "stages.0.0.shortcut.weight"},  # BiT
    {"stem.conv.weight", "stages.0.0.filter.conv.weight", "last.conv.weight"},  # MobileNetV2
)
# How the tensors end of which every block has one: with attention, and in families without.
BLOCK_ENDS = (
    (".attention.qkv.weight",),
    (".conv1.conv.weight", ".conv1.weight", ".filter.conv.weight"),
)
ASSUMED = (
    "a state dict of Vitrail: values scaled to [-1, 1] and no class names, because it does not "
    "contain them (vitrail.save keeps them)"
)


def refuse_adapted(foreign: Foreign) -> None:
    """Low-rank changes are scaled by a number that no tensor holds: they cannot be merged here."""
    if any(".parametrizations." in name for name in foreign.tensors):
        raise UserError(
            f"{foreign.source}: it holds LoRA or another parametrization apart from the weights: "
            "save that model with vitrail.save, which merges them"
        )


def is_own_state(foreign: Foreign) -> bool:
    """Whether tensors have the names of one of our families."""
    names = foreign.tensors.keys()
    if "vitrail" in foreign.sidecars.get("config.json", {}):
        return True
    if any(convolutional <= names for convolutional in CONVOLUTIONAL):
        return True
    kernels = ("patches.projection.weight", "stem.conv.weight", "stem.conv1.weight")
    inside = (".attention.qkv.weight", ".attention.out.weight")
    return any(kernel in names for kernel in kernels) and all(
        any(name.endswith(part) for name in names) for part in inside
    )


def open_own_state(
    foreign: Foreign, *, origin: str, named: Config | None, overrides: dict[str, Any]
) -> Checkpoint:
    """The checkpoint that such tensors are part of, as far as it is known."""
    beside = foreign.sidecars.get("config.json", {})
    if "vitrail" in beside:
        passport, config = read_passport(beside, where=f"{foreign.source}: config.json")
        check_state(foreign.tensors, passport, config, where=foreign.source)
        notes = (*foreign.notes, "not verified: no manifest.json beside the tensors")
    else:
        config = own_config(foreign, named, overrides)
        passport, notes = fresh_passport(config), (*foreign.notes, ASSUMED)
        if named is None:
            notes = (*notes, unseen(config))
    passport = with_origin(passport, origin, notes)
    return Checkpoint(dict(foreign.tensors), config, passport, "vitrail", Coverage(), notes)


def with_origin(passport: Passport, origin: str, notes: tuple[str, ...]) -> Passport:
    changes = (*passport.origin.changes, *notes)
    source = passport.origin.source if passport.origin.source != "fresh" else origin
    return replace(passport, origin=replace(passport.origin, source=source, changes=changes))


def own_config(foreign: Foreign, named: Config | None, overrides: dict[str, Any]) -> Config:
    """The config whose model has exactly these tensors."""
    requested = {name: value for name, value in overrides.items() if name not in SIZES}
    if named is not None:
        config = sized(change(named, requested), foreign, overrides.get("image_size"))
        try:
            check_state(foreign.tensors, fresh_passport(config), config, where=foreign.source)
        except UserError as error:
            hint = "give the model= and the fields that it was created with, such as image_size="
            raise UserError(f"{error}: {hint}") from None
        return config
    rows = (row.config for family in FAMILIES.values() for row in family.variants.values())
    size = overrides.get("image_size")
    close = {sized(row, foreign, size) for row in rows if is_like(row, foreign)}
    fitting = [config for config in close if has_shapes(config, foreign)]
    if len(fitting) == 1:
        return fitting[0]
    which = "several published models fit" if fitting else "no published model fits"
    raise UserError(
        f"{foreign.source}: its tensors have Vitrail's names, and {which}: give model=NAME "
        "and the fields it was created with, or save it with vitrail.save"
    )


def unseen(config: Config) -> str:
    """A note on what was taken from the published model that the tensors fit."""
    values = ", ".join(
        f"{name}={vars(config)[name]}" for name in fields_for(type(config), Purpose.NUMERICS)
    )
    return (
        f"taken for {variant_of(config)}: {values}, which a state dict does not show; if it was "
        "created with others, give model= and those fields"
    )


def kernel_of(config: Config, foreign: Foreign) -> tuple[int, ...]:
    """The shape of what would read the image in a model of this config."""
    kernel = foreign.tensors.get(family_weights(family_of(config)).kernel(config))
    return tuple(kernel.shape) if kernel is not None and kernel.ndim == 4 else (0, 0, 0, 0)


def is_like(config: Config, foreign: Foreign) -> bool:
    """Whether width and number of blocks are the same, seen without building the model."""
    values: dict[str, Any] = vars(config)
    width = values.get("stem") or values.get("dim") or 0
    if "depths" in values and "width" in values:  # a ResNet or BiT, as wide as its stem
        width = values["width"]
    width = width[0] if isinstance(width, tuple) else getattr(width, "width", width)
    counts = [sum(name.endswith(ends) for name in foreign.tensors) for ends in BLOCK_ENDS]
    blocks = counts[0] or counts[1]
    kinds = values.get("kinds")  # which stages have attention, of a CoAtNet
    depths = values.get("depths") or (values.get("depth", 0),)
    expected = sum(d for i, d in enumerate(depths) if kinds is None or kinds[i] == "T")
    return 0 < width == kernel_of(config, foreign)[0] and blocks == expected  # a tokenizer has none


def sized(config: Config, foreign: Foreign, size: Any) -> Config:
    """The config with what the tensors show: classes, channels, kind of head; at the image size
    that was given, if the tensors are of that, or else at its own."""
    last = foreign.tensors.get("head.classes.weight")
    shown: dict[str, Any] = {
        "channels": kernel_of(config, foreign)[1] or config.channels,
        "num_classes": 0 if last is None or not last.ndim else last.shape[0],
    }
    if hasattr(config, "head"):
        shown["head"] = "pretrain" if "head.hidden.weight" in foreign.tensors else "linear"
    config = change(config, shown)
    if size is None or has_shapes(config, foreign):
        return config
    return change(config, {"image_size": size})


def has_shapes(config: Config, foreign: Foreign) -> bool:
    shapes = shapes_of(config)
    return shapes == {name: tensor.shape for name, tensor in foreign.tensors.items()}
