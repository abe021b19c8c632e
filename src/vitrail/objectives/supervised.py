"""Learning labels: softmax for one an image, sigmoid for several, perhaps asymmetric; with or
without a teacher."""

from collections.abc import Callable
from typing import Literal, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.models.model import Model
from vitrail.models.vit import ViT
from vitrail.objectives.asymmetric import Asymmetric
from vitrail.objectives.objective import Losses, Objective


class Supervised(Objective):
    """Cross-entropy with targets (B, K) that may be mixed, smoothed and weighted by class."""

    weights: Tensor | None

    def __init__(
        self,
        model: Model,
        *,
        loss: Literal["softmax", "sigmoid"] | Asymmetric = "softmax",
        smoothing: float = 0.0,
        weights: Float[Tensor, " K"] | None = None,
    ) -> None:
        super().__init__(model)
        self.asymmetric = loss if isinstance(loss, Asymmetric) else None
        self.loss = "sigmoid" if isinstance(loss, Asymmetric) else loss
        self.smoothing = smoothing
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, images: Float[Tensor, "B C H W"], targets: Float[Tensor, "B K"]) -> Losses:
        logits = self.model(images)
        return {"loss": self.cost(logits, targets), **agreement(logits, targets)}

    def cost(self, logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"]) -> Tensor:
        logits = logits.float()  # the logarithm of a sum is no place for half precision
        if self.loss == "sigmoid":
            # a share of every target is spread over all classes, as for softmax (and in timm)
            smooth = targets * (1 - self.smoothing) + self.smoothing / targets.shape[1]
            if self.asymmetric is not None:
                return self.asymmetric(logits, smooth, self.weights)
            return F.binary_cross_entropy_with_logits(logits, smooth, pos_weight=self.weights)
        return F.cross_entropy(logits, targets, weight=self.weights, label_smoothing=self.smoothing)

    def val_losses(
        self, outputs: Float[np.ndarray, "S K"], targets: Float[np.ndarray, "S K"]
    ) -> Float[np.ndarray, " S"] | None:
        """Cross-entropy of each image, without smoothing, class weights or a teacher; of several
        labels the mean over them."""
        logits, truth = torch.from_numpy(outputs), torch.from_numpy(targets)
        if self.loss == "sigmoid":
            every = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
            return every.mean(dim=1).numpy()
        return F.cross_entropy(logits, truth, reduction="none").numpy()


@torch.no_grad()
def agreement(logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"]) -> Losses:
    """How many images have a target ("labelled"), and for how many of them the largest logit is at
    a largest target ("hits"): hard labels, mixed ones or several."""
    largest = targets.amax(dim=1)
    chosen = targets.gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1)
    labelled = largest > 0
    return {"hits": ((chosen == largest) & labelled).sum(), "labelled": labelled.sum()}


class Distilled(Supervised):
    """The labels and a teacher, each with its share (arXiv:2012.12877): hard, the teacher's choice
    is a label; soft, the two distributions are brought together. Where an image has several labels,
    each of them is a distribution of its own: hard, the teacher's yes or no; soft, its probability.
    A model with a distillation token learns the labels with one head and the teacher with the
    other."""

    def __init__(
        self,
        model: Model,
        teacher: nn.Module,
        *,
        kind: Literal["hard", "soft"] = "hard",
        share: float = 0.5,
        temperature: float = 1.0,
        loss: Literal["softmax", "sigmoid"] | Asymmetric = "softmax",
        smoothing: float = 0.0,
        weights: Float[Tensor, " K"] | None = None,
    ) -> None:
        super().__init__(model, loss=loss, smoothing=smoothing, weights=weights)
        self.kind, self.share, self.temperature = kind, share, temperature
        # kept out of the module tree: the teacher is not trained, saved or wrapped
        self._teacher = [teacher.eval().requires_grad_(False)]

    def teacher(self) -> Model | None:
        teacher = self._teacher[0]
        return teacher if isinstance(teacher, Model) else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The teacher goes where the objective goes."""
        self._teacher[0]._apply(fn, recurse)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def forward(self, images: Float[Tensor, "B C H W"], targets: Float[Tensor, "B K"]) -> Losses:
        with torch.no_grad():
            taught = self._teacher[0](images).float()
        if isinstance(self.model, ViT) and self.model.config.distilled:
            own, other = self.model.both_heads(images)
        else:
            own = other = self.model(images)
        labels, imitation = self.cost(own, targets), self.imitate(other.float(), taught)
        loss = (1 - self.share) * labels + self.share * imitation
        counts = agreement(own, targets)
        return {"loss": loss, "labels": labels, "imitation": imitation, **counts}

    def imitate(self, logits: Float[Tensor, "B K"], taught: Float[Tensor, "B K"]) -> Tensor:
        heat = self.temperature
        if self.loss == "sigmoid":
            return self.imitate_each(logits, taught)
        if self.kind == "hard":
            return F.cross_entropy(logits, taught.argmax(dim=1))
        return F.kl_div(
            F.log_softmax(logits / heat, dim=1),
            F.log_softmax(taught / heat, dim=1),
            reduction="sum",
            log_target=True,
        ) * (heat**2 / logits.numel())

    def imitate_each(self, logits: Float[Tensor, "B K"], taught: Float[Tensor, "B K"]) -> Tensor:
        """Every class is a yes or no of its own."""
        if self.kind == "hard":
            return F.binary_cross_entropy_with_logits(logits, (taught > 0).float())
        heat = self.temperature
        wanted = (taught / heat).sigmoid()
        # its own entropy taken away, the cross-entropy is the divergence: 0 where both agree
        own = F.binary_cross_entropy_with_logits(taught / heat, wanted)
        return (F.binary_cross_entropy_with_logits(logits / heat, wanted) - own) * heat**2
