"""Masked patch prediction (arXiv:2010.11929, appendix B.1.2): what BERT does to words, done to
patches.

    image ── patches ── half of them corrupted ── blocks ── at those: the colour that was there
    B C H W   B N D             B N D             B N D       B n s s

Axes: n corrupted patches · s cells a side of a patch · p pixels a side of it · A values a cell
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError, nearest
from vitrail.core.randomness import uniform
from vitrail.layers.linear import Linear
from vitrail.models.model import Model
from vitrail.models.vit import ViT
from vitrail.objectives.masks import hidden, random_mask
from vitrail.objectives.objective import Drawn, Losses, Objective
from vitrail.objectives.patches import (
    at_least_float32,
    check_vit,
    cut,
    gather_patches,
    paste,
    patch_tokens,
    pixels,
    places_of,
    prepared,
    scatter_patches,
)

Target = Literal["mean-colour", "downsized", "pixels"]

# What happens to a patch; from OTHER on a number is the place of the one whose embedding it gets.
UNTOUCHED, MASKED, KEPT, OTHER = -1, 0, 1, 2
MASKED_SHARE, OTHER_SHARE = 0.8, 0.1  # of the corrupted patches; the rest is kept as it is

LEVELS = 8  # three bits a channel
DOWNSIZED = 4  # cells a side
MOST_ANSWERS = 2**16  # for one patch


class MaskedPatch(Objective):
    """A share of `ratio` of the patches is corrupted, and what was there is predicted from what
    the model makes of each. Of the corrupted embeddings 80 % become a learned one, 10 % that of
    another patch of the image, and 10 % stay, because later there is no corruption at all.

    | target | for each corrupted patch |
    |---|---|
    | mean-colour | its mean as one of 8 levels in each channel: 512 classes of RGB |
    | downsized | the same for each of 4 x 4 cells that the patch is scaled down to |
    | pixels | all of it, in values that the model reads, by the squared error |

    Levels are those of pixels before normalisation. Of every patch `drawn` (B, N) says what happens
    to it, in the numbers above; it corrupts equally many in each sample.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss",)
    model: ViT

    def __init__(self, model: Model, *, target: Target = "mean-colour", ratio: float = 0.5) -> None:
        super().__init__(check_vit(model, "masked patch prediction"))
        config = self.model.config
        self.target: Target = target
        self.ratio = ratio
        self.count = hidden(ratio, config.grid[0] * config.grid[1])
        self.side = side_of(target, config.strides)
        self.values = values_of(target, config.channels, self.side)
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.dim))
        self.head = Linear(config.dim, self.side**2 * self.values)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """The mask token and the head's matrix truncated N(0, 0.02), its bias 0."""
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def draw(self, seed: int, epoch: int, indices: NDArray[np.int64]) -> Int[Tensor, "B N"]:
        rows, columns = self.model.config.grid
        place = np.arange(rows * columns)
        mask = random_mask(len(place), self.ratio, seed=seed, epoch=epoch, indices=indices)
        keys = (seed, epoch, indices[:, None], place)
        other = np.floor(uniform("other patch", *keys) * (len(place) - 1)).astype(np.int64)
        other += other >= place  # any patch but the one in this place
        kind = uniform("corruption", *keys)
        corruption = np.where(kind < MASKED_SHARE + OTHER_SHARE, OTHER + other, KEPT)
        corruption = np.where(kind < MASKED_SHARE, MASKED, corruption)
        return torch.where(mask, torch.from_numpy(corruption), UNTOUCHED)

    def forward(self, images: Float[Tensor, "B C H W"], drawn: Drawn) -> Losses:
        return {"loss": self.cost(images, drawn).mean()}

    def outputs(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn | None = None
    ) -> Float[Tensor, "B 1"]:
        assert drawn is not None
        return self.cost(images, drawn)[:, None]

    def cost(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, " B"]:
        """The loss of each sample: the mean over its corrupted patches."""
        corrupted = self.corrupted(drawn)
        predicted = at_least_float32(self.predict(images, drawn))
        true = gather_patches(self.cells(images), corrupted)
        if self.target == "pixels":
            cost = (predicted - rearrange(true, "B n C s t -> B n s t C")).square().mean(dim=-1)
        else:
            classes = self.classes(true)
            cost = F.cross_entropy(predicted.flatten(0, 3), classes.flatten(), reduction="none")
            cost = cost.view_as(classes)
        return cost.mean(dim=(1, 2, 3))

    def predict(
        self, images: Float[Tensor, "B C H W"], drawn: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B n s s A"]:
        """What the head says of every corrupted patch, in reading order."""

        def corrupt(patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
            token = self.mask_token.to(patches.dtype)
            return torch.where((drawn == MASKED)[..., None], token, exchange(patches, drawn))

        tokens = patch_tokens(
            self.model, self.model.forward_blocks(self.model.embed(images, corrupt))
        )
        predicted = self.head(gather_patches(tokens, self.corrupted(drawn)))
        return rearrange(predicted, "B n (s t A) -> B n s t A", s=self.side, t=self.side)

    def corrupted(self, drawn: Int[Tensor, "B N"]) -> Int[Tensor, "B n"]:
        """Their places."""
        return places_of(drawn != UNTOUCHED, self.count)

    def cells(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N C s s"]:
        """What is to be predicted: every patch, scaled down by the mean over areas."""
        patches = cut(at_least_float32(images), self.model.config.stride)
        cells = F.adaptive_avg_pool2d(patches.flatten(0, 1), self.side)
        return cells.unflatten(0, patches.shape[:2])

    def classes(self, cells: Float[Tensor, "*N C s s"]) -> Int[Tensor, "*N s s"]:
        """The number of a colour: a digit for each channel, the first channel's the highest."""
        levels = pixels(cells, self.model.passport.preprocessing) * LEVELS
        levels = levels.floor().clamp(0, LEVELS - 1).long()
        return (levels * self.weights(levels)).sum(dim=-3)

    def colours(self, classes: Int[Tensor, "*N s s"]) -> Float[Tensor, "*N C s s"]:
        """The middle of each class, in values that the model reads."""
        levels = classes.unsqueeze(-3) // self.weights(classes) % LEVELS
        return prepared(
            (levels.to(self.mask_token) + 0.5) / LEVELS, self.model.passport.preprocessing
        )

    def weights(self, like: Tensor) -> Int[Tensor, "C 1 1"]:
        powers = torch.arange(self.model.config.channels - 1, -1, -1, device=like.device)
        return (LEVELS**powers).view(-1, 1, 1)

    @torch.no_grad()
    def illustrate(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn
    ) -> dict[str, Float[Tensor, "B C H W"]]:
        """The image; the patches that the model gets, masked ones in the mean colour; and the image
        with what was predicted in all that were corrupted."""
        config = self.model.config
        patches, places = cut(images, config.stride), self.corrupted(drawn)
        masked = (drawn == MASKED)[..., None, None, None]
        given = exchange(patches, drawn).masked_fill(masked, 0.0)
        predicted = at_least_float32(self.predict(images, drawn))
        if self.target == "pixels":
            cells = rearrange(predicted, "B n s t C -> B n C s t")
        else:
            cells = self.colours(predicted.argmax(dim=-1))
        large = F.interpolate(cells.flatten(0, 1).to(images.dtype), size=config.strides)
        reconstructed = scatter_patches(patches, places, large.unflatten(0, places.shape))
        return {
            "original": images,
            "masked": paste(given, config.grid),
            "reconstructed": paste(reconstructed, config.grid),
        }


def side_of(target: str, patch: tuple[int, int]) -> int:
    sides = {"mean-colour": 1, "downsized": min(DOWNSIZED, *patch), "pixels": patch[0]}
    if target not in sides:
        raise UserError(f'target is "{target}", but {nearest(target, sides)}')
    if target == "pixels" and patch[0] != patch[1]:
        raise UserError(
            f'target="pixels" needs square patches, got {patch[0]}x{patch[1]} pixels: use '
            '"mean-colour" or "downsized"'
        )
    return sides[target]


def values_of(target: Target, channels: int, side: int) -> int:
    """Numbers that the head gives for each cell of a patch."""
    if target == "pixels":
        return channels
    if LEVELS**channels * side**2 > MOST_ANSWERS:
        raise UserError(
            f'images have {channels} channels, too many for target="{target}", which has a class '
            f'for every colour of {LEVELS} levels a channel: use target="pixels"'
        )
    return int(LEVELS**channels)


def exchange(x: Float[Tensor, "B N ..."], drawn: Int[Tensor, "B N"]) -> Float[Tensor, "B N ..."]:
    """Where another patch was drawn, that one; elsewhere the patch itself."""
    own = torch.arange(x.shape[1], device=x.device)
    return gather_patches(x, torch.where(drawn >= OTHER, drawn - OTHER, own))
