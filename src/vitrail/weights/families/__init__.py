"""Every family's way with weights, by its name."""

from importlib import import_module

from vitrail.models.catalogue import BUILT_IN
from vitrail.weights.families.family import FamilyWeights, resolve_from_variants


def family_weights(name: str) -> FamilyWeights:
    """What a family knows about weights: `families/NAME.py`. Weights of a family that
    somebody registered are never resized."""
    if name not in BUILT_IN:
        resolve = resolve_from_variants(name)
        return FamilyWeights(config_of=lambda _: {}, resolve_config=resolve, kernel=lambda _: "")
    found = import_module(f"vitrail.weights.families.{name}").FAMILY
    assert isinstance(found, FamilyWeights)
    return found
