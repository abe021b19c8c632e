"""Curves, pointing and shuffling against closed forms, and a verdict on maps whose worth is
known."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.pointing import FAMILIES, evidence_for, ours, point, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from vitrail import UserError
from vitrail.explain.faithfulness import (
    FILLINGS,
    averaged,
    blurred,
    by_relevance,
    check_map,
    curves_of,
    highest_place,
    luck_of,
    pointing_game,
    probability_of,
    random_curves,
    rank_correlation,
    shuffle_check,
    shuffled_from_head,
    weight_groups,
)
from vitrail.explain.methods import METHODS

KINDS, CELL, CELLS = 6, 8, 6


class Templates(nn.Module):
    """Finds which of several patterns is in a picture, by comparing each cell with all of them. So
    what a map of it should show is known."""

    def __init__(self) -> None:
        super().__init__()
        patterns = torch.randn(CELL * CELL, CELL * CELL, generator=torch.Generator().manual_seed(1))
        self.patches = nn.Conv2d(1, KINDS, CELL, stride=CELL)
        self.head = nn.Linear(KINDS, KINDS)
        with torch.no_grad():
            kernels = torch.linalg.qr(patterns)[0][:KINDS]
            self.patches.weight.copy_(kernels.view(KINDS, 1, CELL, CELL))
            self.patches.bias.fill_(-1.5)  # type: ignore[union-attr]
            self.head.weight.copy_(24 * torch.eye(KINDS))
            self.head.bias.zero_()

    def cells(self, images: Float[Tensor, "B 1 H W"]) -> Float[Tensor, "B K rows columns"]:
        return F.relu(self.patches(images))

    def forward(self, images: Float[Tensor, "B 1 H W"]) -> Float[Tensor, "B K"]:
        return self.head(self.cells(images).mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def model() -> Templates:
    return Templates().eval()


def pictures(model: Templates, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Patterns on noise, their classes, and the boxes of their cells."""
    generator = torch.Generator().manual_seed(2)
    images = 0.1 * torch.randn(count, 1, CELLS * CELL, CELLS * CELL, generator=generator)
    kinds = torch.randint(KINDS, (count,), generator=generator)
    rows, columns = torch.randint(CELLS, (2, count), generator=generator) * CELL
    for image, kind, row, column in zip(images, kinds, rows, columns, strict=True):
        image[:, row : row + CELL, column : column + CELL] += (
            8 * model.patches.weight[kind].detach()
        )
    boxes = torch.stack([rows, columns, rows + CELL, columns + CELL], dim=1)
    return images, kinds, boxes


def truth(boxes: Tensor) -> Float[Tensor, "B rows columns"]:
    maps = torch.zeros(len(boxes), CELLS, CELLS)
    maps[torch.arange(len(boxes)), boxes[:, 0] // CELL, boxes[:, 1] // CELL] = 1
    return maps


def chance(images: Tensor) -> Float[Tensor, "B rows columns"]:
    return torch.rand(len(images), CELLS, CELLS, generator=torch.Generator().manual_seed(0))


# The verdict


@pytest.mark.parametrize("count", [3, 16])
def test_a_map_of_what_the_model_computes_tracks_it(model: Templates, count: int) -> None:
    images, kinds, boxes = pictures(model, count)

    def class_activation(model: nn.Module, images: Tensor) -> Tensor:
        assert isinstance(model, Templates)
        return torch.einsum("bk,bkij->bij", model.head.weight[kinds], model.cells(images))

    verdict, curves, _ = check_map(class_activation, model, images, kinds, layers=None)
    assert verdict.tracks, verdict
    assert verdict.sentence == "this map does track the model"
    assert verdict.images == count
    assert verdict.deletion < verdict.random_deletion - 0.2
    assert verdict.insertion > verdict.random_insertion + 0.2
    assert [name for name, _ in verdict.shuffled] == ["head", "patches"]
    assert curves.deletion.shape == (count, 17)
    assert pointing_game(class_activation(model, images), boxes, (48, 48)).all()


@pytest.mark.parametrize("count", [1, 4, 64])
def test_a_random_map_does_not(model: Templates, count: int) -> None:
    images, kinds, boxes = pictures(model, count)
    verdict, _, _ = check_map(lambda _, images: chance(images), model, images, kinds)
    assert not verdict.beats_chance, verdict
    assert not verdict.tracks
    assert verdict.sentence == "this map does not track the model"
    assert "no better than chance" in verdict.reasons[0]
    if count == 64:
        assert pointing_game(chance(images), boxes, (48, 48)).float().mean() < 0.15


def test_the_truth_beats_chance_but_does_not_hang_on_the_model(model: Templates) -> None:
    """A map that is right for every model explains none: the second half of the rule."""
    images, kinds, boxes = pictures(model, 16)
    verdict, _, _ = check_map(lambda *_: truth(boxes), model, images, kinds)
    assert verdict.beats_chance
    assert verdict.luck < 0.001
    assert verdict.shuffled[-1][1] == pytest.approx(1)
    assert not verdict.tracks
    assert "does not hang on the weights" in verdict.reasons[1]
    assert "whatever the class" in verdict.reasons[2]
    assert pointing_game(truth(boxes), boxes, (48, 48)).all()


def test_a_map_that_is_upside_down_is_worse_than_chance(model: Templates) -> None:
    images, kinds, boxes = pictures(model, 16)
    verdict, _, _ = check_map(lambda *_: -truth(boxes), model, images, kinds)
    assert verdict.gain < -0.1
    assert not verdict.beats_chance


@given(seed=st.integers(0, 10_000), images=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_luck_is_a_probability_under_which_random_maps_are_uniform(seed: int, images: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pools = torch.rand(20, images, generator=generator)
    lucks = [luck_of(pools[k], torch.cat([pools[:k], pools[k + 1 :]])) for k in range(20)]
    assert all(0 < luck <= 1 for luck in lucks)
    sums = pools.sum(dim=1)
    # the larger the sum, the less it is luck
    assert spearmanr(lucks, -sums).statistic > (0.999 if images <= 3 else 0.99)
    if images == 1:
        assert sorted(lucks) == pytest.approx([(k + 1) / 20 for k in range(20)])


def test_luck_is_exact_where_all_ways_can_be_tried() -> None:
    own, others = torch.tensor([1.0, 1.0]), torch.tensor([[0.0, 2.0], [0.5, 0.0]])
    # sums of {1, 0, 0.5} and {1, 2, 0}: 2 3 1 · 1 2 0 · 1.5 2.5 0.5
    assert luck_of(own, others) == pytest.approx(4 / 9)
    many = luck_of(torch.full((30,), 0.5), torch.rand(4, 30, generator=torch.Generator()))
    assert 0.05 < many < 0.95


# Deletion and insertion


@given(seed=st.integers(0, 10_000), rows=st.integers(2, 6), columns=st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_curves_of_a_sum_are_partial_sums(seed: int, rows: int, columns: int) -> None:
    """Where the score is the mean of a picture of `rows` by `columns` cells, each step is known."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.rand(3, rows, columns, generator=generator, dtype=torch.float64)
    images = cells.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)[:, None]
    # the mean would not move if cells were replaced by it: half of it is put there
    shrunk = torch.cat([images, -images], dim=3)  # mean 0
    count = rows * columns

    def score(x: Tensor) -> Tensor:
        return x[:, :, :, : images.shape[3]].mean(dim=(1, 2, 3))

    maps = torch.cat([cells, torch.full_like(cells, -1)], dim=2)  # the left half goes first
    curves = curves_of(score, shrunk, maps, steps=2 * count, filling="mean")
    ordered = cells.flatten(1).sort(dim=1, descending=True).values
    gone = torch.cat([torch.zeros(3, 1), ordered.cumsum(dim=1) / count], dim=1)
    left = ordered.mean(dim=1, keepdim=True) - gone
    torch.testing.assert_close(curves.deletion[:, : count + 1], left, check_dtype=False)
    torch.testing.assert_close(curves.insertion[:, : count + 1], gone, check_dtype=False)
    torch.testing.assert_close(curves.deletion[:, count:].abs().max(), torch.tensor(0.0).double())
    for other in random_curves(score, shrunk, (rows, 2 * columns), filling="mean", orders=3):
        assert (curves.gap >= other.gap - 1e-9).all()  # no order is better than the right one


def test_both_curves_end_where_the_other_begins(model: Templates) -> None:
    images, kinds, _ = pictures(model, 3)
    score = probability_of(model, kinds)
    for filling in FILLINGS:
        curves = curves_of(score, images, chance(images), filling=filling, steps=5)
        assert torch.equal(curves.deletion[:, 0], curves.insertion[:, -1])
        assert torch.equal(curves.deletion[:, -1], curves.insertion[:, 0])
        assert torch.equal(curves.deletion[:, 0], score(images))
        assert torch.equal(curves.deletion[:, -1], score(FILLINGS[filling](images)))
        assert curves.shares[0] == 0
        assert curves.shares[-1] == 1


def test_equal_cells_go_in_a_random_order() -> None:
    order = by_relevance(torch.zeros(4, 5, 5))
    assert all(sorted(row) == list(range(25)) for row in order.tolist())
    assert all(row != list(range(25)) for row in order.tolist())
    assert len({tuple(row) for row in order.tolist()}) == 4
    maps = torch.zeros(1, 2, 2)
    maps[0, 1, 0], maps[0, 0, 1] = 3, math.nan  # what is no number goes last
    assert by_relevance(maps)[0, 0] == 2
    assert by_relevance(maps)[0, -1] == 1


def test_fillings_keep_the_mean_and_lose_the_rest() -> None:
    images = torch.rand(2, 3, 40, 56, dtype=torch.float64)
    assert averaged(images).std(dim=(2, 3)).max() < 1e-12
    soft = blurred(images)
    assert soft.shape == images.shape
    assert (soft.std(dim=(2, 3)) < 0.2 * images.std(dim=(2, 3))).all()
    torch.testing.assert_close(soft.mean(dim=(2, 3)), images.mean(dim=(2, 3)), atol=0.03, rtol=0)
    flat = torch.full((1, 1, 16, 16), 0.3, dtype=torch.float64)
    torch.testing.assert_close(blurred(flat), flat)


# Pointing


@given(
    rows=st.integers(1, 9), columns=st.integers(1, 9), place=st.integers(0, 80),
    height=st.integers(9, 70), width=st.integers(9, 70),
)  # fmt: skip
def test_pointing_asks_for_the_centre_of_the_highest_cell(
    rows: int, columns: int, place: int, height: int, width: int
) -> None:
    row, column = divmod(place % (rows * columns), columns)
    maps = torch.full((1, rows, columns), -1.0)
    maps[0, row, column] = 0.5
    y, x = highest_place(maps, (height, width))[0].tolist()
    assert row * height / rows < y < (row + 1) * height / rows
    assert column * width / columns < x < (column + 1) * width / columns
    around = torch.tensor([[math.floor(y), math.floor(x), math.floor(y) + 1, math.floor(x) + 1]])
    assert pointing_game(maps, around, (height, width)).all()
    below = around + torch.tensor([[2, 0, 2, 0]])
    assert not pointing_game(maps, below, (height, width)).any()
    assert pointing_game(maps, below, (height, width), tolerance=2).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_method_points_at_planted_evidence(family: str, tmp_path: Path) -> None:
    """On a model that the test trains: three to ten minutes of one core each."""
    model = trained(family, tmp_path / family)
    evidence = evidence_for(model, 500)
    shares = {method: point(ours(model, method), evidence)[0] for method in METHODS}
    assert max(shares.values()) >= FAMILIES[family].goal, shares
    noise = torch.Generator().manual_seed(0)
    blind, _ = point(lambda images, _: torch.rand(len(images), 8, 8, generator=noise), evidence)
    assert blind < 0.25


# Shuffled weights


@given(values=st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=2, max_size=2))
def test_rank_correlation_is_spearmans(values: list[list[int]]) -> None:
    first, second = (torch.tensor(row, dtype=torch.float64).view(1, 2, 3) for row in values)
    ours = float(rank_correlation(first, second))
    if len(set(values[0])) == 1 or len(set(values[1])) == 1:
        assert ours == 0
    else:
        assert ours == pytest.approx(float(spearmanr(*values).statistic), abs=1e-12)


MODELS = {
    "vit": {"name": "vit_ti_16", "image_size": 32, "dim": 24, "depth": 2, "mlp_dim": 48},
    "swin": {"name": "swin_t", "image_size": 32, "dim": 12, "depths": (2, 2), "heads": (1, 2)},
    "mobilevit": {"name": "mobilevit_xxs", "image_size": 64},
}


@pytest.mark.parametrize("family", MODELS)
def test_shuffling_goes_from_the_head_down_and_spares_the_model(family: str) -> None:
    torch.manual_seed(0)
    model = vitrail.create(**MODELS[family], num_classes=4)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    before = {name: value.clone() for name, value in model.named_parameters()}
    groups = weight_groups(model)
    assert sorted(name for names in groups.values() for name in names) == sorted(before)
    order = list(groups)
    assert order[0] == "head"
    assert order[1:-1] == list(reversed(model.trunk()))
    assert order[-1] == "the rest"
    done: set[str] = set()
    for group, shuffled in shuffled_from_head(model):
        done |= set(groups[group])
        for name, value in shuffled.named_parameters():
            moved = not torch.equal(value, before[name])
            assert moved == (name in done and value.numel() > 1), name
            assert torch.equal(value.flatten().sort()[0], before[name].flatten().sort()[0])
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_some_layers_are_looked_at_first_and_last_included() -> None:
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(9)))
    seen: list[Tensor] = []

    def explain(model: nn.Module, images: Tensor) -> Tensor:
        seen.append(torch.rand(len(images), 3, 3))
        return seen[-1]

    told = shuffle_check(explain, deep, torch.zeros(2, 1, 8, 8), layers=4)
    assert [name for name, _ in told] == ["8", "5", "3", "0"]
    assert len(seen) == 5
    with pytest.raises(UserError, match="no weights"):
        shuffle_check(explain, nn.Identity(), torch.zeros(2, 1, 8, 8))


def test_several_labels_are_scored_each_for_itself() -> None:
    linear = nn.Flatten()
    images = torch.tensor([[[[0.0, 2.0]]]])
    assert float(probability_of(linear, torch.tensor([1]))(images)) == pytest.approx(
        float(np.exp(2) / (1 + np.exp(2)))
    )
    both = probability_of(linear, torch.tensor([0]), several=True)(images)
    assert float(both) == pytest.approx(0.5)
