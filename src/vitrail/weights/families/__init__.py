"""Every family's way with weights, by its name."""

from importlib import import_module

from vitrail.weights.families.family import FamilyWeights


def family_weights(name: str) -> FamilyWeights:
    """What a family has to say about weights: `families/NAME.py`."""
    found = import_module(f"vitrail.weights.families.{name}").FAMILY
    assert isinstance(found, FamilyWeights)
    return found
