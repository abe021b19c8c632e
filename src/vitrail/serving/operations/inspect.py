"""All attention of one image, the prediction after every block, and rollout, in one answer."""

from PIL import Image

from vitrail.core.packed import Packed
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.options import NoOptions
from vitrail.tasks.inspection import inspect_image
from vitrail.tasks.seen_image import see


def run_inspect(context: Context, image: Image.Image | None, options: NoOptions) -> Packed:
    """Everything that the Attention and Lens views show of one image."""
    return inspect_image(context.model, see(context.model, image), context.name)
