"""Every number of a recipe has a range, and one sentence for what is outside it."""

import math
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest

from tests.training.world import RECIPE
from vitrail import UserError
from vitrail.data.augment import Augmentation
from vitrail.training.goal import Distil, Labels, Masked
from vitrail.training.recipe import Lora, Monitor, Optimiser, Recipe, Schedule, Sharding

RECORDS: dict[str, Any] = {
    "": RECIPE,
    "optimiser.": Optimiser(),
    "schedule.": Schedule(),
    "goal.": Distil(),
    "monitor.": Monitor(),
    "lora.": Lora(),
    "sharding.": Sharding(),
    "augmentation.": Augmentation(),
}


def numbers_in(hint: Any) -> tuple[set[type], bool]:
    """Which kinds of number a field may hold, and whether in a tuple."""
    if hint in (int, float):
        return {hint}, False
    found = [numbers_in(inner) for inner in get_args(hint) if inner is not str]
    kinds = set().union(*(kinds for kinds, _ in found)) if found else set()
    return kinds, getattr(hint, "__origin__", None) is tuple or any(inside for _, inside in found)


NUMBERS = [
    (prefix, field.name, *numbers_in(get_type_hints(type(record))[field.name]))
    for prefix, record in RECORDS.items()
    for field in fields(record)
    if field.name != "options" and numbers_in(get_type_hints(type(record))[field.name])[0]
    and "dict" not in str(field.type)
]  # fmt: skip


def test_all_records_of_a_recipe_are_tried() -> None:
    hints = get_type_hints(Recipe)
    inner = {hint for hint in hints.values() if hasattr(hint, "__dataclass_fields__")} | {Lora}
    # of the goals, Labels has what Distil has, and Masked no number
    assert set(get_args(hints["goal"])) == {Labels, Distil, Masked}
    assert inner == {type(record) for record in RECORDS.values()} - {Recipe, Distil}
    assert len(NUMBERS) > 35


@pytest.mark.parametrize(
    ("prefix", "name", "kinds", "multi_label"), NUMBERS, ids=lambda value: str(value)
)
def test_a_number_out_of_range_is_refused_by_name(
    prefix: str, name: str, kinds: set[type], multi_label: bool
) -> None:
    for bad in (-1, *((math.nan, math.inf) if float in kinds else ())):
        value = (bad, bad) if multi_label else bad
        with pytest.raises(
            UserError, match=rf"^{prefix}{name} must be (above|at least|below|a finite)"
        ):
            replace(RECORDS[prefix], **{name: value})


@pytest.mark.parametrize(
    ("record", "values", "sentence"),
    [
        (Monitor, {"save_every_steps": 0}, "monitor.save_every_steps must be at least 1, got 0"),
        (Labels, {"smoothing": 1.5}, "goal.smoothing must be at least 0 and below 1, got 1.5"),
        (Distil, {"temperature": 0}, "goal.temperature must be above 0, got 0"),
        (Augmentation, {"crop": (0.5, 0.2)}, "augmentation.crop must be at least 0.5"),
        (Augmentation, {"magnitude": 30}, "augmentation.magnitude must be .* at most 10, got 30"),
        (Schedule, {"floor": 1.5}, "schedule.floor must be at least 0 and at most 1"),
        (Optimiser, {"betas": (0.9, 1.0)}, "optimiser.betas must be at least 0 and below 1"),
    ],
)
def test_ranges_have_two_ends(record: Any, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        record(**values)
