"""Pictures of maps: the brightest place is where the map is highest, in panels of every family."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitrail
from vitrail import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap, capture
from vitrail.explanation.head_maps import (
    MAX_CELLS,
    MAX_HEADS,
    HeadMaps,
    head_maps,
    query_maps,
)
from vitrail.explanation.hooks import token_layouts
from vitrail.explanation.overlays import (
    Tile,
    enlarge,
    layers_and_heads,
    overlay_map,
    side_by_side,
    write_png,
)
from vitrail.explanation.propagation import global_attention
from vitrail.models.model import Model

GREY = np.full((96, 96, 3), 128, dtype=np.uint8)
FAMILIES = {
    "vit": {"name": "vit_ti_16", "image_size": 64, "dim": 24, "depth": 2, "mlp_dim": 48},
    "registers": {
        "name": "vit_ti_16", "image_size": 64, "dim": 24, "depth": 2, "mlp_dim": 48,
        "registers": 3, "pool": "mean",
    },
    "swin": {
        "name": "swin_t", "image_size": 64, "dim": 12, "depths": (2, 2), "heads": (2, 3),
        "window_size": 4,
    },
    "padded": {
        "name": "swin_t", "image_size": 72, "dim": 12, "depths": (2, 2), "heads": (2, 3),
        "window_size": 7,
    },
    "mobilevit": {"name": "mobilevit_xxs", "image_size": 64},
    "mobilevitv2": {"name": "mobilevitv2_050", "image_size": 64},
}  # fmt: skip


def model_of(family: str) -> tuple[Model, torch.Tensor]:
    torch.manual_seed(0)
    model = vitrail.create(**FAMILIES[family], num_classes=4).eval()  # type: ignore[arg-type]
    return model, torch.randn(1, 3, *model.config.image_size)


@given(rows=st.integers(2, 8), columns=st.integers(2, 8), place=st.integers(0, 63))
@settings(max_examples=30, deadline=None)
def test_the_brightest_place_is_the_highest(rows: int, columns: int, place: int) -> None:
    row, column = divmod(place % (rows * columns), columns)
    heat = torch.zeros(rows, columns)
    heat[row, column] = 0.1
    drawn = overlay_map(GREY, heat).astype(int).sum(axis=2)
    bright = np.argwhere(drawn > drawn.max() - 3).mean(axis=0)
    high, wide = 96 / rows, 96 / columns
    # at the border a spline is as high as in the middle of the cell, or higher
    assert abs(bright[0] - (row + 0.5) * high) <= high / 2 + 1
    assert abs(bright[1] - (column + 0.5) * wide) <= wide / 2 + 1


def test_a_map_that_says_nothing_is_drawn_all_the_same() -> None:
    for heat in (torch.zeros(4, 4), torch.full((4, 4), torch.nan), torch.full((1, 1), 3.0)):
        drawn = overlay_map(GREY, heat)
        assert drawn.shape == GREY.shape
        assert drawn.dtype == np.uint8
        assert drawn.reshape(-1, 3).std(axis=0).max() == 0


def test_enlarging_keeps_the_shape_and_hard_edges_of_small_pictures() -> None:
    tiny = np.random.default_rng(0).integers(0, 255, (8, 12, 3), dtype=np.uint8)
    large = enlarge(tiny, 120)
    assert large.shape == (80, 120, 3)
    assert np.array_equal(large[5::10, 5::10], tiny)
    assert enlarge(large, 30).shape == (20, 30, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_panel_has_a_row_a_layer_and_a_column_a_head(family: str) -> None:
    model, image = model_of(family)
    with capture(model) as maps, torch.no_grad():
        model(image)
    heads = head_maps(model, image)
    assert list(heads) == list(maps)
    for name, one in maps.items():
        assert heads[name].heat.shape == (one.weights.shape[-3], *one.layout.grid)
        assert heads[name].layout == one.layout
        if "pool" not in vars(model.config):  # it reads all cells: the mean row of the whole matrix
            expected = global_attention(one)[0].mean(dim=1).unflatten(-1, one.layout.grid)
            shares = [h / h.sum(dim=(1, 2), keepdim=True) for h in (heads[name].heat, expected)]
            if family != "padded":  # there empty cells were looked at too
                torch.testing.assert_close(shares[0], shares[1])
    sheet = layers_and_heads(GREY, heads, title="a title", side=40)
    most = max(len(each.heat) for each in heads.values())
    assert sheet.shape[0] > 40 * (len(heads) + 1)
    assert sheet.shape[1] > 40 * (most + 1)
    assert sheet.shape[1] < 40 * (most + 1) + 400


def test_a_query_is_found_again_on_coarser_grids() -> None:
    model, image = model_of("swin")
    with capture(model) as maps, torch.no_grad():
        model(image)
    heads = head_maps(model, image, (13, 5))  # of 16 x 16, so (6, 2) of 8 x 8
    assert torch.equal(
        heads["stages.0.blocks.0.attention"].heat,
        maps["stages.0.blocks.0.attention"].on_grid((13, 5))[0],
    )
    assert torch.equal(
        heads["stages.1.blocks.1.attention"].heat,
        maps["stages.1.blocks.1.attention"].on_grid((6, 2))[0],
    )
    assert heads["stages.0.blocks.0.attention"].heat[:, 12:16, 4:8].sum() == pytest.approx(2)
    with pytest.raises(UserError, match=r"\(15, 15\), got \(16, 0\)"):
        head_maps(model, image, (16, 0))


def test_many_heads_are_cut_and_that_is_said() -> None:
    layout = TokenLayout(grid=(4, 4), stride=8)
    narrow, wide = (
        layers_and_heads(GREY, {"a": HeadMaps(torch.rand(count, 4, 4), layout, (32, 32))}, side=32)
        for count in (MAX_HEADS, MAX_HEADS + 9)
    )
    assert wide.shape[1] == narrow.shape[1]
    assert wide.shape[0] > narrow.shape[0]  # by the line that says so


def test_tiles_keep_their_pixels(tmp_path: Path) -> None:
    colours = [np.full((30, 50, 3), 20 * number, dtype=np.uint8) for number in range(8)]
    tiles = [
        Tile(f"a title that is far too long for it {number}", pixels)
        for number, pixels in enumerate(colours)
    ]
    path = write_png(
        side_by_side(tiles, title="Ünïcode · 漢", across=3), tmp_path / "new" / "a.png"
    )
    sheet = np.array(Image.open(path))
    assert sheet.shape[1] < 3 * 70
    for pixels in colours:
        assert (sheet == pixels[0, 0]).all(axis=2).sum() >= 30 * 50


def test_heads_lie_on_the_pixels_of_their_cells_where_a_grid_is_padded() -> None:
    """Swin at 72x100: the last cells of a coarse grid reach beyond the image."""
    torch.manual_seed(0)
    model = vitrail.create(
        "swin_t", image_size=(72, 100), dim=12, depths=(1, 1, 1), heads=(1, 2, 3), num_classes=4
    ).eval()
    found = head_maps(model, torch.randn(1, 3, 72, 100))
    last = list(found.values())[-1]
    assert last.layout.grid == (5, 7)
    heat = torch.zeros_like(last.heat)
    heat[:, 0, 3] = 1
    large = replace(last, heat=heat).on_pixels()[0]
    assert divmod(int(large.argmax()), 100)[1] in range(48, 64)  # not 43 to 57, a seventh each


def test_no_more_than_one_attention_is_held_for_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of deep models at large sizes are gigabytes: each is gone before the next one."""
    model, image = model_of("vit")
    alive: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def watched(owner: Any, one: AttentionMap, *rest: Any) -> torch.Tensor:
        counts.append(sum(ref() is not None for ref in alive))
        alive.append(weakref.ref(one.weights))
        return torch.zeros(1, *one.layout.grid)

    monkeypatch.setattr("vitrail.explanation.head_maps._maps_of_query", watched)
    head_maps(model, image)
    assert counts == [0, 0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["vit", "swin", "mobilevitv2"])
def test_maps_of_a_grid_of_queries_are_those_of_each_query(family: str) -> None:
    """What a page lets a person pick: the mean of the heads and each head, in 256 levels."""
    model, image = model_of(family)
    heads = {name: len(one.heat) for name, one in head_maps(model, image).items()}
    grid, found = query_maps(model, image, heads)
    assert list(found) == list(heads)
    assert sum(maps.levels.size for maps in found.values()) <= MAX_CELLS
    first = next(iter(token_layouts(model).values())).grid
    row, column = grid[0] // 2, grid[1] - 1
    places = zip((row, column), grid, first, strict=True)
    query = tuple((2 * place + 1) * side // (2 * count) for place, count, side in places)
    for name, one in head_maps(model, image, (query[0], query[1])).items():
        levels = found[name].levels[1:, 1 + row * grid[1] + column]
        if levels.shape[1:] == one.heat.shape[1:]:  # finer ones are averaged
            low, high = one.heat.amin(dim=(1, 2), keepdim=True), one.heat.amax((1, 2), keepdim=True)
            expected = 255 * (one.heat - low) / (high - low).clamp(min=1e-12)
            np.testing.assert_allclose(levels, expected, atol=0.51)
