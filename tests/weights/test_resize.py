"""Resizing against the code of those who published the weights."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.ndimage  # type: ignore[import-untyped]
import timm.layers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.kinds import KINDS, SMALL
from torch import Tensor
from torchvision.models.vision_transformer import interpolate_embeddings

from vitrail import UserError, load
from vitrail.core.passport import ResizeMethod
from vitrail.models.catalogue import build, change
from vitrail.models.position_resize import INTERPOLATE, resize_positions
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.vit import ViT
from vitrail.weights.resize import resize_channels, resize_patches
from vitrail.weights.resize_state import resize_state

SWIN = SwinConfig(
    dim=8, depths=(1, 1), heads=(2, 2), window_size=4, image_size=(32, 32), num_classes=2
)
GRIDS = st.tuples(st.integers(1, 9), st.integers(1, 9))


def table(rows: int, columns: int, prefix: int = 1, dim: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, prefix + rows * columns, dim, generator=generator, dtype=torch.float64)


@given(old=GRIDS, new=GRIDS, prefix=st.integers(0, 3), method=st.sampled_from(sorted(INTERPOLATE)))
@settings(max_examples=60, deadline=None)
def test_every_method_gives_every_grid_and_keeps_the_prefix(
    old: tuple[int, int], new: tuple[int, int], prefix: int, method: ResizeMethod
) -> None:
    before = table(*old, prefix)
    after = resize_positions(before, old, new, prefix=prefix, method=method)
    assert after.shape == (1, prefix + new[0] * new[1], 6)
    assert torch.equal(after[:, :prefix], before[:, :prefix])
    assert after.isfinite().all()
    if old == new:
        assert torch.equal(after, before)


@pytest.mark.parametrize(("old", "new"), [(14, 24), (14, 7), (7, 16)])
def test_paper_is_scipys_zoom(old: int, new: int) -> None:
    before = table(old, old)
    grid = before[0, 1:].view(old, old, 6).numpy()
    zoomed = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
    after = resize_positions(before, (old, old), (new, new), prefix=1, method="paper")
    np.testing.assert_allclose(after[0, 1:].view(new, new, 6).numpy(), zoomed, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((14, 14), (7, 20)), ((6, 9), (9, 4))]
)
def test_timm_is_timms(old: tuple[int, int], new: tuple[int, int]) -> None:
    before = table(*old).float()  # timm computes in float32 whatever it is given
    theirs = timm.layers.resample_abs_pos_embed(before, list(new), list(old), num_prefix_tokens=1)
    ours = resize_positions(before, old, new, prefix=1, method="timm")
    assert torch.equal(ours, theirs)


def test_torchvision_is_torchvisions() -> None:
    before = table(14, 14)
    state = {"encoder.pos_embedding": before}
    theirs = interpolate_embeddings(384, 16, state)["encoder.pos_embedding"]
    ours = resize_positions(before, (14, 14), (24, 24), prefix=1, method="torchvision")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_methods_really_differ() -> None:
    """FACTS section 3 has the sizes of the differences; here, that none is another by mistake."""
    results = {
        method: resize_positions(table(14, 14), (14, 14), (24, 24), prefix=1, method=method)
        for method in INTERPOLATE
    }
    # going up, antialiasing changes nothing in principle: timm's and hf's kernels differ all the
    # same
    pairs: list[tuple[ResizeMethod, ResizeMethod]] = [
        ("paper", "timm"),
        ("paper", "hf"),
        ("torchvision", "hf"),
        ("dinov2", "hf"),
        ("timm", "hf"),
    ]
    for one, other in pairs:
        assert (results[one] - results[other]).abs().max() > 1e-3, (one, other)


def test_a_grid_that_is_not_the_tables_is_refused() -> None:
    with pytest.raises(
        UserError, match="197 positions are not 1 prefix tokens and a grid of 13x13"
    ):
        resize_positions(table(14, 14), (13, 13), (24, 24), prefix=1, method="paper")


def test_half_precision_is_interpolated_in_full() -> None:
    before = table(7, 7).half()
    after = resize_positions(before, (7, 7), (9, 9), prefix=1, method="timm")
    exact = resize_positions(before.float(), (7, 7), (9, 9), prefix=1, method="timm")
    assert after.dtype is torch.float16
    assert torch.equal(after, exact.half())


@pytest.mark.parametrize(("old", "new"), [(8, 16), (16, 8), (14, 16), (16, 32)])
def test_patch_kernels_are_timms(old: int, new: int) -> None:
    kernel = torch.randn(5, 3, old, old)
    theirs = timm.layers.resample_patch_embed(kernel, [new, new])
    ours = resize_patches(kernel, new, method="timm")
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)  # timm inverts in float32


@pytest.mark.parametrize("method", ["paper", "timm"])
def test_larger_kernels_answer_enlarged_patches_exactly(method: ResizeMethod) -> None:
    """What the pseudo-inverse is for (arXiv:2212.08013, 3.4): <x, w> = <resize(x), w_new> going
    up."""
    kernel = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    patch = torch.randn(1, 2, 8, 8, dtype=torch.float64)
    mode = {"paper": "bilinear", "timm": "bicubic"}[method]
    antialias = method == "timm"
    large = torch.nn.functional.interpolate(patch, (12, 12), mode=mode, antialias=antialias)
    new = resize_patches(kernel, 12, method=method)
    before, after = (
        torch.einsum("bchw,dchw->bd", *pair) for pair in ((patch, kernel), (large, new))
    )
    torch.testing.assert_close(before, after, rtol=0, atol=1e-9)


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_channels_answer_grey_pictures_as_before(channels: int) -> None:
    kernel = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    new = resize_channels(kernel, channels)
    assert new.shape == (4, channels, 8, 8)
    torch.testing.assert_close(new.sum(1), kernel.sum(1))
    if channels == 1:
        theirs = timm.models.adapt_input_conv(channels, kernel.float()).double()
        torch.testing.assert_close(new, theirs, rtol=1e-5, atol=1e-6)


def test_fitting_reports_each_step_and_touches_nothing_else() -> None:
    model = build(SMALL)
    state = model.state_dict()
    new = change(SMALL, {"image_size": (64, 64), "patch_size": 16, "channels": 1, "num_classes": 3})
    fitted, done = resize_state(state, SMALL, new, method="paper")
    assert done == [
        "input kernels fitted from 3 to 1 channels",
        "patch kernels resized from 8 to 16 pixels",
        "positions resized from 4x6 to 4x4 (paper)",
        "new head for 3 classes, its last layer zero",
    ]
    changed = {name for name in state if name not in fitted or fitted[name] is not state[name]}
    assert changed == {
        "patches.projection.weight", "positions.table", "head.classes.weight", "head.classes.bias",
    }  # fmt: skip
    unchanged, nothing = resize_state(state, SMALL, SMALL, method="paper")
    assert nothing == []
    assert unchanged == state


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slots", [0, 1, 2, 3, 4])
def test_positions_of_prefix_tokens_fold_into_the_tokens_exactly(slots: int) -> None:
    config = replace(SMALL, distilled=True, registers=2, prefix_positions=3)
    model = build(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    new = replace(config, prefix_positions=slots)
    other = build(new).eval()
    state, done = resize_state(model.state_dict(), config, new, method="paper")
    other.load_state_dict(state)
    image = torch.randn(2, 3, 32, 48)
    assert isinstance(model, ViT)
    assert isinstance(other, ViT)
    assert torch.equal(other.embed(image), model.embed(image))
    assert len(done) == (slots != 3)


def test_2d_positions_are_resized_along_each_axis() -> None:
    config = KINDS["2-D positions"]
    model = build(config)
    new = change(config, {"image_size": (64, 48)})
    fitted, _ = resize_state(model.state_dict(), config, new, method="paper")
    assert fitted["positions.rows"].shape[0] == 8
    assert torch.equal(fitted["positions.columns"], model.state_dict()["positions.columns"])
    assert torch.equal(
        fitted["positions.rows"][[0, -1]], model.state_dict()["positions.rows"][[0, -1]]
    )


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("plain", {"dim": 64}, "dim is 32 in the trained weights and cannot become 64"),
        ("plain", {"registers": 1}, "registers is 0"),
        ("relative positions", {"image_size": (64, 64)}, "belong to one grid"),
        ("normed patches", {"channels": 1}, "norms its pixels"),
    ],
)
def test_what_cannot_be_changed_says_so(
    kind: str, changes: dict[str, object], sentence: str
) -> None:
    config = KINDS[kind]
    with pytest.raises(UserError, match=sentence):
        resize_state(build(config).state_dict(), config, change(config, changes), method="paper")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "told"),
    [("paper", "paper"), ("hf", "paper"), ("torchvision", "paper"), ("timm", "timm")],
)
def test_a_swin_reports_how_its_tables_were_resized(method: ResizeMethod, told: str) -> None:
    """Whoever published it, tables go by cubics as in the authors' code, or as in timm's."""
    model = build(SWIN)
    larger = load(model, method=method, image_size=48, window_size=6)
    resized = [one for one in larger.passport.origin.changes if "relative bias" in one]
    assert resized
    assert all(one.endswith(f"({told})") for one in resized)
    same = load(model, method="timm" if told == "timm" else "paper", image_size=48, window_size=6)
    mine, theirs = larger.state_dict(), same.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_swin_is_not_resized_by_a_method_for_positions() -> None:
    with pytest.raises(UserError, match="method must be one of paper, timm"):
        load(build(SWIN), method="dinov2", image_size=48, window_size=6)


def test_oblong_windows_stay_what_offsets_are_measured_against() -> None:
    """A grid of 2x4 is one window of 2x4 in the last stage, and was so in training."""
    fields = {field.name: getattr(SWIN, field.name) for field in dataclasses.fields(SWIN)}
    model = (
        build(SwinV2Config(**fields | {"image_size": (16, 32), "window_policy": "timm"}))
        .double()
        .eval()
    )
    larger: Any = load(model, image_size=(32, 64))
    assert larger.config.pretrained_windows == (4, (2, 4))
    assert larger.config.reference_window(1) == (2, 4)
    image = torch.randn(1, 3, 16, 32, dtype=torch.float64)
    torch.testing.assert_close(load(larger, image_size=(16, 32))(image), model(image))
