"""BEiT (arXiv:2106.08254): the visual words of hidden patches, from the patches around them.

    image ─┬─ patches, blocks of them hidden ── encoder ── linear ── word of each hidden patch
    B C H W│          B N D                      B N D                       B n V
           └─ tokenizer, which sees everything ── codes ──────────── compared with it
                                                   B N

Axes: N patches, n of them hidden · D width · V words of the tokenizer
"""

from collections.abc import Callable
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.layers.linear import Linear
from vitrail.models.beit import Beit, trunc_normal_
from vitrail.models.model import Model
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.masks import (
    LEAST_BLOCK,
    blockwise_mask,
    hidden,
    in_pixels,
    random_mask,
    veil,
)
from vitrail.objectives.objective import Drawn, Losses, Objective
from vitrail.objectives.patches import (
    at_least_float32,
    gather_patches,
    pixels,
    places_of,
    prepared,
    scatter_patches,
)

RATIO = 75 / 196  # as the paper's code has it, at 224 pixels


class BeitObjective(Objective):
    """A share of `ratio` of the patches is hidden, in blocks of `least` patches or more, or with
    `masking="random"` anywhere, and what the tokenizer calls them is guessed. The tokenizer is
    frozen; it sees the same image without the model's normalisation, scaled so that it has one word
    for each patch.

    The encoder norms every token and has no classes; one bias that all blocks share is the paper's
    choice, and loading with new classes copies it to every block (`weights.families.beit`).
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    model: Beit

    def __init__(
        self,
        model: Model,
        tokenizer: Model,
        *,
        ratio: float = RATIO,
        least: int = LEAST_BLOCK,
        masking: Literal["blockwise", "random"] = "blockwise",
    ) -> None:
        super().__init__(check_encoder(model))
        config, reader = self.model.config, check_tokenizer(tokenizer, model)
        rows, columns = config.grid
        if least < 1:
            raise UserError(f"least must be at least 1 patch, got {least}")
        self.count = hidden(ratio, rows * columns)
        self.least = least
        self.ratio, self.masking = ratio, masking
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.dim))
        self.head = Linear(config.dim, reader.config.words)
        # kept out of the module tree: the tokenizer is not trained, saved or wrapped
        self._tokenizer = [reader.eval().requires_grad_(False)]
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """The mask token and the head's matrix N(0, 0.02), cut at one deviation; its bias 0."""
        trunc_normal_(self.mask_token)
        trunc_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The tokenizer goes where the objective goes."""
        self._tokenizer[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def teacher(self) -> Model:
        return self._tokenizer[0]

    def draw(self, seed: int, epoch: int, indices: NDArray[np.int64]) -> Bool[Tensor, "B N"]:
        grid = self.model.config.grid
        if self.masking == "random":
            cells = grid[0] * grid[1]
            return random_mask(cells, self.ratio, seed=seed, epoch=epoch, indices=indices)
        return blockwise_mask(
            grid,
            self.count,
            least=self.least,
            seed=seed,
            epoch=epoch,
            indices=indices,
        )

    def forward(self, images: Float[Tensor, "B C H W"], drawn: Drawn) -> Losses:
        guesses, codes = self.guess(images, drawn), self.hidden_codes(images, drawn)
        return {"loss": F.cross_entropy(guesses.flatten(0, 1), codes.flatten())}

    @torch.no_grad()
    def outputs(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn | None = None
    ) -> Float[Tensor, "B 2"]:
        """For each image the loss, and the share of hidden patches whose word was guessed."""
        assert drawn is not None
        guesses, codes = self.guess(images, drawn), self.hidden_codes(images, drawn)
        loss = F.cross_entropy(guesses.movedim(-1, 1), codes, reduction="none").mean(dim=1)
        right = (guesses.argmax(dim=-1) == codes).to(loss).mean(dim=1)
        return torch.stack([loss, right], dim=1)

    @torch.no_grad()
    def illustrate(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn
    ) -> dict[str, Float[Tensor, "B C H W"]]:
        """The image and its visible part; if the tokenizer has a decoder also a reconstruction from
        the true tokens where the image is visible, and from the predicted ones where it is not."""
        config, tokenizer = self.model.config, self._tokenizer[0]
        shown = {
            "original": images,
            "masked": veil(images, in_pixels(drawn, config.grid, config.patch_size)),
        }
        if tokenizer.decoder is None:
            return shown
        guesses = self.guess(images, drawn).argmax(dim=-1)
        codes = scatter_patches(self.codes(images), places_of(drawn, self.count), guesses)
        reconstructed = tokenizer.decode(codes.unflatten(1, config.grid)).to(images)
        reconstructed = resized(reconstructed, config.image_size)
        return {
            **shown,
            "reconstructed": prepared(reconstructed, self.model.passport.preprocessing),
        }

    def guess(
        self, images: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B n V"]:
        """Logits of all words for every hidden patch, in reading order."""

        def corrupt(patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
            return torch.where(mask[..., None], self.mask_token.to(patches.dtype), patches)

        tokens = self.model.forward_blocks(self.model.embed(images, corrupt))[:, 1:]
        return at_least_float32(self.head(gather_patches(tokens, places_of(mask, self.count))))

    def hidden_codes(
        self, images: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B N"]
    ) -> Int[Tensor, "B n"]:
        return gather_patches(self.codes(images), places_of(mask, self.count))

    @torch.no_grad()
    def codes(self, images: Float[Tensor, "B C H W"]) -> Int[Tensor, "B N"]:
        """The word of every patch, hidden or not."""
        tokenizer = self._tokenizer[0]
        rows, columns = self.model.config.grid
        size = rows * tokenizer.config.stride, columns * tokenizer.config.stride
        seen = pixels(at_least_float32(images), self.model.passport.preprocessing)
        read = prepared(resized(seen, size), tokenizer.passport.preprocessing)
        with torch.autocast(images.device.type, enabled=False):  # in training as in evaluation
            return tokenizer.codes(read).flatten(1)


def resized(pixels: Float[Tensor, "B C H W"], size: tuple[int, int]) -> Float[Tensor, "B C h w"]:
    """Pixels from 0 to 1 at another size; what bicubic weights shoot beyond is cut off. (The
    paper's code has Lanczos windows here, which torch does not.)"""
    if tuple(pixels.shape[2:]) == size:
        return pixels.clamp(0, 1)
    return F.interpolate(pixels, size, mode="bicubic", antialias=True).clamp(0, 1)


def check_encoder(model: Model) -> Beit:
    if not isinstance(model, Beit):
        raise UserError(f"BEiT pre-trains a BEiT, not a {type(model).__name__}: use beit_b_16")
    config = model.config
    if config.pool != "cls" or config.num_classes:
        raise UserError(
            f"pool is {config.pool!r} and num_classes {config.num_classes}, but BEiT pre-trains an "
            'encoder that norms every token and has no classes: use pool="cls", num_classes=0'
        )
    return model


def check_tokenizer(tokenizer: Model, model: Model) -> Tokenizer:
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(
            f"BEiT needs a tokenizer, not a {type(tokenizer).__name__}: pretrain one with "
            'objective="tokenizer", or load DALL-E\'s encoder'
        )
    theirs, ours = tokenizer.config.channels, model.config.channels
    if theirs != ours:
        raise UserError(
            f"the tokenizer reads {theirs} channels and the model {ours}: train one on images of "
            f"{ours}, or give the model channels={theirs}"
        )
    return tokenizer
