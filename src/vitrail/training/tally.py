"""What a run logs of its training steps: means since the last line of metrics."""

import math
from dataclasses import dataclass


@dataclass
class Tally:
    """Sums over the steps since the last line. It is saved with the run, so that a resumed run
    logs the same means. What is not finite (a skipped step, an overflow of float16) is left out of
    the means and never poisons them."""

    loss: float = 0.0
    losses: int = 0
    grad_norm: float = 0.0
    grad_norms: int = 0
    hits: float = 0.0  # images whose largest logit is their largest target
    labelled: float = 0.0  # images that have a target
    data_seconds: float = 0.0  # spent waiting for batches
    seconds: float = 0.0  # of the steps, with what was waited for

    def add(self, loss: float, grad_norm: float, hits: float, labelled: float) -> None:
        """One step."""
        if not math.isfinite(loss):
            return
        self.loss += loss
        self.losses += 1
        self.hits += hits
        self.labelled += labelled
        if math.isfinite(grad_norm):
            self.grad_norm += grad_norm
            self.grad_norms += 1

    @property
    def mean_loss(self) -> float:
        """NaN where no step had a finite loss."""
        return self.loss / self.losses if self.losses else math.nan

    def values(self) -> dict[str, float]:
        """The line's values; NaN where there is nothing to take a mean of.

        >>> tally = Tally()
        >>> tally.add(2.0, 1.0, 3, 4)
        >>> tally.add(1.0, math.inf, 4, 4)
        >>> values = tally.values()
        >>> values["loss"], values["grad_norm"], values["train_accuracy"]
        (1.5, 1.0, 0.875)
        """
        norm = self.grad_norm / self.grad_norms if self.grad_norms else math.nan
        values = {
            "loss": self.mean_loss,
            "grad_norm": norm,
            "data_seconds": self.data_seconds,
            "seconds": self.seconds,
        }
        if self.labelled:
            values["train_accuracy"] = self.hits / self.labelled
        return values
