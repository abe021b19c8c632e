"""The image as the model sees it, and what the model says of it: from `tasks/seen_image.py`."""

from vitrail.tasks.seen_image import (
    SeenImage,
    class_score,
    from_pixels,
    label_of,
    pixels_of,
    png_address,
    png_bytes,
    see,
    to_rgb,
    to_scores,
    top_classes,
)

__all__ = [
    "SeenImage",
    "class_score",
    "from_pixels",
    "label_of",
    "pixels_of",
    "png_address",
    "png_bytes",
    "see",
    "to_rgb",
    "to_scores",
    "top_classes",
]
