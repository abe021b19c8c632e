"""Classes meet by name, in whatever order, or by order where that is said."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vitrail
from vitrail.core.errors import UserError
from vitrail.data.source import Raw
from vitrail.evaluation.matching import matched
from vitrail.models.model import Model

NAMES = ("the model", "the data")


class Few:
    uniform = True

    def __init__(self, labels: tuple[str, ...], targets: NDArray[Any] | None) -> None:
        self.labels, self.targets = labels, targets

    def __len__(self) -> int:
        return 3

    def read(self, index: int) -> Raw:
        return np.full((4, 4), index, dtype=np.uint8)

    def name(self, index: int) -> str:
        return f"image {index}"


def model_with(labels: tuple[str, ...] | None, classes: int = 3) -> Model:
    fields = {"dim": 8, "depth": 1, "heads": 1, "mlp_dim": 8, "image_size": 16}
    model = vitrail.create("vit_ti_16", num_classes=classes, **fields)
    model.passport = replace(model.passport, labels=labels)
    return model


def test_the_same_labels_need_no_word() -> None:
    source = Few(("a", "b", "c"), np.array([0, 1, 2]))
    assert matched(model_with(("a", "b", "c")), source, names=NAMES) == (source, None)


def test_some_labels_in_another_order_are_found_by_name() -> None:
    source = Few(("c", "a"), np.array([0, 1, 1]))
    found, note = matched(model_with(("a", "b", "c")), source, names=NAMES)
    assert found.labels == ("a", "b", "c")
    assert found.targets is not None
    assert found.targets.tolist() == [2, 0, 0]
    assert note == "classes matched by name: the data has 2 of the 3 of the model"
    assert (found.name(1), len(found), found.uniform) == ("image 1", 3, True)
    assert np.array_equal(found.read(2), source.read(2))

    rows = Few(("c", "a"), np.array([[1, 0], [1, 1], [0, 0]]))
    found, _ = matched(model_with(("a", "b", "c")), rows, names=NAMES)
    assert found.targets is not None
    assert found.targets.tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]


def test_without_names_the_order_is_assumed_and_told() -> None:
    source = Few(("n01", "n02", "n03"), np.array([0, 1, 2]))
    found, note = matched(model_with(None), source, names=NAMES)
    assert found.labels == source.labels
    assert found.targets is not None
    assert found.targets.tolist() == [0, 1, 2]
    assert note is not None
    assert "order is assumed" in note
    with pytest.raises(UserError, match="answers with 4 classes, but the data has 3"):
        matched(model_with(None, 4), source, names=NAMES)


def test_other_names_are_refused_unless_the_order_is_said_to_be_right() -> None:
    source = Few(("n01", "n02", "n03"), np.array([0, 1, 2]))
    model = model_with(("tench", "shark", "hen"))
    with pytest.raises(UserError, match="not the classes it was trained for: --by-order"):
        matched(model, source, names=NAMES)
    found, note = matched(model, source, names=NAMES, by_order=True)
    assert found.labels == ("tench", "shark", "hen")
    assert note is not None
    assert "first output is taken for n01" in note


def test_a_name_that_means_two_outputs_is_refused() -> None:
    source = Few(("crane", "hen"), np.array([0, 1, 1]))
    with pytest.raises(UserError, match=r"not the classes it was trained for$"):
        matched(model_with(("crane", "hen", "crane")), source, names=NAMES)


def test_what_cannot_be_judged_says_so() -> None:
    with pytest.raises(UserError, match="no labels to compare with"):
        matched(model_with(None), Few((), None), names=NAMES)
    with pytest.raises(UserError, match="has no head"):
        matched(model_with(None, 0), Few(("a",), np.zeros(3, int)), names=NAMES)
