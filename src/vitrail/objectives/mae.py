"""Masked autoencoding (arXiv:2111.06377): the pixels of hidden patches, from a few visible ones.

    image ── embed ── visible ── encoder ── and mask tokens ── decoder ── pixels of the hidden
    B C H W  B N D    B S D    B S D      B N E              B N E      B M P

The encoder sees visible patches alone, no hidden one and no mask token: three quarters of its
work are saved, and what it learns from is what it will see later. A small decoder, which goes when
pre-training is over, has a mask token for every hidden patch and knows where each one was.
Axes: B batch · N patches, S of them visible, M hidden · D width · E decoder's width · P pixels
"""

import math
from typing import ClassVar

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.layers.linear import Linear
from vitrail.layers.position import sincos_2d
from vitrail.models.model import Model
from vitrail.models.swin import Swin
from vitrail.models.vit import Block, ViT, ViTConfig
from vitrail.objectives.masks import check_ratio, shuffled
from vitrail.objectives.objective import Losses, Objective
from vitrail.objectives.patches import at_least_float32, cut, gather_patches, paste, scatter_patches

PUBLISHED_DIM, PUBLISHED_DEPTH, HEAD_DIM = 512, 8, 32  # the decoder of every published size


class MAE(Objective):
    """The mean squared error on hidden patches: of their pixels, each patch brought to mean 0 and
    deviation 1 with `norm_pix`.

    The published decoder is 512 wide and 8 deep, its heads 32 wide, for encoders from 768 wide and
    12 deep. By default a smaller encoder gets one of two thirds of its own width
    and depth, in whole heads, which is the same for 768 and 12.
    """

    model: ViT
    metric_names: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(
        self,
        model: Model,
        *,
        ratio: float = 0.75,
        norm_pix: bool = True,
        decoder_dim: int | None = None,
        decoder_depth: int | None = None,
        decoder_heads: int | None = None,
    ) -> None:
        super().__init__(readable(model, norm_pix=norm_pix))
        config = self.model.config
        self.norm_pix = norm_pix
        self.patches = config.grid[0] * config.grid[1]
        self.visible = how_many(ratio, self.patches)
        self.decoder = Decoder(config, decoder_dim, decoder_depth, decoder_heads)

    def draw(self, seed: int, epoch: int, indices: NDArray[np.int64]) -> Int[Tensor, "B N"]:
        """The patches of each sample in an order of its own, of which the first are visible."""
        order = shuffled(self.patches, seed=seed, epoch=epoch, indices=indices)
        return torch.from_numpy(order)

    def forward(self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]) -> Losses:
        return {"loss": self.cost(images, drawn).mean()}

    def outputs(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B 1"]:
        assert drawn is not None, "a loss is one of hidden patches"
        return self.cost(images, drawn)[:, None]

    def cost(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, " B"]:
        pixels = self.hidden_pixels(images, drawn)
        if self.norm_pix:
            mean, deviation = measure(pixels)
            pixels = (pixels - mean) / deviation
        return (self.guess(images, drawn) - pixels).square().mean(dim=(1, 2))

    def guess(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B M P"]:
        """What the decoder says of the hidden patches, in the order in which they were drawn."""
        x = self.encode(images, drawn[:, : self.visible])
        return self.decoder(x, drawn, hidden=self.patches - self.visible)

    def encode(
        self, images: Float[Tensor, "B C H W"], visible: Int[Tensor, "B S"]
    ) -> Float[Tensor, "B T D"]:
        """The prefix tokens and the visible patches, as the encoder leaves them."""
        x, prefix = self.model.embed(images), self.model.config.prefix
        x = self.model.forward_blocks(
            torch.cat([x[:, :prefix], gather_patches(x[:, prefix:], visible)], dim=1)
        )
        # a model that norms what it has pooled has a norm all the same, and the decoder reads it
        return self.model.norm(x) if self.model.config.final_norm == "pooled" else x

    def hidden_pixels(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B M P"]:
        """Row by row, the channels of a pixel side by side."""
        patches = cut(at_least_float32(images), self.model.config.patch_size)
        return rearrange(
            gather_patches(patches, drawn[:, self.visible :]), "B M C p q -> B M (p q C)"
        )

    @torch.no_grad()
    def illustrate(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> dict[str, Float[Tensor, "B C H W"]]:
        """Hidden patches grey, and as they are guessed. With `norm_pix` a guess has no brightness
        and no contrast of its own: it is drawn with those of the patch it stands for."""
        pixels, guess = self.hidden_pixels(images, drawn), self.guess(images, drawn)
        if self.norm_pix:
            mean, deviation = measure(pixels)
            guess = guess * deviation + mean
        grey = torch.zeros_like(pixels)  # the mean colour, which is zero after preprocessing
        return {
            "original": images,
            "masked": self.paste(images, grey, drawn),
            "reconstructed": self.paste(images, guess, drawn),
        }

    def paste(
        self,
        images: Float[Tensor, "B C H W"],
        pixels: Float[Tensor, "B M P"],
        drawn: Int[Tensor, "B N"],
    ) -> Float[Tensor, "B C H W"]:
        """The images with other pixels in the place of hidden patches."""
        config = self.model.config
        high, wide = config.patch_sides
        found = rearrange(pixels, "B M (p q C) -> B M C p q", p=high, q=wide)
        patches = scatter_patches(cut(images, config.patch_size), drawn[:, self.visible :], found)
        return paste(patches, config.grid)


class Decoder(nn.Module):
    """A narrow ViT from tokens to pixels.

    Nothing in a block asks where a token stands in the sequence: patches stay in the order in which
    they were drawn, and each takes its position along. The table of positions is fixed, yet kept
    with the weights, because a published one goes on with its own.
    """

    positions: Tensor

    def __init__(
        self, encoder: ViTConfig, dim: int | None, depth: int | None, heads: int | None
    ) -> None:
        super().__init__()
        self.config = config = decoder_config(encoder, dim, depth, heads)
        self.embed = Linear(encoder.dim, config.dim)
        self.mask = nn.Parameter(torch.empty(1, 1, config.dim))
        self.register_buffer("positions", make_positions(config))
        self.blocks = nn.ModuleList(Block(config, drop_path=0.0) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.pixels = Linear(config.dim, math.prod(config.patch_sides) * config.channels)
        self.init_weights()

    def forward(
        self, x: Float[Tensor, "B T D"], drawn: Int[Tensor, "B N"], *, hidden: int
    ) -> Float[Tensor, "B M P"]:
        """Pixels of the patches that were drawn last, so many as are hidden."""
        prefix = self.config.prefix
        before, places = self.positions.split([prefix, self.positions.shape[1] - prefix], dim=1)
        places = torch.cat([before.expand(len(x), -1, -1), places[0, drawn]], dim=1)
        x = self.embed(x)
        masks = self.mask.to(x.dtype).expand(len(x), places.shape[1] - x.shape[1], -1)
        x = torch.cat([x, masks], dim=1) + places
        for block in self.blocks:
            x = block(x)
        return self.pixels(self.norm(x[:, -hidden:]))

    @torch.no_grad()
    def init_weights(self) -> None:
        """As the published code does.

        | what | how |
        |---|---|
        | linear layers; q, k and v as one | Xavier uniform |
        | biases | 0 |
        | mask token | N(0, 0.02) |
        | norms | 1 and 0 |
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.mask, std=0.02)


def readable(model: Model, *, norm_pix: bool) -> ViT:
    """The model, if hidden patches can be kept from it by leaving them out."""
    if not isinstance(model, ViT):
        swin = isinstance(model, Swin)
        raise UserError(
            f"mae drops masked patches, which a {type(model).__name__} does not support: use a "
            f"ViT{', or simmim, which replaces them by mask tokens' if swin else ''}"
        )
    config = model.config
    if config.positions == "relative":
        raise UserError(
            'mae leaves patches out, and positions="relative" counts the tokens between two: '
            "use learned or sincos2d"
        )
    if config.stem is not None:
        raise UserError(
            "mae hides patches by leaving them out, and the stem of a hybrid has mixed their "
            "pixels into their neighbours by then: use a ViT without a stem"
        )
    if config.patch_dropout:
        raise UserError(
            f"patch_dropout must be 0 for mae, which drops patches itself, got "
            f"{config.patch_dropout}"
        )
    if norm_pix and config.patch_sides == (1, 1) and config.channels == 1:
        raise UserError("patches of one value cannot be normalised: use norm_pix=False")
    return model


def how_many(ratio: float, patches: int) -> int:
    """Patches to show: rounded as the published code does, one at least, and never all.

    >>> how_many(0.75, 196), how_many(0.75, 2)
    (49, 1)
    """
    check_ratio(ratio)
    if patches < 2:
        raise UserError(
            f"mae needs at least 2 patches, got {patches}: use larger images or smaller patches"
        )
    return min(max(int(patches * (1 - ratio)), 1), patches - 1)


def decoder_config(
    encoder: ViTConfig, dim: int | None, depth: int | None, heads: int | None
) -> ViTConfig:
    """What is not given follows from the encoder, as `MAE` says."""
    if dim is None:
        dim = min(PUBLISHED_DIM, max(2 * encoder.dim // 3 // HEAD_DIM, 1) * HEAD_DIM)
    if depth is None:
        depth = min(PUBLISHED_DEPTH, max(2 * encoder.depth // 3, 1))
    if heads is None:
        heads = next(n for n in range(max(dim // HEAD_DIM, 1), 0, -1) if dim % n == 0)
    if heads < 1 or dim % heads:
        raise UserError(
            f"decoder_dim {dim} does not split into {heads} decoder_heads: use a divisor of it"
        )
    return ViTConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        mlp_dim=4 * dim,
        patch_size=encoder.patch_size,
        image_size=encoder.image_size,
        channels=encoder.channels,
        norm_eps=encoder.norm_eps,
        num_classes=0,
        pool="mean",
        class_token=False,
        registers=encoder.prefix,  # whatever they are there, here they are tokens without a place
        positions="none",
    )


def make_positions(config: ViTConfig) -> Float[Tensor, "1 N E"]:
    """Zeros for the prefix tokens, then sines and cosines. The published wave lengths end a step
    before the 10,000 at which those of `sincos_2d` do, so they end at a smaller number there."""
    steps = max(config.dim // 4, 1)
    table = sincos_2d(config.grid, config.dim, temperature=10_000 ** ((steps - 1) / steps))
    zeros = table.new_zeros(config.prefix, config.dim)
    return torch.cat([zeros, table])[None].to(torch.get_default_dtype())


def measure(
    patches: Float[Tensor, "B M P"],
) -> tuple[Float[Tensor, "B M 1"], Float[Tensor, "B M 1"]]:
    """Mean and deviation of every patch."""
    variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
    return mean, (variance + 1e-6).sqrt()
