"""The image as the model sees it, and what the model says of it."""

import base64
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.data.bands import to_display
from vitrail.data.images import BadImage
from vitrail.data.preprocess import denormalise, normalise
from vitrail.data.reader import read_image
from vitrail.explanation.capture import at_least_float32
from vitrail.inference.predict import class_names
from vitrail.inference.prediction import NOT_FINITE
from vitrail.models.model import Model


@dataclass(frozen=True)
class SeenImage:
    """One image, prepared as the model's passport says, and its pixels at that size."""

    tensor: Float[Tensor, "1 C H W"]
    pixels: UInt8[np.ndarray, "H W C"]

    @property
    def size(self) -> tuple[int, int]:
        return self.tensor.shape[2], self.tensor.shape[3]

    @property
    def rgb(self) -> UInt8[np.ndarray, "H W 3"]:
        return to_rgb(self.pixels)


def see(model: Model, image: Image.Image | NDArray[Any] | None) -> SeenImage:
    """Prepare an image for a model, on its device and in its precision; bands are shown as
    colours."""
    if image is None:
        raise UserError("an image is missing: send one in the field images")
    how = model.passport.preprocessing
    try:
        pixels = read_image(image, how)
    except BadImage as problem:
        raise UserError(str(problem)) from None
    tensor = normalise(pixels[None], how, reorder=False).to(next(model.parameters()))
    rgb = pixels.flip(0) if how.channel_order == "bgr" else pixels
    shown = rgb.movedim(0, -1).numpy()
    shown = shown if how.is_photo else to_display(shown, how)
    return SeenImage(tensor, np.ascontiguousarray(shown))


def from_pixels(model: Model, pixels: UInt8[np.ndarray, "H W C"]) -> Float[Tensor, "1 C H W"]:
    """Pixels of the model's size, RGB where it reads three channels, as it reads them."""
    image = torch.from_numpy(np.ascontiguousarray(pixels)).movedim(-1, 0)[None]
    return normalise(image, model.passport.preprocessing).to(next(model.parameters()))


def pixels_of(model: Model, tensor: Float[Tensor, "1 C H W"]) -> UInt8[np.ndarray, "H W C"]:
    """The way back from a prepared image, rounded."""
    pixels = denormalise(tensor.float().cpu(), model.passport.preprocessing)[0]
    return np.ascontiguousarray(pixels.numpy())


def to_rgb(pixels: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """Three channels to look at: grey three times, or the first three of more."""
    channels = pixels.shape[2]
    return pixels[..., :3] if channels >= 3 else np.repeat(pixels[..., :1], 3, axis=2)


def to_scores(model: Model, logits: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
    """Probabilities: of each label by itself where an image may have several."""
    logits = at_least_float32(logits)
    return logits.sigmoid() if model.passport.multi_label else logits.softmax(dim=-1)


def finite_scores(model: Model, logits: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
    """The same, refused where there are none."""
    if not logits.isfinite().all():
        raise UserError(f"{NOT_FINITE}, as after a run that diverged: give another checkpoint")
    return to_scores(model, logits)


def label_of(model: Model, index: int) -> str:
    """The name of a class; "class 3" where it has none."""
    return class_names(model)[index]


def class_score(model: Model, index: int, scores: Float[Tensor, " K"]) -> dict[str, Any]:
    return {"index": index, "label": label_of(model, index), "score": float(scores[index])}


def top_classes(model: Model, scores: Float[Tensor, " K"], count: int = 10) -> list[dict[str, Any]]:
    """The best classes, the best first, and of equal ones the first."""
    best = np.argsort(-scores.double().cpu().numpy(), kind="stable")[:count]
    return [class_score(model, index, scores) for index in best.tolist()]


def png_address(pixels: UInt8[np.ndarray, "H W C"]) -> str:
    """An image as an address that holds it (data:image/png)."""
    return f"data:image/png;base64,{base64.b64encode(png_bytes(pixels)).decode()}"


def png_bytes(pixels: UInt8[np.ndarray, "H W C"]) -> bytes:
    out = BytesIO()
    Image.fromarray(to_rgb(pixels)).save(out, format="PNG")
    return out.getvalue()
