"""Models for any image size: equal to the model loaded for each."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import vitrail
from tests.models.kinds import SMALL, perturbed
from tests.parity.test_every_family import SHALLOW, make
from vitrail import UserError
from vitrail.inference.any_size import MATRICES, for_any_size, size_step
from vitrail.models.position_resize import resize_positions

SIZES = ((32, 48), (8, 8), (40, 24), (16, 96))


@pytest.mark.parametrize("method", MATRICES)
@pytest.mark.parametrize("old", [(1, 1), (4, 3), (14, 14)])
def test_a_matrix_an_axis_resizes_as_torch_does(method: Any, old: tuple[int, int]) -> None:
    torch.manual_seed(0)
    table = torch.randn(1, old[0] * old[1], 3)
    for new in ((1, 2), (2, 5), (14, 20), old):
        expected = resize_positions(table, old, new, prefix=0, method=method)
        down, across = (MATRICES[method](*sides) for sides in zip(old, new, strict=True))
        found = torch.einsum("rR,cC,RCD->rcD", down, across, table[0].unflatten(0, old))
        torch.testing.assert_close(found.reshape(1, -1, 3), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"distilled": True},
        {"positions": "sincos2d"},
        {"positions": "sincos1d", "norm_placement": "post"},
        {"positions": "learned2d"},
        {"registers": 2, "pool": "mean"},
    ],
)
def test_a_vit_for_any_size_is_the_one_loaded_for_it(changes: Any) -> None:
    model = perturbed(replace(SMALL, depth=1, **changes)).eval()
    model.passport = replace(model.passport, resize="timm")
    every = for_any_size(model)
    assert size_step(model) == 8
    with torch.no_grad():
        for size in SIZES:
            images = torch.randn(2, 3, *size)
            expected = vitrail.load(model, image_size=size).eval()(images)
            torch.testing.assert_close(every(images), expected, rtol=1e-4, atol=1e-5)


def test_what_is_made_for_one_size_is_refused() -> None:
    model = perturbed(replace(SMALL, depth=1, positions="relative")).eval()
    with pytest.raises(UserError, match='positions="relative" have a number for each distance'):
        for_any_size(model)
    with pytest.raises(UserError, match="patches are rectangles"):
        for_any_size(perturbed(replace(SMALL, depth=1, patch_size=(8, 4))).eval())
    reasons = {
        "beit": "relative bias is a table for one grid of patches",
        "swin": "windows and their masks are laid out for one grid",
        "swinv2": "windows, their masks and their biases",
        "coatnet": "relative biases of its attention are tables",
        "mobilevitv2": r"64x96 is no multiple of 64, as image_size=\(64, 128\) is",
    }
    for family, reason in reasons.items():
        with pytest.raises(UserError, match=f"{reason}.*: load the model with image_size"):
            for_any_size(make(family, configs=SHALLOW))
