"""SimMIM (arXiv:2111.09886): a mask token in place of each hidden patch, and one linear layer that
predicts its pixels.

    image ── patches, hidden ones replaced ── blocks ── linear ── pixels, compared where hidden
    B C H W            B N D                  B r c E              B C H W
"""

from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.models.swin import Swin
from vitrail.models.vit import ViT
from vitrail.objectives.masks import fitting_unit, in_pixels, unit_mask, veil
from vitrail.objectives.objective import Drawn, Losses, Objective
from vitrail.objectives.patches import at_least_float32, check_vit, patch_tokens


class SimMIM(Objective):
    """For a ViT, Swin or Swin V2. `ratio` of the image is hidden, in squares of `unit` pixels a
    side (None: 32, or what suits images that 32 does not: `fitting_unit`). Pixels are the model's
    own normalised ones, and their distance is the absolute one.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss",)
    model: ViT | Swin

    def __init__(self, model: Model, *, ratio: float = 0.6, unit: int | None = None) -> None:
        super().__init__(model if isinstance(model, Swin) else check_kind(model))
        config = self.model.config
        self.patch = patch_of(self.model)
        self.stride = stride_of(self.model)
        self.ratio = ratio
        self.unit = fitting_unit(config.grid, self.patch) if unit is None else unit
        self.draw(0, 0, np.arange(1))  # says at once if such masks are not to be had
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.dim))
        width = config.dim if isinstance(self.model, ViT) else config.features
        self.decoder = nn.Conv2d(width, config.channels * self.stride**2, 1)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """The mask token truncated N(0, 0.02), the decoder as torch makes a convolution."""
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        self.decoder.reset_parameters()

    def draw(self, seed: int, epoch: int, indices: NDArray[np.int64]) -> Bool[Tensor, "B N"]:
        return unit_mask(
            self.model.config.grid,
            self.patch,
            unit=self.unit,
            ratio=self.ratio,
            seed=seed,
            epoch=epoch,
            indices=indices,
        )

    def forward(self, images: Float[Tensor, "B C H W"], drawn: Drawn) -> Losses:
        """The mean over every hidden pixel and channel of the batch; the small number is SimMIM's
        own, which allows a mask that hides nothing."""
        apart, hidden = self.apart(images, drawn)
        return {"loss": apart.sum() / (hidden.sum() + 1e-5) / images.shape[1]}

    def outputs(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn | None = None
    ) -> Float[Tensor, "B 1"]:
        """The same for each sample."""
        assert drawn is not None
        apart, hidden = self.apart(images, drawn)
        pixels = hidden.sum(dim=(1, 2, 3)) + 1e-5
        return (apart.sum(dim=(1, 2, 3)) / pixels / images.shape[1])[:, None]

    def apart(
        self, images: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B C H W"], Bool[Tensor, "B 1 H W"]]:
        """The error of every masked pixel, 0 elsewhere; and which pixels are masked."""
        hidden = in_pixels(mask, self.model.config.grid, self.patch)
        apart = at_least_float32(images) - at_least_float32(self.reconstruct(images, mask))
        return apart.abs() * hidden, hidden

    def reconstruct(
        self, images: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B C H W"]:
        """The whole image, from the patches that are not hidden. Where a Swin had to make its grids
        even there is more of it than of the image, below and to the right."""

        def corrupt(patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
            return torch.where(mask[..., None], self.mask_token.to(patches.dtype), patches)

        x = self.model.forward_blocks(self.model.embed(images, corrupt))
        if isinstance(self.model, ViT):
            x = patch_tokens(self.model, x).unflatten(1, self.model.config.grid)
        reconstructed = F.pixel_shuffle(self.decoder(x.permute(0, 3, 1, 2)), self.stride)
        return reconstructed[..., : images.shape[2], : images.shape[3]]

    @torch.no_grad()
    def illustrate(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn
    ) -> dict[str, Float[Tensor, "B C H W"]]:
        """The image, what is to be seen of it, and the same with the rest reconstructed."""
        hidden = in_pixels(drawn, self.model.config.grid, self.patch)
        reconstructed = self.reconstruct(images, drawn).to(images.dtype)
        return {
            "original": images,
            "masked": veil(images, hidden),
            "reconstructed": torch.where(hidden, reconstructed, images),
        }


def check_kind(model: Model) -> ViT:
    if not isinstance(model, ViT):
        raise UserError(f"SimMIM needs a ViT, Swin or Swin V2, not a {type(model).__name__}")
    if isinstance(model.config.patch_size, tuple):
        raise UserError(
            "SimMIM hides squares of whole patches, so patches must be square, got "
            f"patch_size={model.config.patch_size}: use mae"
        )
    return check_vit(model, "SimMIM")


def patch_of(model: ViT | Swin) -> int:
    """Pixels a side for one of the tokens that are masked."""
    return model.config.strides[0] if isinstance(model, ViT) else model.config.patch_size


def stride_of(model: ViT | Swin) -> int:
    """Pixels a side for one of the tokens that come out."""
    if isinstance(model, ViT):
        return model.config.strides[0]
    return model.config.patch_size * 2 ** (len(model.config.depths) - 1)
