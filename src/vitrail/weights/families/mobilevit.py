"""MobileViT: its sizes by our names. No tensor depends on the size of an image."""

from vitrail.weights.families.family import (
    FamilyWeights,
    NamedTensors,
    resolve_from_variants,
)
from vitrail.weights.rows import Facts

# No tensor shows them; `expand` is known as far as rounding to multiples of 8 leaves it.
NOT_IN_TENSORS = ("image_size", "heads", "patch_size", "norm_eps", "dropout", "drop_path")
TRANSFORMERS = (2, 3, 4)  # the stages that have one


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a MobileViT show."""
    return stages_of(tensors, axes=2) | {"last": tensors.shape("last.conv.weight", 4)[0]}


def stages_of(tensors: NamedTensors, axes: int) -> Facts:
    """What the tensors of either version show; weights of an MLP have `axes` axes."""
    stem, channels = tensors.shape("stem.conv.weight", 4)[:2]
    dims = tuple(tensors.shape(f"stages.{s}.1.embed.weight", 4)[0] for s in TRANSFORMERS)
    widths = (tensors.shape(f"stages.{s}.0.project.conv.weight", 4)[0] for s in range(5))
    names = (f"stages.{s}.1.blocks.{{}}.norm1.weight" for s in TRANSFORMERS)
    return {
        "channels": channels,
        "stem": stem,
        "widths": tuple(widths),
        "dims": dims,
        "depths": tuple(tensors.count(name) for name in names),
        "expand": tensors.shape("stages.0.0.expand.conv.weight", 4)[0] / stem,
        "mlp_ratio": tensors.shape("stages.2.1.blocks.0.mlp.fc1.weight", axes)[0] / dims[0],
        "num_classes": tensors.classes(),
    }


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_from_variants("mobilevit"),
    kernel=lambda _: "stem.conv.weight",
)
