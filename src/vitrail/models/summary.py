"""A model in one line: its name or kind, its size and how it divides an image."""

from vitrail.models.catalogue import family_of, variant_of
from vitrail.models.config import Config
from vitrail.models.measure import count
from vitrail.models.model import Model

# Families whose class is called otherwise than the architecture.
TITLES = {"resnet": "ResNet", "beit": "BEiT"}
SHAPE = ("dim", "dims", "depth", "depths", "heads")


def summarise(model: Model) -> str:
    """
    >>> summarise(create("vit_ti_16", num_classes=2, image_size=32))
    'vit_ti_16, 5,487,938 parameters, 32x32 pixels, patch 16'
    >>> summarise(create("vit_ti_16", num_classes=2, image_size=32, depth=1))
    'ViT (custom), 594,434 parameters, 32x32 pixels, patch 16, dim 192, depth 1, heads 3'
    """
    config = model.config
    name = variant_of(config)
    parts = [
        name or f"{family_title(model)} (custom)",
        f"{count(model):,} parameters",
        f"{config.image_size[0]}x{config.image_size[1]} pixels",
        *([f"patch {patch}"] if (patch := patch_pixels(config)) else []),
    ]
    if name is None:
        shape = {field: getattr(config, field) for field in SHAPE if hasattr(config, field)}
        parts += [f"{field} {format_sizes(value)}" for field, value in shape.items()]
    return ", ".join(parts)


def family_title(model: Model) -> str:
    """
    >>> family_title(create("resnet18"))
    'ResNet'
    """
    return TITLES.get(family_of(model.config), type(model).__name__)


def patch_pixels(config: Config) -> str:
    """The side of a patch in pixels of the image, with the stride of a stem; "" without patches."""
    grid = getattr(config, "grid", None)
    if family_of(config) not in ("vit", "beit") or grid is None:
        return ""
    high, wide = (side // cells for side, cells in zip(config.image_size, grid, strict=True))
    return str(high) if high == wide else f"{high}x{wide}"


def format_sizes(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
