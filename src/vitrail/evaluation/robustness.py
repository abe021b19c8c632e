"""How much of a model's accuracy is left when images are corrupted."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from vitrail.core.outputs import Outputs
from vitrail.evaluation.classify import score
from vitrail.evaluation.corruptions import CORRUPTIONS, SEVERITIES
from vitrail.evaluation.intervals import bootstrap_intervals, mean_statistic
from vitrail.evaluation.metrics import RESAMPLES

EXAMPLE_SEVERITY = 3
VARIANTS = tuple((name, severity) for name in CORRUPTIONS for severity in SEVERITIES)


@dataclass(frozen=True)
class Robustness:
    """`metric` without corruption and by (corruption, severity), on the same `images`; `side` says
    for which images the constants were published, 224 or 32 pixels; `examples` are the first of
    these images under each corruption at severity 3; `interval` is that of the mean, None where
    images have several labels or there is but one."""

    metric: str
    clean: float
    values: Float[np.ndarray, "15 5"]
    images: int
    side: int
    examples: UInt8[np.ndarray, "15 H W C"]
    interval: tuple[float, float] | None = None

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def relative_error(self) -> float | None:
        """The mean over corruptions of error / error on clean images of this same model. (The mCE
        of the paper divides by AlexNet's errors under the same corruption instead.) None where
        there is no error to divide by."""
        return None if self.clean == 1 else (1 - self.mean) / (1 - self.clean)


def measure_robustness(
    clean: Outputs,
    corrupted: Float[np.ndarray, "75 N ..."],
    *,
    side: int,
    examples: UInt8[np.ndarray, "15 H W C"],
    seed: int = 0,
) -> Robustness:
    """`corrupted` has, for each of `VARIANTS`, the logits (N, K) of the same images where they have
    several labels, otherwise whether the prediction is right (N,)."""
    multi_label, images = clean.multi_label, clean.images
    interval = None
    if multi_label:
        values = [
            score(np.nan_to_num(logits), clean.targets, multi_label=True).best
            for logits in corrupted
        ]
    else:
        values = corrupted.mean(axis=1, dtype=np.float64).tolist()
        if images > 1:  # an image is drawn with all its corruptions
            statistic = mean_statistic(corrupted.mean(axis=0, dtype=np.float64))
            [interval] = bootstrap_intervals([statistic], images, resamples=RESAMPLES, seed=seed)
    expected = score(clean.finite_logits, clean.targets, multi_label=multi_label)
    table = np.array(values).reshape(len(CORRUPTIONS), len(SEVERITIES))
    return Robustness(expected.key, expected.best, table, images, side, examples, interval)
