"""From what a Swin's file tells and what the person says to one config, for both versions.

The first version's tables tell its windows. Nothing in a plain file of the second does: its bias
is computed for windows of any size, and the published ones differ in nothing else.
"""

from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.models.catalogue import FAMILIES, variant_of
from vitrail.models.swin import SwinConfig
from vitrail.weights.families.family import pair
from vitrail.weights.old_dialect import Dialect, Facts, Foreign

# What makes one model, and what its windows are.
SHAPE = ("dim", "depths", "heads", "patch_size")
WINDOWS = ("window_size", "pretrained_windows")


def settle_swin(
    foreign: Foreign,
    dialect: Dialect,
    *,
    named: SwinConfig | None,
    grid: tuple[int, int] | None,
    said: dict[str, Any],
) -> tuple[SwinConfig, list[str]]:
    """The config of a Swin's file as it is, and a sentence for each thing that was looked up."""
    facts = dict(dialect.infer(foreign))
    notes = [*foreign.notes, *facts.pop("notes", ())]
    if named is not None:
        _agree(facts, named, foreign.source)
    like = named or _published(facts, said, dialect.family, foreign.source)
    if like is not None:
        looked_up = [name for name in WINDOWS if hasattr(like, name) and name not in facts]
        facts |= {name: getattr(like, name) for name in looked_up}
        name = variant_of(like)
        if named is None and looked_up:
            notes.append(f"windows of {facts['window_size']}, as {name} has")
    facts = {name: said[name] for name in WINDOWS if name in said} | facts
    if grid is not None:
        rows, columns = pair(grid, "grid")
        facts["image_size"] = (rows * facts["patch_size"], columns * facts["patch_size"])
    elif facts.get("image_size") is None:
        facts["image_size"], note = _size(facts, like, said)
        notes += [note] if note and named is None else []
    config = validate(FAMILIES[dialect.family].config, facts, where=foreign.source)
    assert isinstance(config, SwinConfig)
    return config, notes


def _agree(facts: Facts, named: SwinConfig, where: str) -> None:
    """Refuse a name that the tensors contradict."""
    for name in (*SHAPE, *WINDOWS):
        if name in facts and facts[name] != getattr(named, name):
            ours = getattr(named, name)
            raise UserError(f"{where}: its {name} is {facts[name]}, the model you named has {ours}")


def _published(facts: Facts, said: dict[str, Any], family: str, where: str) -> SwinConfig | None:
    """The published model of this shape; where several have it, the one whose windows the file or
    the person tells."""
    told = {name: said[name] for name in WINDOWS if name in said} | facts
    names = [name for name in (*SHAPE, *WINDOWS) if name in told]
    found: list[SwinConfig] = [
        variant.config
        for variant in FAMILIES[family].variants.values()
        if all(_plain(getattr(variant.config, name)) == _plain(told[name]) for name in names)
    ]
    if len({tuple(getattr(config, name, None) for name in WINDOWS) for config in found}) > 1:
        known = ", ".join(str(variant_of(config)) for config in found)
        raise UserError(
            f"{where}: the file does not tell the size of its windows, and {known} have its shape: "
            "name the model (model=, --model)"
        )
    if not found and "window_size" not in told:
        raise UserError(
            f"{where}: the file does not tell the size of its windows: give window_size=N "
            "(--set window_size=N), or the model's name"
        )
    return found[0] if found else None


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _size(
    facts: Facts, like: SwinConfig | None, said: dict[str, Any]
) -> tuple[tuple[int, int], str]:
    """Weights of a Swin belong to no image size, but its passport does."""
    if like is not None:
        height, width = like.image_size
        return (height, width), f"{height}x{width} pixels, as {variant_of(like)} has"
    if said.get("image_size") is not None:
        return pair(said["image_size"], "image_size"), ""
    side = facts["window_size"] * facts["patch_size"] * 2 ** (len(facts["depths"]) - 1)
    return (side, side), f"{side}x{side} pixels, one window in the last stage"
