"""Records are built from plain values as pydantic builds them, or left to pydantic."""

import copy
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from vitrail.core.errors import UserError
from vitrail.core.exported import ExportedGraph
from vitrail.core.json_text import plain_values
from vitrail.core.layout import TokenLayout
from vitrail.core.passport import Passport
from vitrail.core.plain_records import build_record
from vitrail.core.records import validate_by_pydantic
from vitrail.core.without_init import without_init

FAMILIES = ("vit_ti_16", "beit_b_16", "swin_t", "swinv2_t", "mobilevit_xxs", "coatnet_0")
JUNK: list[Any] = [
    None, True, 0, 1, -1, 2**60, 1.0, 0.5, float("nan"), "", "rgb", "3", "\ud800", [], [1], [1, 2],
    [1.0, 2], ["a"], (3, 4), {}, {"a": 1}, {1: 2}, {"stride": 16}, object(),
]  # fmt: skip


def examples() -> list[tuple[Any, dict[str, Any]]]:
    layout = TokenLayout(grid=(14, 14), stride=16, window=(7, 7))
    graph = ExportedGraph(target="onnx", outputs=("logits", "a"), attention={"a": layout})
    found: list[tuple[Any, dict[str, Any]]] = [(ExportedGraph, asdict(graph))]
    for name in FAMILIES:
        with without_init():  # only its passport and config are of interest
            model = vitrail.create(name, num_classes=3)
        found.append((Passport, asdict(model.passport)))
        found.append((type(model.config), asdict(model.config)))
    return found


EXAMPLES = examples()


def test_what_is_written_is_built_without_pydantic() -> None:
    for kind, values in EXAMPLES:
        built = build_record(kind, plain_values(values))
        if kind not in (Passport, ExportedGraph):  # configs name the purpose of their fields
            continue
        assert built is not None, kind
        assert repr(built) == repr(validate_by_pydantic(kind, values, where="here"))


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be changed in nested values."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list
    ) else ()  # fmt: skip
    return [above, *(place for name, one in inside for place in places(one, (*above, name)))]


@given(st.data())
def test_changed_values_are_built_alike_or_left(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(EXAMPLES))
    changed: Any = copy.deepcopy(plain_values(values))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places(changed)[1:]))
        holder = changed
        for step in place[:-1]:
            holder = holder[step]
        change = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "replace":
            holder[place[-1]] = data.draw(st.sampled_from(JUNK))
        elif change == "remove":
            del holder[place[-1]]
        elif isinstance(holder, dict):
            holder["unknown"] = data.draw(st.sampled_from(JUNK))
    compare(kind, changed)


def compare(kind: Any, values: Any) -> None:
    try:
        built = build_record(kind, values)
    except UserError:  # a rule of the record itself
        with pytest.raises(UserError):
            validate_by_pydantic(kind, values, where="here")
        return
    if built is not None:
        assert repr(built) == repr(validate_by_pydantic(kind, values, where="here"))


@dataclass(frozen=True)
class Odd:
    several: int | str | None = None
    marked: Annotated[int, "positive"] = 1
    word: Literal["a", 1] = "a"
    numbers: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    "values", [{"several": 1}, {"marked": 1}, {"word": True}, {"numbers": {1: 2}}, {"other": 1}]
)
def test_what_is_unusual_is_left_to_pydantic(values: dict[str, Any]) -> None:
    assert build_record(Odd, values) is None


def test_whole_numbers_become_floats_where_those_are_meant() -> None:
    built = build_record(Odd, {"word": 1, "numbers": {"a": 1, "b": 0.5}})
    assert repr(built.numbers) == "{'a': 1.0, 'b': 0.5}"
    assert built.word == 1
    assert build_record(int, 1) is None
