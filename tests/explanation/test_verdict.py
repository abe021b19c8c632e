"""A verdict on maps whose worth is known, and a test that errs as rarely as it says."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from tests.explanation.templates import CELLS, Templates, as_relevance, chance, pictures, truth
from torch import Tensor, nn

from vitrail.explanation.pointing import pointing_game
from vitrail.explanation.readout import Relevance
from vitrail.explanation.verdict import (
    MAX_ORDERS,
    MAX_P,
    Verdict,
    check_methods,
    holm,
    max_orders,
    permutation_p_value,
)


@pytest.fixture(scope="module")
def model() -> Templates:
    return Templates().eval()


@pytest.mark.parametrize("count", [3, 16])
def test_a_map_of_what_the_model_computes_tracks_it(model: Templates, count: int) -> None:
    images, kinds, boxes = pictures(model, count)

    def class_activation(model: nn.Module, images: Tensor) -> Relevance:
        assert isinstance(model, Templates)
        weights = model.head.weight[kinds]
        return as_relevance(torch.einsum("bk,bkij->bij", weights, model.cells(images)))

    check = check_methods({"cam": class_activation}, model, images, kinds)["cam"]
    assert check.verdict.tracks == "yes", check.verdict
    assert check.verdict.sentence == "this map does track the model"
    assert check.verdict.images == count
    assert check.verdict.p_value < MAX_P  # the least that can be shown lies below the limit
    assert check.verdict.contrast > 0.3
    assert pointing_game(class_activation(model, images).map, boxes, (48, 48)).all()


def test_evidence_in_a_single_cell_of_one_image_is_rarely_turned_down(model: Templates) -> None:
    """A sixteenth of 36 cells are two, which a random map finds one time in nine, or its reverse:
    three of nine do so one time in fourteen."""
    turned_down = 0
    for seed in range(8):
        images, kinds, boxes = pictures(model, 1, seed)
        noise = 0.01 * torch.rand(1, CELLS, CELLS, generator=torch.Generator().manual_seed(seed))
        found = as_relevance(truth(boxes).map + noise)
        explain = {"truth": lambda *_, found=found: found}
        verdict = check_methods(explain, model, images, kinds, shuffles=1)["truth"].verdict
        turned_down += verdict.beats_chance == "no"
    assert turned_down <= 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [1, 4, 64])
def test_a_random_map_does_not(model: Templates, count: int) -> None:
    images, kinds, _ = pictures(model, count)
    explain = {"random": lambda _, images: chance(images)}
    check = check_methods(explain, model, images, kinds)["random"]
    assert check.verdict.beats_chance != "yes", check.verdict
    assert check.verdict.tracks != "yes"


@pytest.mark.slow
def test_random_maps_stop_the_test_early_and_rarely_pass(model: Templates) -> None:
    """One image: at most 5 % pass, as the level says, and few orders are drawn for most."""
    images, kinds, _ = pictures(model, 1)
    methods = {str(seed): (lambda _, x, seed=seed: chance(x, seed)) for seed in range(120)}
    passed = orders = 0
    for name, method in methods.items():
        verdict = check_methods({name: method}, model, images, kinds, shuffles=1)[name].verdict
        passed += verdict.beats_chance == "yes"
        orders += verdict.orders
    assert passed <= 12  # of 120, where 6 are expected: P(more) < 1 %
    assert orders / 120 < 0.7 * max_orders(1, 1)


def test_the_truth_beats_chance_but_does_not_depend_on_the_model(model: Templates) -> None:
    """A map that is right for every model explains none: the second half of the rule."""
    images, kinds, boxes = pictures(model, 16)
    verdict = check_methods({"truth": lambda *_: truth(boxes)}, model, images, kinds)[
        "truth"
    ].verdict
    assert verdict.beats_chance == "yes"
    assert verdict.p_value < 0.001
    assert verdict.correlation == pytest.approx(1)
    assert verdict.tracks == "no"
    assert "does not depend on the weights" in verdict.reasons[1]
    assert "fails the test against shuffled weights" in verdict.sentence
    assert "asks about a class, but here its map hardly depends" in verdict.reasons[2]
    assert "asks about no class" in replace(verdict, asks_about_class=False).reasons[2]


def test_a_map_that_turns_into_its_negative_shows_the_image(model: Templates) -> None:
    images, kinds, boxes = pictures(model, 4)

    def explain(asked: nn.Module, _: Tensor) -> Relevance:
        noise = 0.01 * torch.rand(4, CELLS, CELLS, generator=torch.Generator().manual_seed(0))
        return as_relevance((truth(boxes).map + noise) * (1 if asked is model else -1))

    verdict = check_methods({"negative": explain}, model, images, kinds)["negative"].verdict
    assert verdict.beats_chance == "yes"
    assert verdict.tracks == "no"


def test_a_map_that_is_upside_down_is_worse_than_chance(model: Templates) -> None:
    images, kinds, boxes = pictures(model, 16)
    upside_down = as_relevance(-truth(boxes).map)
    verdict = check_methods({"x": lambda *_: upside_down}, model, images, kinds)["x"].verdict
    assert verdict.contrast < -0.1
    assert verdict.p_value > 0.9
    assert verdict.beats_chance == "no"


FAIR = Verdict(
    images=1, score=0.9, deletion=0.3, insertion=0.6, contrast=0.3, orders=19, p_value=0.025,
    adjusted_p_value=0.025, head_correlation=0.2, correlation=0.2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "yes"),
        ({"p_value": 0.1, "adjusted_p_value": 0.1}, "unclear"),
        ({"adjusted_p_value": 0.175}, "unclear"),  # seven methods
        ({"p_value": 0.3, "adjusted_p_value": 0.3}, "no"),
        ({"contrast": 0.01}, "no"),
        ({"correlation": 0.6}, "unclear"),
        ({"correlation": 0.77}, "no"),
        ({"correlation": 0.77, "p_value": 0.1, "adjusted_p_value": 0.1}, "no"),
    ],
)
def test_there_are_three_verdicts(changes: dict[str, float], expected: str) -> None:
    verdict = replace(FAIR, **changes)  # type: ignore[arg-type]
    assert verdict.tracks == expected
    assert verdict.sentence.startswith("cannot tell") == (expected == "unclear")
    assert len(verdict.reasons) == 2


def test_the_words_follow_the_corrected_p_value() -> None:
    """A p that Holm's rule makes large shows nothing, however small it was by itself."""
    many = replace(FAIR, adjusted_p_value=0.245)
    assert "not shown to be better than chance" in many.reasons[0]
    assert many.sentence.endswith("undecided against random maps")
    small = replace(many, contrast=0.01)
    assert "not shown to be better than chance, and the difference is too small" in small.reasons[0]
    assert small.sentence.endswith("fails the test against random maps")
    shown = replace(FAIR, contrast=0.01)
    assert "better than chance, but the difference is too small" in shown.reasons[0]
    both = replace(small, correlation=0.9)
    assert both.sentence.endswith("against random maps and shuffled weights")


@given(seed=st.integers(0, 10_000), images=st.integers(1, 40))
@settings(max_examples=15, deadline=None)
def test_p_is_uniform_over_which_is_the_own_one(seed: int, images: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(10, images, generator=generator)
    signed = torch.cat([half, -half])
    own = [(signed[k], torch.cat([half[: k % 10], half[k % 10 + 1 :]])) for k in range(20)]
    values = [permutation_p_value(*each) for each in own]
    assert all(0 < value <= 1 for value in values)
    # the larger the sum, the smaller p
    assert spearmanr(values, -signed.sum(dim=1)).statistic > (0.999 if images <= 3 else 0.99)
    if images == 1:
        assert sorted(values) == pytest.approx([(k + 1) / 20 for k in range(20)])


def test_p_is_exact_where_all_ways_can_be_tried() -> None:
    own, others = torch.tensor([1.0, 1.0]), torch.tensor([[0.5, 2.0]])
    # sums of {1, 0.5, -1, -0.5} and {1, 2, -1, -2}: at least 2 are 1+1, 1+2, 0.5+2
    assert permutation_p_value(own, others) == pytest.approx(3 / 16)
    many = permutation_p_value(
        torch.full((30,), 0.0), torch.rand(4, 30, generator=torch.Generator())
    )
    assert 0.4 < many < 0.6


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(deadline=None)
def test_holm_rejects_step_by_step(p: list[float]) -> None:
    """By its definition: from the smallest on, each against the level over those that are left."""
    adjusted, level = holm(p), 0.05
    left = sorted(range(len(p)), key=lambda each: p[each])
    rejected: set[int] = set()
    for rank, place in enumerate(left):
        if p[place] * (len(p) - rank) > level:
            break
        rejected.add(place)
    assert {place for place, value in enumerate(adjusted) if value <= level} == rejected


def test_orders_are_enough_for_the_level_and_bounded() -> None:
    for images in range(1, 6):
        for methods in (1, 3, 10):
            least = 1 / (2 * (max_orders(images, methods) + 1)) ** images
            assert methods * least <= MAX_P
            assert max_orders(images, methods) <= MAX_ORDERS
