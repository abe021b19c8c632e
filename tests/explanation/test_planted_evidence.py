"""Models that are trained here on planted evidence: maps have to point at it."""

from pathlib import Path

import pytest
from benchmarks.pointing import captums, evidence_for, ours, point, trained
from torch import Tensor

from vitrail.explanation.auto_method import choose_method
from vitrail.explanation.blur import gaussian_blur
from vitrail.explanation.propagation import sum_over_cells
from vitrail.explanation.readout import finest_layout

IMAGES = 100
MARGIN = 0.05  # of 100 images: two standard deviations of a share of 95 % are 4 points


@pytest.mark.slow
@pytest.mark.parametrize(("family", "steps"), [("vit", 1000), ("mobilevit", 800)])
def test_auto_points_at_the_evidence_and_chance_does_not(
    family: str, steps: int, tmp_path: Path
) -> None:
    """A minute of one core each: not the models of the benchmark, but they know most digits."""
    pytest.importorskip("captum")
    model = trained(family, tmp_path / family, seed=11, steps=steps)
    evidence = evidence_for(model, IMAGES)
    right = float((model(evidence.images).argmax(dim=1) == evidence.targets).float().mean())
    assert right > 0.4, "the model has learnt too little to be explained"
    layout = finest_layout(model)

    def smooth_noise(images: Tensor, _: Tensor) -> Tensor:
        noise = images.new_empty(images.shape).normal_()
        return sum_over_cells(gaussian_blur(noise, 0.1, beyond="zeros")[:, 0], layout)

    auto, _ = point(ours(model, choose_method(model).method), evidence)
    random, _ = point(smooth_noise, evidence)
    saliency, _ = point(dict(captums(model))["Captum Saliency"], evidence)
    assert auto > 0.8
    assert auto > random + 0.4
    assert auto >= saliency - MARGIN
