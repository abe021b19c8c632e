"""The asymmetric loss for images with several labels (arXiv:2009.14119)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Asymmetric:
    """Focusing exponents of labels that an image has and has not, and the probability below which
    the latter count nothing (p is shifted down by it)."""

    gamma_negative: float = 4.0
    gamma_positive: float = 1.0
    negative_clip: float = 0.05

    def __call__(
        self,
        logits: Float[Tensor, "B K"],
        targets: Float[Tensor, "B K"],
        weights: Float[Tensor, " K"] | None = None,
    ) -> Tensor:
        """The sum over classes, and its mean over images; `weights` are of labels that are there.

            L+ = (1 - p)^gamma+ log p        L- = q^gamma- log(1 - q),  q = max(p - clip, 0)

        >>> loss = Asymmetric(gamma_negative=0, gamma_positive=0, negative_clip=0)
        >>> logits, targets = torch.randn(4, 3), torch.eye(4)[:, :3]
        >>> plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        >>> bool(torch.isclose(loss(logits, targets), plain.sum(dim=1).mean()))
        True
        """
        positive = F.logsigmoid(logits)
        likely = logits.sigmoid()
        if weights is not None:
            positive = positive * weights
        shifted = (likely - self.negative_clip).clamp(min=0)
        # where nothing is shifted the logarithm comes from the logits, or 1 - p would be 0
        negative = torch.log1p(-shifted) if self.negative_clip else F.logsigmoid(-logits)
        easy = likely * targets + (1 - shifted) * (1 - targets)
        gamma = self.gamma_positive * targets + self.gamma_negative * (1 - targets)
        losses = (targets * positive + (1 - targets) * negative) * (1 - easy) ** gamma
        return -losses.sum(dim=1).mean()
