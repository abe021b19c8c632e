"""MobileNetV2: its sizes by our names. No tensor depends on the size of an image."""

from vitrail.weights.families.family import FamilyWeights, NamedTensors, resolve_from_variants
from vitrail.weights.rows import Facts

# No tensor shows them.
NOT_IN_TENSORS = ("image_size", "norm_eps", "dropout", "drop_path")
STAGES = range(7)


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a MobileNetV2 show."""
    stem, channels = tensors.shape("stem.conv.weight", 4)[:2]
    hidden, before = tensors.shape("stages.1.0.expand.conv.weight", 4)[:2]
    widths = (tensors.shape(f"stages.{s}.0.project.conv.weight", 4)[0] for s in STAGES)
    return {
        "channels": channels,
        "stem": stem,
        "widths": tuple(widths),
        "depths": tuple(tensors.count(f"stages.{s}.{{}}.project.conv.weight") for s in STAGES),
        "last": tensors.shape("last.conv.weight", 4)[0],
        "expand": hidden / before,
        "num_classes": tensors.classes(),
    }


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_from_variants("mobilenetv2"),
    kernel=lambda _: "stem.conv.weight",
)
