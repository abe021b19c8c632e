"""Small images within a page, as data URIs."""

from base64 import b64encode
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

SIDE = 192  # pixels of the longer side: enough to see what was mistaken for what
TINY = 48  # pixels: below, every one of them counts, and stays a square on the page


def data_uri(image: "NDArray[np.uint8] | Image.Image", side: int = SIDE, quality: int = 80) -> str:
    """Pixels (H, W) or (H, W, C), or a PIL image, no longer than `side`, as a data URI: PNG where
    they are few, else JPEG.

    >>> data_uri(np.zeros((8, 8, 3), np.uint8))[:22]
    'data:image/png;base64,'
    """
    from PIL import Image

    if isinstance(image, np.ndarray):
        image = Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image)
    small = image.convert("L" if image.mode == "L" else "RGB")
    kind = "png" if min(small.size) < TINY else "jpeg"
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    file = BytesIO()
    small.save(file, kind, quality=quality)
    return encoded(file.getvalue(), kind)


def overlay_uri(colours: NDArray[np.uint8]) -> str:
    """Colours (H, W, 4) with their transparency, to lie over an image: PNG.

    >>> overlay_uri(np.zeros((2, 2, 4), np.uint8))[:15]
    'data:image/png;'
    """
    from PIL import Image

    file = BytesIO()
    Image.fromarray(colours).save(file, "png", optimize=True)
    return encoded(file.getvalue(), "png")


def encoded(data: bytes, kind: str) -> str:
    """An image file's bytes as a data URI."""
    return f"data:image/{kind};base64,{b64encode(data).decode()}"
