"""ResNet v1.5: its sizes by our names. No tensor depends on the size of an image."""

from vitrail.core.errors import UserError
from vitrail.weights.families.family import FamilyWeights, NamedTensors, resolve_from_variants
from vitrail.weights.rows import Facts

# No tensor shows them.
NOT_IN_TENSORS = ("image_size", "norm_eps", "dropout", "drop_path")
STEMS = {7: "7x7", 3: "3x3"}  # by the side of their kernel


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a ResNet show."""
    width, channels, side, _ = tensors.shape("stem.first.conv.weight", 4)
    bottleneck = "stages.0.0.conv3.conv.weight" in tensors.tensors
    if side not in STEMS:
        raise UserError(
            f"{tensors.source}: the stem of a ResNet is 7x7, or 3x3 for small images, got "
            f"{side}x{side}"
        )
    refuse_other_blocks(tensors, width, bottleneck)
    return {
        "channels": channels,
        "depths": tensors.depths("stages.{}.{}.conv1.conv.weight"),
        "block": "bottleneck" if bottleneck else "basic",
        "width": width,
        "stem": STEMS[side],
        "num_classes": tensors.classes(),
    }


def refuse_other_blocks(tensors: NamedTensors, width: int, bottleneck: bool) -> None:
    """Wide ResNets and ResNeXt have the same names."""
    name = f"stages.0.0.conv{2 if bottleneck else 1}.conv.weight"
    middle, each = tensors.shape(name, 4)[:2]
    if middle == each == width:
        return
    kind = "a wide ResNet" if middle == each else "a ResNeXt"
    raise UserError(
        f"{tensors.source}: the first 3x3 convolution of a ResNet must have {width} channels, "
        f"as the stem has, got {middle} from {each}: this is {kind}, which Vitrail does not compute"
    )


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_from_variants("resnet"),
    kernel=lambda _: "stem.first.conv.weight",
)
