"""Each style is a ViT that runs: logits for 32-pixel images, the same ones every time."""

import pytest
import torch

from tests.zoo.mistakes import DIFFERENCES, MISTAKES
from tests.zoo.styles import STYLES, Style


@pytest.mark.sampled(2)
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_a_style_runs_and_is_deterministic(style: Style) -> None:
    images = torch.randn(2, 3, 32, 32)
    logits = style.build()(images)
    assert logits.shape == (2, style.config["num_classes"])
    assert torch.equal(logits, style.build()(images))
    assert (style.build(seed=1)(images) - logits).abs().max() > 1e-3


def test_there_are_ten_styles_and_eleven_mistakes_or_more() -> None:
    assert len(STYLES) == 10
    assert len({mistake.name for mistake in MISTAKES}) >= 11
    assert {mistake.style for mistake in MISTAKES + DIFFERENCES} == set(STYLES)
