"""Similarities, biases by offset, and what changes when a place is forgotten."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.kinds import KINDS
from tests.parity.test_every_family import make, picture
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.layout import TokenLayout
from vitrail.explanation.ablation import (
    cells_of_tile,
    position_ablation,
    tile_grid,
    without_positions,
)
from vitrail.explanation.capture import AttentionMap, capture
from vitrail.explanation.distance import group_cells
from vitrail.explanation.hooks import forward_hooks, token_layouts
from vitrail.explanation.positions import (
    bias_by_offset,
    position_similarity,
    position_table,
    shared_bias,
)
from vitrail.layers.position import LearnedPositions, sincos_2d
from vitrail.layers.relative import RelativeBias
from vitrail.layers.window import ShiftMask, lay_windows
from vitrail.models.vit import ViT

sides = st.integers(1, 7)


@given(sides, sides)
@settings(max_examples=20, deadline=None)
def test_sine_positions_are_alike_by_their_offset_alone(rows: int, columns: int) -> None:
    tiles = position_similarity(sincos_2d((rows, columns), 32).unflatten(0, (rows, columns)))
    flat = tiles.flatten(2).flatten(0, 1)
    torch.testing.assert_close(flat, flat.mT)
    torch.testing.assert_close(flat.diagonal(), torch.ones(rows * columns, dtype=torch.float64))
    assert flat.abs().max() <= 1 + 1e-12
    for down in range(rows):
        for across in range(columns):
            same = tiles[: rows - down, : columns - across]
            moved = torch.stack(
                [
                    same[row, column, row + down, column + across]
                    for row in range(rows - down)
                    for column in range(columns - across)
                ]
            )
            torch.testing.assert_close(moved, moved[:1].expand_as(moved))


@pytest.mark.parametrize("kind", ["plain", "distilled", "sine positions", "2-D positions"])
def test_a_table_gives_the_patches_alone(kind: str) -> None:
    config = KINDS[kind]
    model = ViT(config)
    table = position_table(model, config.layout)
    assert table is not None
    assert model.positions is not None
    whole = model.positions()[0]
    assert torch.equal(table.flatten(0, 1), whole[len(whole) - config.grid[0] * config.grid[1] :])
    assert position_table(ViT(KINDS["no positions"]), config.layout) is None


@given(sides, sides)
@settings(max_examples=20, deadline=None)
def test_offsets_give_back_the_table(rows: int, columns: int) -> None:
    bias = RelativeBias((rows, columns), heads=2)
    nn.init.normal_(bias.table)
    with torch.no_grad():
        found = bias_by_offset(bias()[0], (rows, columns))
        # the table counts from the key to the query, a tile from the query to the key
        expected = bias.table.mT.unflatten(1, (2 * rows - 1, 2 * columns - 1)).flip(1, 2)
    torch.testing.assert_close(found, expected)


def test_shifted_windows_show_the_bias_that_all_have() -> None:
    layout = lay_windows(
        (8, 12), merged=0, patch_size=4, size=4, shifted=True, window_policy="paper"
    )
    bias = torch.randn(1, 3, 16, 16)
    masked = ShiftMask(layout)(bias)
    assert len(masked) == 6
    assert torch.equal(shared_bias(masked, layout), bias[0])
    prefixed = TokenLayout(grid=(2, 2), stride=4, prefix=1)
    assert torch.equal(shared_bias(bias[:, :, :5, :5], prefixed), bias[0, :, 1:5, 1:5])


@given(sides, sides, sides, sides)
@settings(max_examples=40, deadline=None)
def test_tiles_part_every_grid(rows: int, columns: int, down: int, across: int) -> None:
    tiles, grid = (down, across), (rows, columns)
    every = [cells_of_tile(divmod(n, across), tiles, grid) for n in range(down * across)]
    assert torch.stack(every).sum(dim=0).eq(1).all()


def test_there_are_not_too_many_tiles() -> None:
    assert tile_grid([TokenLayout(grid=(14, 14), stride=16)]) == (14, 14)
    assert tile_grid(
        [TokenLayout(grid=(7, 7), stride=32), TokenLayout(grid=(56, 56), stride=4)]
    ) == (
        8,
        8,
    )
    assert tile_grid([TokenLayout(grid=(1, 5000), stride=4)])[0] == 1


def biases_of(model: nn.Module, image: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def see(name: str, one: AttentionMap, bias: Tensor | None) -> None:
        assert bias is not None
        found[name] = bias

    with torch.no_grad(), forward_hooks(model, attention=see):
        model(image)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["swin", "swinv2", "coatnet"])
def test_all_places_forgotten_is_a_model_without_bias(family: str) -> None:
    """Every bias becomes the mean of its head, which attention does not see."""
    model, image = make(family, torch.float64), picture(family, torch.float64)
    with torch.no_grad():
        before = model(image)
        with without_positions(model, (0, 0), (1, 1)), capture(model) as flat:
            forgotten = model(image)
        for module in model.modules():
            if isinstance(module, RelativeBias):
                module.table.zero_()
            elif type(module).__name__ == "ContinuousBias":
                module.get_parameter("fc2.weight").zero_()
        with capture(model) as kept:
            without = model(image)
    assert (forgotten - before).abs().max() > 1e-4
    if family == "coatnet":
        torch.testing.assert_close(forgotten, without, rtol=0, atol=1e-10)
        return
    # the first layer sees the same tokens in both; padding has no place and keeps its bias
    whole = [name for name, one in token_layouts(model).items() if one.padded == one.grid]
    for name in whole[:1]:
        torch.testing.assert_close(flat[name].weights, kept[name].weights, rtol=0, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["swin", "swinv2", "beit", "coatnet"])
def test_a_forgotten_tile_has_the_mean_bias_and_masks_stay(family: str) -> None:
    model, image = make(family, torch.float64), picture(family, torch.float64)
    before = biases_of(model, image)
    with without_positions(model, (1, 0), (2, 2)):
        after = biases_of(model, image)
    for name, layout in token_layouts(model).items():
        old, new = before[name].expand_as(after[name]), after[name]
        apart = old < -50
        cells, prefix = group_cells(layout), layout.prefix
        rows, columns = layout.grid
        below = (cells // columns + 0.5) / rows >= 0.5
        left = (cells % columns + 0.5) / columns < 0.5
        gone = F.pad((cells >= 0) & below & left, (prefix, 0))
        pairs = (gone[:, :, None] | gone[:, None])[:, None].expand_as(new).clone()
        pairs[..., :prefix, :] = pairs[..., :prefix] = False
        assert torch.equal(new[~pairs | apart], old[~pairs | apart])
        assert (pairs & ~apart).any()
        for head in range(new.shape[1]):
            known = old[:, head, prefix:, prefix:][~apart[:, head, prefix:, prefix:]]
            put = new[:, head][pairs[:, head] & ~apart[:, head]]
            torch.testing.assert_close(put, known.mean().expand_as(put))


def test_all_positions_forgotten_are_their_mean() -> None:
    model, image = make("vit", torch.float64), picture("vit", torch.float64)
    assert isinstance(model, ViT)
    assert isinstance(model.positions, LearnedPositions)
    with torch.no_grad():
        with without_positions(model, (0, 0), (1, 1)):
            forgotten = model(image)
        table = model.positions.table
        table[:, 1:] = table[:, 1:].mean(dim=1, keepdim=True)
        torch.testing.assert_close(forgotten, model(image), rtol=0, atol=1e-12)
    assert not any(module._forward_hooks for module in model.modules())
    # now that all are alike there is nothing to forget
    changes, what = position_ablation(model, image)
    assert what == "logits"
    assert changes.shape == (2, *KINDS["plain"].grid)
    assert changes.max() < 1e-12


def test_only_what_depends_on_a_place_changes() -> None:
    model, image = make("vit", torch.float64), picture("vit", torch.float64)
    assert isinstance(model, ViT)
    assert isinstance(model.positions, LearnedPositions)
    with torch.no_grad():
        patches = model.positions.table[0, 1:]
        patches[:] = patches.mean(dim=0)
        patches[8] += picture("vit")[0, 0, 0, :32]  # row 1, column 2 of 4x6
        patches[:] -= patches.mean(dim=0)
    changes, _ = position_ablation(model, image)
    place = changes.flatten(1).argmax(dim=1)
    assert place.tolist() == [8, 8]


def test_a_model_without_a_trained_head_is_judged_by_features() -> None:
    model = ViT(KINDS["no head"]).eval()
    changes, what = position_ablation(model, torch.randn(1, 3, 32, 48), tiles=(2, 2))
    assert what == "features"
    assert changes.shape == (1, 2, 2)
    assert changes.min() > 0
