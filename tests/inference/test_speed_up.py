"""The number of merged tokens is chosen by measuring, and a wish out of reach is refused."""

import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.parity.test_every_family import make
from vitrail import UserError, create
from vitrail.inference.speed_up import (
    ROUNDS,
    choose_merging,
    smallest_reaching,
    time_ratio,
    tokens_ratio,
)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=60), st.data())
@settings(max_examples=100, deadline=None)
def test_the_smallest_r_that_is_enough_is_found(steps: list[float], data: st.DataObject) -> None:
    ratios = [1 + sum(steps[:place]) for place in range(len(steps) + 1)]
    most = len(steps)
    wanted = data.draw(st.floats(1.001, ratios[-1]))
    tried: list[int] = []

    def measure(r: int) -> float:
        tried.append(r)
        return ratios[r]

    first = data.draw(st.integers(0, most + 5))
    found = smallest_reaching(measure, wanted, most=most, guess=lambda ratio: first, seconds=60)
    assert found.ratio == ratios[found.r]
    assert found.ratio >= wanted > ratios[found.r - 1]
    assert len(tried) == len(set(tried))
    assert len(tried) <= 40


def test_without_time_the_first_that_is_enough_is_taken() -> None:
    found = smallest_reaching(lambda r: 1 + r / 10, 1.5, most=50, guess=lambda r: 20, seconds=0)
    assert found.r == 20


def test_a_guess_that_is_short_is_raised_by_as_much() -> None:
    """Merging as much as there is would be enough too, and cost far more accuracy."""
    found = smallest_reaching(
        lambda r: 1 + r / 20, 1.5, most=50, guess=lambda ratio: round(10 * (ratio - 1)), seconds=0
    )
    assert found.r == 10


def test_out_of_reach_the_fastest_is_known() -> None:
    """Two measurements tell, where the second guess is as much as there is."""
    tried: list[int] = []

    def measure(r: int) -> float:
        tried.append(r)
        return 1 + r / 100

    found = smallest_reaching(
        measure, 3, most=50, guess=lambda ratio: 10 if ratio == 3 else 90, seconds=60
    )
    assert (found.r, found.ratio) == (50, 1.5)
    assert tried == [10, 50]


def test_a_ratio_is_that_of_the_work() -> None:
    """Eight products against one, big enough for a clock."""
    matrix = torch.rand(256, 256)

    def work(times: int) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            for _ in range(times):
                x = x @ matrix
            return x

        return run

    assert time_ratio(work(32), work(4), torch.rand(256, 256)) > 2


def test_fewer_tokens_for_more_merges() -> None:
    model = create("vit_ti_16", num_classes=3)
    ratios = [tokens_ratio(model, r) for r in (0, 8, 16)]
    assert ratios[0] == 1 < ratios[1] < ratios[2]
    assert ratios[1] == pytest.approx(12 * 197 / sum(197 - 8 * i for i in range(1, 13)))


@pytest.mark.slow
def test_a_real_model_is_measured() -> None:
    """On a machine that others use, a modest wish; what is reported is what was measured."""
    model = create("vit_ti_16", image_size=256, patch_size=8, depth=3, num_classes=3).eval()
    found = choose_merging(model, 1.1, batch_size=1, seconds=2)
    assert 1 <= found.r <= 512
    assert found.ratio >= 1.1
    assert found.facts() == {
        "merged_tokens": found.r, "speed_up": round(found.ratio, 3), "measured_on": "eager"
    }  # fmt: skip


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match=r"1 or more, got 0\.5"):
        choose_merging(make("vit"), 0.5, batch_size=1)
    with pytest.raises(UserError, match="got Swin"):
        choose_merging(make("swin"), 1.5, batch_size=1)
    with pytest.raises(UserError, match=r"must be at most .* got 1000|does not speed"):
        choose_merging(make("vit"), 1000, batch_size=1, seconds=0.1)
    assert choose_merging(make("vit"), 1, batch_size=1).r == 0


def test_where_merging_is_no_faster_that_is_said() -> None:
    model = create("vit_ti_16", image_size=32, depth=1, num_classes=2).eval()

    def make_slower(r: int) -> Callable[[Tensor], object]:
        return lambda images: time.sleep(0.004 if r else 0.001)

    sentence = "merging tokens does not speed this model up at batch size 1"
    with pytest.raises(UserError, match=sentence):
        choose_merging(model, 9, batch_size=1, make=make_slower)


def test_an_accelerator_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of them computes after the call has returned, cuda or not."""
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)

    def run(images: Tensor) -> None:
        time.sleep(0.001)

    time_ratio(run, lambda images: run(images), torch.empty(1, device="meta"))
    assert {device.type for device in waited} == {"meta"}
    assert len(waited) == 2 * (ROUNDS + 1)
