"""Fitting a BEiT: its relative bias against the code of those who published it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RectBivariateSpline  # type: ignore[import-untyped]
from tests.models.test_beit import KINDS, SMALL
from timm.layers import resize_rel_pos_bias_table
from torch import Tensor

from vitrail import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.beit import count_relations
from vitrail.models.catalogue import build, change
from vitrail.weights.families.beit import METHODS, resize_relations, transpose_table
from vitrail.weights.offsets import sides, stretched
from vitrail.weights.resize_state import resize_state

GRIDS = st.tuples(st.integers(1, 7), st.integers(1, 7))


def table(grid: tuple[int, int], heads: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count_relations(grid), heads, generator=generator, dtype=torch.float64)


@given(old=GRIDS, new=GRIDS, method=st.sampled_from(sorted(METHODS)))
@settings(max_examples=60, deadline=None)
def test_every_method_gives_every_grid_and_keeps_the_class_relations(
    old: tuple[int, int], new: tuple[int, int], method: ResizeMethod
) -> None:
    before = table(old)
    after = resize_relations(before, old, new, method=method)
    assert after.shape == (count_relations(new), 3)
    assert torch.equal(after[-3:], before[-3:])
    assert after.isfinite().all()
    if old == new:
        assert torch.equal(after, before)
    constant = torch.ones_like(before)
    torch.testing.assert_close(
        resize_relations(constant, old, new, method=method), torch.ones_like(after)
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [((14, 14), (24, 24)), ((14, 14), (32, 32)), ((14, 14), (7, 7)), ((6, 9), (12, 5))],
)
def test_paper_is_the_authors_spline(old: tuple[int, int], new: tuple[int, int]) -> None:
    """scipy took interp2d(kind="cubic") away and names this as the same on a regular grid."""
    before, (down, across) = table(old), sides(old)
    ys, xs = (stretched(*pair) for pair in zip(sides(old), sides(new), strict=True))
    targets = [np.arange(side) - side // 2 for side in sides(new)]
    heads = [
        RectBivariateSpline(ys, xs, before[:-3, head].view(down, across).numpy())(*targets)
        for head in range(3)
    ]
    theirs = np.stack([head.reshape(-1) for head in heads], axis=1)
    ours = resize_relations(before, old, new, method="paper")[:-3]
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:torch.searchsorted")
@pytest.mark.parametrize("new", [(24, 24), (7, 20), (14, 15)])
def test_timm_is_timms(new: tuple[int, int]) -> None:
    before = table((14, 14)).float()  # timm computes in float32 whatever it is given
    theirs = resize_rel_pos_bias_table(before, new, (count_relations(new), 3))
    ours = resize_relations(before, (14, 14), new, method="timm")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_far_distances_are_stretched_more_than_near_ones() -> None:
    places = stretched(27, 47)
    assert len(places) == 27
    assert places[13] == 0
    assert places[14] == 1
    assert places[-1] == pytest.approx(23, abs=1e-3)  # the last of 47
    steps = np.diff(places[13:])
    np.testing.assert_allclose(steps[1:] / steps[:-1], steps[1], rtol=1e-9)
    np.testing.assert_allclose(places, -places[::-1])


def test_the_methods_really_differ() -> None:
    results = {
        method: resize_relations(table((14, 14)), (14, 14), (24, 24), method=method)
        for method in METHODS
    }
    pairs: list[tuple[ResizeMethod, ResizeMethod]] = [
        ("paper", "timm"),
        ("paper", "hf"),
        ("timm", "hf"),
    ]
    for one, other in pairs:
        assert (results[one] - results[other]).abs().max() > 1e-2, (one, other)


def test_rows_are_taken_for_columns_where_that_matters_alone() -> None:
    square = table((5, 5))
    torch.testing.assert_close(transpose_table(square, (5, 5)), square, rtol=0, atol=1e-12)
    oblong = table((3, 5))
    assert (transpose_table(oblong, (3, 5)) - oblong).abs().max() > 0.1


def test_half_precision_is_resized_in_full() -> None:
    before = table((4, 4)).half()
    after = resize_relations(before, (4, 4), (6, 6), method="paper")
    exact = resize_relations(before.double(), (4, 4), (6, 6), method="paper")
    assert after.dtype is torch.float16
    assert torch.equal(after, exact.half())


def test_what_cannot_be_resized_says_so() -> None:
    with pytest.raises(
        UserError, match="must be one of paper, timm, hf for a relative bias, got 'dinov2'"
    ):
        resize_relations(table((4, 4)), (4, 4), (6, 6), method="dinov2")
    with pytest.raises(UserError, match="52 relations are not those of a grid of 4x5"):
        resize_relations(table((4, 4)), (4, 5), (6, 6), method="paper")


def test_fitting_reports_each_step_and_touches_nothing_else() -> None:
    state = build(SMALL).state_dict()
    new = change(SMALL, {"image_size": (64, 64), "patch_size": 16, "channels": 1, "num_classes": 3})
    fitted, done = resize_state(state, SMALL, new, method="timm")
    assert done == [
        "input kernels fitted from 3 to 1 channels",
        "patch kernels resized from 8 to 16 pixels",
        "relative bias resized from 4x6 to 4x4 (timm)",
        "new head for 3 classes, its last layer zero",
    ]
    changed = {name for name in state if name not in fitted or fitted[name] is not state[name]}
    assert changed == {
        "patches.projection.weight", "blocks.0.relative.table", "blocks.1.relative.table",
        "head.classes.weight", "head.classes.bias",
    }  # fmt: skip
    unchanged, nothing = resize_state(state, SMALL, SMALL, method="paper")
    assert nothing == []
    assert unchanged == state


def test_from_pre_training_to_fine_tuning() -> None:
    old = KINDS["pre-trained"]
    new = replace(old, relative_bias="block", pool="mean", num_classes=5)
    state = build(old).state_dict()
    torch.nn.init.normal_(state["relative.table"])
    torch.nn.init.normal_(state["norm.bias"])
    fitted, done = resize_state(state, old, new, method="paper")
    assert done[1:3] == [
        "the relative bias that all blocks shared copied to each of the 2",
        "the norm starts anew, because it norms something else",
    ]
    for i in range(2):
        assert torch.equal(fitted[f"blocks.{i}.relative.table"], state["relative.table"])
    assert not fitted["norm.bias"].any()
    with pytest.raises(UserError, match="none is shared"):
        resize_state(
            build(SMALL).state_dict(), SMALL, replace(SMALL, relative_bias="shared"), method="hf"
        )
    with pytest.raises(UserError, match="dim is 32 in the trained weights and cannot become 64"):
        resize_state(build(SMALL).state_dict(), SMALL, replace(SMALL, dim=64), method="hf")
