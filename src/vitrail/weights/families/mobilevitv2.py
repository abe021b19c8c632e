"""MobileViT V2: its sizes by our names. No tensor depends on the size of an image."""

from functools import partial

from vitrail.weights.families.family import FamilyWeights, resolve_from_variants
from vitrail.weights.families.mobilevit import stages_of

# No tensor shows them; `expand` is known as far as rounding to multiples of 8 leaves it.
NOT_IN_TENSORS = ("image_size", "patch_size", "norm_eps", "dropout", "drop_path")

FAMILY = FamilyWeights(
    config_of=partial(stages_of, axes=4),
    resolve_config=resolve_from_variants("mobilevitv2"),
    kernel=lambda _: "stem.conv.weight",
)
