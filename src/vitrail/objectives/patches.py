"""Images and their patches in objectives: cut, gathered by index, pasted; as pixels, and
as a model reads them.

Axes: N patches, n of them picked · p q height and width of a patch
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.layout import Sides, height_and_width
from vitrail.core.passport import Preprocessing
from vitrail.models.model import Model
from vitrail.models.vit import ViT


def cut(images: Float[Tensor, "B C H W"], patch: Sides) -> Float[Tensor, "B N C p q"]:
    """Patches in reading order."""
    high, wide = height_and_width(patch)
    return rearrange(images, "B C (r p) (k q) -> B (r k) C p q", p=high, q=wide)


def paste(patches: Float[Tensor, "B N C p q"], grid: tuple[int, int]) -> Float[Tensor, "B C H W"]:
    """The image that `cut` gave these patches of."""
    return rearrange(patches, "B (r k) C p q -> B C (r p) (k q)", r=grid[0])


def places_of(mask: Bool[Tensor, "B N"], count: int) -> Int[Tensor, "B n"]:
    """Where a mask of `count` patches a sample is true, in reading order. That the number is known
    beforehand keeps shapes from depending on draws."""
    return (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :count]


def gather_patches(
    x: Float[Tensor, "B N ..."], places: Int[Tensor, "B n"]
) -> Float[Tensor, "B n ..."]:
    """Of each sample those in its own places."""
    return x.gather(1, expand_places(places, x))


def scatter_patches(
    x: Float[Tensor, "B N ..."], places: Int[Tensor, "B n"], values: Float[Tensor, "B n ..."]
) -> Float[Tensor, "B N ..."]:
    """The same with other values in those places."""
    return x.scatter(1, expand_places(places, values), values.to(x.dtype))


def expand_places(
    places: Int[Tensor, "B n"], x: Float[Tensor, "B N ..."]
) -> Int[Tensor, "B n ..."]:
    """A place for every number of a patch, as gathering and scattering want it."""
    return places.view(*places.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:])


def at_least_float32(x: Tensor) -> Tensor:
    """Losses are no place for half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def pixels(images: Float[Tensor, "*N C H W"], before: Preprocessing) -> Float[Tensor, "*N C H W"]:
    """From 0 to 1, as they were before they were prepared for a model."""
    mean, std = (images.new_tensor(values)[:, None, None] for values in (before.mean, before.std))
    return images * std + mean


def prepared(pixels: Float[Tensor, "*N C H W"], before: Preprocessing) -> Float[Tensor, "*N C H W"]:
    """What the model reads of pixels from 0 to 1 that have the right size already."""
    mean, std = (pixels.new_tensor(values)[:, None, None] for values in (before.mean, before.std))
    return (pixels - mean) / std


def check_vit(model: Model, what: str) -> ViT:
    """The model, if each of its tokens stands for one patch all the way."""
    if not isinstance(model, ViT):
        raise UserError(f"{what} needs a ViT or one of its hybrids, not a {type(model).__name__}")
    if model.config.patch_dropout:
        raise UserError(
            f"patch_dropout is {model.config.patch_dropout:g}, but {what} hides patches by itself: "
            "create the model with patch_dropout=0"
        )
    return model


def patch_tokens(model: ViT, x: Float[Tensor, "B M D"]) -> Float[Tensor, "B N D"]:
    """What `through` gives for the patches alone, with the norm that some models have only after
    pooling."""
    return (x if model.config.final_norm == "tokens" else model.norm(x))[:, model.config.prefix :]
