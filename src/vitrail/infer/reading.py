"""From a picture's name to the pixels that a model will see, or the reason why that cannot be."""

from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.passport import Preprocessing
from vitrail.data.images import BadImage, decode, read_image
from vitrail.data.preprocess import FAST, framed
from vitrail.infer.paths import is_address


def read_framed(name: str, how: Preprocessing, *, exact: bool) -> UInt8[Tensor, "C H W"] | BadImage:
    """A file or an address, decoded, resized and cropped; `exact`: as the weights' authors did."""
    channels = len(how.mean)
    # scaled decoding averages pixels, which only filters that do so too can be compared with
    at_least = (how.resize or how.size) if not exact and how.interpolation in FAST else None
    try:
        if is_address(name):
            from vitrail.infer.download import download  # here: few need it, and it is slow

            pixels = decode(download(name), name, at_least=at_least, channels=channels)
        else:
            pixels = read_image(name, at_least=at_least, channels=channels)
    except BadImage as problem:
        return problem.with_traceback(None)  # which would keep the file's bytes alive
    return framed(pixels, how, fast=not exact)
