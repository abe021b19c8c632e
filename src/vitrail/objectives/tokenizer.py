"""Training a tokenizer: an image is reconstructed from its visual tokens alone.

A "dvae" mixes words by chance while it learns (Gumbel-softmax, arXiv:1611.01144), less and less
with every epoch, and is held near using all of them; a "vq" takes the nearest word, and each moves
towards the other (1711.00937, without running means: gradients are all there is to resume).
The reconstruction loss is DALL-E's (2102.12092, appendix A.3): pixels end where they
end, so their logit is what is wrong by a Laplace distribution, whose width the decoder tells too.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.randomness import words
from vitrail.models.model import Model
from vitrail.models.tokenizer import Codebook, Tokenizer, squeeze_pixels
from vitrail.objectives.objective import Drawn, Losses, Objective
from vitrail.objectives.patches import at_least_float32, pixels, prepared

# A decoder may be as sure of a pixel's logit as eight bits tell it apart from its neighbours.
FINEST = 0.0125
LEAST_SHARE = 0.05  # of the words that could be in use; with fewer, most of the learning is lost
FEWEST = 2.0
# DALL-E adds up pixels and cells, and weighs cells by 6.6: so much beside a mean over 192 pixels.
# Cells of fewer pixels have the same, or words would cost more than they tell.
DIVERGENCE = 6.6 / 192


class TokenizerObjective(Objective):
    """What painting from words gets wrong, and what it costs to have words at all.

    `divergence` weighs how far the cells of a "dvae" are from using all words alike, beside what is
    wrong with a pixel; its words are mixed at a `temperature` that falls from the first to the
    second by the factor `cooling` an epoch. `commitment` weighs how far a "vq" is from the words it
    took.
    `outputs` gives the loss with single words, and behind it the word of every cell.
    """

    model: Tokenizer

    def __init__(
        self,
        model: Model,
        *,
        divergence: float = DIVERGENCE,
        commitment: float = 0.25,
        temperature: tuple[float, float] = (1.0, 1 / 16),
        cooling: float = 0.95,
    ) -> None:
        if not isinstance(model, Tokenizer):
            raise UserError(
                f"the objective tokenizer needs a tokenizer, got a {type(model).__name__}: use "
                f"vq_ti_8"
            )
        super().__init__(model)
        if not 0 < temperature[1] <= temperature[0] or not 0 < cooling <= 1:
            raise UserError(
                f"temperature is {temperature} and cooling {cooling}, but it falls from the first "
                "to the second, both above 0, by a factor above 0 and at most 1"
            )
        if min(divergence, commitment) < 0:
            raise UserError(
                f"divergence is {divergence} and commitment {commitment}, but a weight is not "
                "negative"
            )
        model.require_decoder()  # or the sentence that it has none
        self.divergence, self.commitment = divergence, commitment
        self.temperature, self.cooling = temperature, cooling

    def draw(self, seed: int, epoch: int, indices: NDArray[np.int64]) -> Int[Tensor, "B 2"]:
        """A key for the noise of each image, and the epoch, by which it counts less."""
        keys = words("gumbel", seed, epoch, indices).view(np.int64)
        return torch.from_numpy(np.stack([keys, np.full_like(keys, epoch)], axis=1))

    def forward(self, images: Float[Tensor, "B C H W"], drawn: Drawn) -> Losses:
        encoded = at_least_float32(self.model.project_cells(images))
        if self.model.book is None:
            taken = None
            noise = gumbel(drawn[:, 0], encoded.shape[1:]).to(encoded)
            heat = self.heat(drawn[:, 1]).to(encoded)
            mixed = ((encoded + noise) / heat[:, None, None, None]).softmax(dim=-1)
        else:
            taken = self.nearest(encoded, self.model.book)
            mixed = encoded + (taken - encoded).detach()  # the gradient goes past the choice
        reconstructed = self.model.require_decoder()(mixed.movedim(-1, 1))
        fit, price = self.reconstruction_loss(reconstructed, images), self.price(encoded, taken)
        return {"loss": (fit + price).mean(), "fit": fit.mean(), "price": price.mean()}

    @torch.no_grad()
    def outputs(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn | None = None
    ) -> Float[Tensor, "B K"]:
        encoded = at_least_float32(self.model.project_cells(images))
        codes = self.choose(encoded)
        book = self.model.book
        taken = None if book is None else F.embedding(codes, book().to(encoded))
        loss = self.reconstruction_loss(self.model.reconstruct(codes), images) + self.price(
            encoded, taken
        )
        return torch.cat([loss[:, None], codes.flatten(1).to(loss)], dim=1)

    @torch.no_grad()
    def illustrate(
        self, images: Float[Tensor, "B C H W"], drawn: Drawn | None = None
    ) -> dict[str, Float[Tensor, "B C H W"]]:
        reconstructed = self.model.decode(self.model.codes(images)).to(images)
        return {
            "original": images,
            "reconstructed": prepared(reconstructed, self.model.passport.preprocessing),
        }

    def scores(self, outputs: Float[np.ndarray, "S K"]) -> dict[str, float]:
        """The mean loss, and how the vocabulary is used."""
        used = self.usage(outputs)
        return {
            "loss": float(outputs[:, 0].mean()),
            "perplexity": used.perplexity,
            "used": used.used,
        }

    def warning(self, outputs: Float[np.ndarray, "S K"]) -> str | None:
        used = self.usage(outputs)
        return str(used) if used.collapsed else None

    def usage(self, outputs: Float[np.ndarray, "S K"]) -> "Usage":
        """How much of the vocabulary is in use, by the outputs to all validation images."""
        return usage(torch.from_numpy(outputs[:, 1:]).long(), self.model.config.words)

    def heat(self, epochs: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        first, last = self.temperature
        return (first * self.cooling ** epochs.double()).clamp(min=last)

    def choose(self, encoded: Float[Tensor, "B rows columns E"]) -> Int[Tensor, "B rows columns"]:
        book = self.model.book
        return (encoded if book is None else F.linear(encoded, book().to(encoded))).argmax(dim=-1)

    def nearest(
        self, encoded: Float[Tensor, "B rows columns E"], book: Codebook
    ) -> Float[Tensor, "B rows columns E"]:
        return F.embedding(self.choose(encoded.detach()), book().to(encoded))

    def reconstruction_loss(
        self, reconstructed: Float[Tensor, "B CC H W"], images: Float[Tensor, "B C H W"]
    ) -> Float[Tensor, " B"]:
        """The negative logarithm of the likelihood of each pixel, their mean for each image."""
        goal = pixels(at_least_float32(images), self.model.passport.preprocessing).clamp(0, 1)
        return logit_laplace(reconstructed.to(goal), squeeze_pixels(goal)).flatten(1).mean(dim=1)

    def price(
        self,
        encoded: Float[Tensor, "B rows columns E"],
        taken: Float[Tensor, "B rows columns E"] | None,
    ) -> Float[Tensor, " B"]:
        """What keeps the words in order, for each image; `taken` are the words of a "vq"."""
        if taken is None:
            logs = encoded.log_softmax(dim=-1)
            apart = (logs.exp() * logs).sum(dim=-1) + math.log(self.model.config.words)
            apart = self.divergence * apart
        else:
            follow = (taken - encoded.detach()).square().sum(dim=-1)
            apart = follow + self.commitment * (encoded - taken.detach()).square().sum(dim=-1)
        return apart.flatten(1).mean(dim=1)


@dataclass(frozen=True)
class Usage:
    """`perplexity`: as many words, all equally frequent, would be as hard to guess; `used`: the
    share of the vocabulary that occurs; `size`: of the vocabulary; `seen`: cells counted."""

    perplexity: float
    used: float
    size: int
    seen: int

    @property
    def collapsed(self) -> bool:
        """Whether nearly all cells have the same few words, of all that could occur in so many."""
        return self.perplexity < max(FEWEST, LEAST_SHARE * min(self.size, self.seen))

    def __str__(self) -> str:
        summary = (
            f"{self.used:.0%} of {self.size} words in use, as hard to guess as "
            f"{self.perplexity:.1f} that are equally frequent"
        )
        if not self.collapsed:
            return summary
        return (
            f"{summary}: the vocabulary has collapsed, and what is trained on it learns little; "
            "train longer, with a higher learning rate, or with fewer words"
        )


def usage(codes: Int[Tensor, "..."], size: int) -> Usage:
    """How the words of a vocabulary of that size are used.

    >>> usage(torch.tensor([[0, 1], [2, 3]]), 8)
    Usage(perplexity=4.0, used=0.5, size=8, seen=4)
    """
    if not codes.numel():
        raise UserError("no tokens were seen: give at least one image")
    counts = torch.bincount(codes.flatten().cpu(), minlength=size).double()
    shares = counts / counts.sum()
    entropy = -torch.special.xlogy(shares, shares).sum()
    return Usage(
        perplexity=round(float(entropy.exp()), 9),
        used=float((counts > 0).double().mean()),
        size=size,
        seen=codes.numel(),
    )


def logit_laplace(
    reconstructed: Float[Tensor, "B CC H W"], goal: Float[Tensor, "B C H W"]
) -> Float[Tensor, "B C H W"]:
    """-log f(x) of pixels between 0 and 1 whose logit has a Laplace distribution:
    log(2 b x (1 - x)) + |logit(x) - μ| / b."""
    middle, width = reconstructed.chunk(2, dim=1)
    width = width.exp() + FINEST
    return (2 * width * goal * (1 - goal)).log() + (goal.logit() - middle).abs() / width


# SplitMix64, as in `core.randomness`, where there are too many numbers to bring from the CPU.
_STEP, _FIRST, _SECOND = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def gumbel(keys: Int[Tensor, " B"], shape: tuple[int, ...]) -> Float[Tensor, "B ..."]:
    """Numbers of the Gumbel distribution for each key, on its device: the same on every device,
    and in every batch."""
    count = torch.arange(1, math.prod(shape) + 1, device=keys.device)
    value = keys[:, None] + _STEP * count
    value = (value ^ _shifted(value, 30)) * _FIRST
    value = (value ^ _shifted(value, 27)) * _SECOND
    value = value ^ _shifted(value, 31)
    chance = (_shifted(value, 41).double() + 0.5) * 2.0**-23  # neither 0 nor 1 even in float32
    return -(-chance.log()).log().unflatten(1, shape).float()


def _shifted(value: Int[Tensor, "B N"], bits: int) -> Int[Tensor, "B N"]:
    """To the right, with zeros from the left, whatever the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
