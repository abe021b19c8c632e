"""What counts as a difference between a file and its model."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.inference.photos import small_model
from vitrail import UserError
from vitrail.exporters import verify as module
from vitrail.exporters.target import Request, graph_inputs
from vitrail.exporters.targets import TARGETS
from vitrail.exporters.verify import (
    BATCH,
    TOLERANCES,
    ComparedOutput,
    compare_outputs,
    reference,
    verify_size,
)
from vitrail.inference.merging import merge_tokens


def compared(name: str, expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """The largest difference as a share of the largest value."""
    output = ComparedOutput()
    output.add(name, expected, found)
    return output.share


def test_attention_is_compared_with_its_own_size() -> None:
    even = np.full((1, 3, 197, 197), 1 / 197, np.float32)
    share = compared("map", even, 0 * even)
    assert share == pytest.approx(1)
    assert share > max(TOLERANCES.values())


def test_logits_near_zero_are_compared_with_one() -> None:
    expected = np.array([[1e-6, 0]], np.float32)
    assert compared("logits", expected, -expected) < 1e-5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_the_worst(bad: float) -> None:
    ones = np.ones((1, 4), np.float32)
    broken = np.where(np.arange(4) == 2, bad, ones).astype(np.float32)
    assert compared("logits", ones, ones) == 0
    assert compared("pooled", ones, broken) == math.inf


def photos(request: Request, count: int) -> torch.Tensor:
    shape = (count, 3, *request.model.config.image_size)
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def file_of(request: Request, sizes: list[int], worse: int = 0) -> Any:
    """A file that computes what the model computes, but something else for the first ones."""

    def run(images: NDArray[np.generic]) -> dict[str, NDArray[np.float32]]:
        with torch.inference_mode():
            found = request.model(torch.from_numpy(images)).numpy()
        first = sum(sizes)
        sizes.append(len(images))
        for place in range(len(images)):
            if first + place < worse:
                found[place] += 0.01 * np.abs(found).max()
        return {"logits": found}

    return run


def test_photos_are_compared_a_few_at_a_time_without_attention_that_nobody_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "attention_outputs", None)  # of many photos it takes gigabytes
    request, sizes = Request(model=small_model()), list[int]()
    pixels = photos(request, 2 * BATCH + 1)
    assert list(reference(request, pixels)) == ["logits"]
    found = compare_outputs(request, file_of(request, sizes), pixels, BATCH)
    assert sizes == [BATCH, BATCH, 1]
    assert found["logits"].largest < 1e-6
    assert found["logits"].values[0].shape == (2 * BATCH + 1, 5)


def test_the_inputs_of_a_graph_are_the_images() -> None:
    request = Request(model=small_model())
    assert graph_inputs(request, photos(request, 2)).dtype == np.float32


@pytest.mark.parametrize("merged", [False, True])
def test_a_few_photos_of_a_merged_model_may_differ(
    merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding decides between tokens that are equally similar; of another model none may."""
    model = merge_tokens(small_model(), 1) if merged else small_model()
    request = Request(model=model)
    monkeypatch.setattr(module, "read_photos", lambda request, given: photos(request, 8))

    def check(worse: int) -> float | None:
        run = file_of(request, [], worse)
        return verify_size(request, TARGETS["onnx"], run, [], timed=False).label_agreement

    if merged:
        assert check(1) == 1.0
    else:
        with pytest.raises(UserError, match="must equal the model's"):
            check(1)
    with pytest.raises(UserError, match="must equal the model's"):
        check(7)
