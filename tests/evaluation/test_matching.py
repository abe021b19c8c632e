"""Classes of data and model are matched by name, in any order, or by index."""

import numpy as np
import pytest

from vitrail.core.errors import UserError
from vitrail.core.outputs import Outputs
from vitrail.evaluation.matching import LabelMatch, match_labels

ABC = ("a", "b", "c")


def match(
    known: tuple[str, ...] | None,
    labels: tuple[str, ...],
    outputs: int = 3,
    *,
    by_index: bool = False,
) -> LabelMatch:
    names = ("the model", "the data")
    return match_labels(known, labels, outputs=outputs, names=names, by_index=by_index)


def outputs_with(labels: tuple[str, ...], targets: list[list[int]]) -> Outputs:
    return Outputs(
        labels=labels,
        logits=np.zeros((len(targets), 3), dtype=np.float32),
        targets=np.array(targets, dtype=np.float32),
        indices=np.arange(len(targets)),
    )


def test_equal_names_need_no_note() -> None:
    assert match(ABC, ABC) == LabelMatch(ABC, (0, 1, 2), None)
    outputs = outputs_with(ABC, [[1, 0, 0]])
    assert match(ABC, ABC).relabel(outputs) is outputs


def test_some_labels_in_another_order_are_found_by_name() -> None:
    found = match(ABC, ("c", "a"))
    assert found.note == "classes matched by name: the data has 2 of the model's 3"
    moved = found.relabel(outputs_with(("c", "a"), [[1, 0], [0, 1], [1, 1], [0, 0]]))
    assert moved.labels == ABC
    assert moved.targets.tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_without_names_classes_are_matched_by_index() -> None:
    labels = ("n01", "n02", "n03")
    found = match(None, labels)
    assert (found.labels, found.columns) == (labels, (0, 1, 2))
    assert found.note == (
        "the model has no class names; matched by index: output 0 is n01, output 2 n03"
    )
    with pytest.raises(UserError, match="as many classes as the model has outputs, 4, got 3"):
        match(None, labels, 4)


def test_other_names_are_refused_unless_matched_by_index() -> None:
    labels, known = ("n01", "n02", "n03"), ("tench", "shark", "hen")
    with pytest.raises(
        UserError, match=r"none of the 3 classes of the data \(n01, n02, n03\) is .*by_index=True"
    ):
        match(known, labels)
    found = match(known, labels, by_index=True)
    assert found.labels == known
    assert found.note is not None
    assert found.note.startswith("class names differ; matched by index: output 0 is n01")
    moved = found.relabel(outputs_with(labels, [[0, 1, 0]]))
    assert (moved.labels, moved.targets.tolist()) == (known, [[0, 1, 0]])


def test_a_name_of_two_outputs_is_refused() -> None:
    with pytest.raises(UserError, match="two classes of the model have the same name"):
        match(("crane", "hen", "crane"), ("crane", "hen"))


def test_a_model_without_head_or_data_without_labels_is_refused() -> None:
    with pytest.raises(UserError, match="the data has no labels"):
        match(None, ())
    with pytest.raises(UserError, match="no classification head: use vitrail probe"):
        match(None, ("a",), 0)
