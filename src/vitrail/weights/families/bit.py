"""BiT: its sizes by our names. No tensor depends on the size of an image."""

from dataclasses import replace

from vitrail.core.errors import UserError
from vitrail.models.bit import BiTConfig
from vitrail.weights.families.family import (
    FamilyWeights,
    NamedTensors,
    Request,
    resolve_from_variants,
)
from vitrail.weights.rows import Facts

# No tensor shows them.
NOT_IN_TENSORS = ("image_size", "groups", "standardize", "norm_eps", "dropout", "drop_path")


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a BiT show."""
    width, channels = tensors.shape("stem.conv.weight", 4)[:2]
    middle = tensors.shape("stages.0.0.conv1.weight", 4)[0]
    if middle != width:
        raise UserError(
            f"{tensors.source}: the first block of a BiT must narrow to {width} channels, as many "
            f"as the stem has, got {middle}: is it another model?"
        )
    return {
        "channels": channels,
        "depths": tensors.depths("stages.{}.{}.conv1.weight"),
        "width": width,
        "num_classes": tensors.classes(),
    }


def resolve_config(
    facts: Facts, tensors: NamedTensors, request: Request
) -> tuple[BiTConfig, list[str]]:
    """How kernels are standardised is the dialect's, whatever model is named."""
    facts = dict(facts)
    kind = facts.pop("standardize", "bit")
    config, notes = resolve_from_variants("bit")(facts, tensors, request)
    return replace(config, standardize=kind), notes


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_config,
    kernel=lambda _: "stem.conv.weight",
)
