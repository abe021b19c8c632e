"""Corrupted images are those that the model sees, and each is judged once per corruption."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitrail
from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.images import BadImage
from vitrail.data.loader import in_order
from vitrail.data.preprocess import prepare
from vitrail.data.source import Raw
from vitrail.evaluation.answers import answers_of
from vitrail.evaluation.classify import score
from vitrail.evaluation.corruptions import CORRUPTIONS, corrupt
from vitrail.evaluation.judged import Judged, judged_answers
from vitrail.evaluation.robustness import (
    NOTHING,
    VARIANTS,
    Robustness,
    Variants,
    robustness_of,
    shared_order,
)
from vitrail.models.model import Model

LABELS = ("dark", "middle", "bright")


class Shaded:
    """Noise around three shades, of odd sizes; those in `gone` are broken."""

    uniform = False

    def __init__(self, images: int = 13, *, multi_label: bool = False, gone: tuple[int, ...] = ()):
        self.labels, self.images, self.gone = LABELS, images, set(gone)
        self.targets: NDArray[Any] | None = np.arange(images) % 3
        if multi_label:
            self.targets = np.stack([(np.arange(images) + k) % 3 < 2 for k in range(3)], axis=1)

    def __len__(self) -> int:
        return self.images

    def name(self, index: int) -> str:
        return f"shade {index}"

    def read(self, index: int) -> Raw:
        if index in self.gone:
            raise BadImage(self.name(index), "is gone")
        random = np.random.default_rng(index)
        size = (*random.integers(20, 50, 2), 3)
        return (60 + 70 * (index % 3) + random.integers(-50, 50, size)).astype(np.uint8)


def make(**changes: Any) -> Model:
    torch.manual_seed(3)
    fields = {"dim": 12, "depth": 1, "heads": 2, "mlp_dim": 16, "image_size": 16, "patch_size": 8}
    model = vitrail.create("vit_ti_16", num_classes=3, **fields)
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    how = Preprocessing(size=(16, 16), resize=(20, 20), interpolation="bicubic", **changes)
    model.passport = replace(model.passport, preprocessing=how)
    return model


def judged_by(model: Model, source: Shaded) -> Judged:
    found = answers_of(model, source, name="shades", batch_size=4)
    return judged_answers(found, source, "test")


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_what_is_corrupted_is_what_the_model_sees(order: str) -> None:
    how = make(channel_order=order).passport.preprocessing
    source = Shaded()
    dataset = Variants(source, how, np.arange(13), 4, seed=0)
    clean = torch.cat([batch.images for batch in in_order(source, how, 4)])
    seen = torch.stack([prepare(dataset.seen(index), dataset.framed) for index in range(13)])
    assert torch.equal(seen, clean)


@pytest.mark.parametrize("multi_label", [False, True])
def test_each_number_is_that_of_its_corrupted_images(multi_label: bool) -> None:
    model, source = make(), Shaded(multi_label=multi_label, gone=(2, 7))
    judged = judged_by(model, source)
    assert judged.images == 11
    done: list[tuple[int, int]] = []
    found = robustness_of(
        model, judged, batch_size=4, seed=9, on_progress=lambda *told: done.append(told)
    )
    assert done[-1] == (225, 225)
    assert (found.images, found.side) == (11, 32)
    expected = score(judged.logits, judged.targets, multi_label=multi_label)
    assert (found.metric, found.clean) == (expected.key, expected.best)
    dataset = Variants(source, model.passport.preprocessing, judged.indices, 4, seed=9)
    for name, severity in (("shot noise", 5), ("fog", 2), ("jpeg compression", 1)):
        images = [
            prepare(corrupt(dataset.seen(i), name, severity, seed=9, index=i), dataset.framed)
            for i in judged.indices.tolist()
        ]
        with torch.inference_mode():
            logits = model(torch.stack(images)).numpy()
        first = int(judged.indices[0])
        example = corrupt(dataset.seen(first), name, 3, seed=9, index=first)
        assert np.array_equal(found.examples[list(CORRUPTIONS).index(name)], example)
        value = found.values[list(CORRUPTIONS).index(name), severity - 1]
        assert value == pytest.approx(score(logits, judged.targets, multi_label=multi_label).best)


def test_the_interval_draws_an_image_with_all_its_corruptions() -> None:
    model = make()
    judged = judged_by(model, Shaded(images=20))
    found = robustness_of(model, judged, batch_size=20)
    assert found.interval is not None
    low, high = found.interval
    assert low < found.mean < high
    # drawn each for itself, 75 times as many answers would seem to be known
    alone = 1.96 * (found.mean * (1 - found.mean) / (20 * 75)) ** 0.5
    assert high - low > 3 * 2 * alone
    assert robustness_of(model, judged, most=1).interval is None


def test_neither_workers_nor_batches_change_a_number() -> None:
    model = make()
    judged = judged_by(model, Shaded(images=7))
    one = robustness_of(model, judged, batch_size=3)
    two = robustness_of(model, judged, batch_size=5, workers=2)
    assert np.array_equal(one.values, two.values)
    assert one.interval == two.interval


def test_fewer_images_are_spread_over_all() -> None:
    model = make()
    judged = judged_by(model, Shaded())
    few = robustness_of(model, judged, most=4)
    assert few.images == 4
    rows = np.array([0, 4, 8, 12])
    assert few.clean == (judged.guess == judged.truth)[rows].mean()
    with pytest.raises(UserError, match="give at least 1"):
        robustness_of(model, judged, most=0)


def test_an_image_that_is_gone_meanwhile_is_told() -> None:
    model, source = make(), Shaded()
    judged = judged_by(model, source)
    source.gone.add(5)
    with pytest.raises(UserError, match="shade 5: could be read before, but now is gone"):
        robustness_of(model, judged)


def test_errors_are_relative_to_those_without_corruption() -> None:
    assert len(VARIANTS) == 75
    values, examples = np.full((15, 5), 0.6), np.zeros((15, 4, 4, 3), dtype=np.uint8)
    found = Robustness("accuracy", 0.8, values, 10, 32, examples)
    assert found.mean == pytest.approx(0.6)
    assert found.relative_error == pytest.approx(2)
    assert Robustness("accuracy", 1.0, values, 10, 32, examples).relative_error is None


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_every_batch_is_one_workers_and_so_decoded_once(workers: int) -> None:
    batches = 5
    order = shared_order(batches * len(VARIANTS), workers)
    assert sorted(set(order) - {NOTHING}) == list(range(batches * len(VARIANTS)))
    owners: dict[int, set[int]] = {}
    for place, number in enumerate(order):
        if number != NOTHING:
            owners.setdefault(number // len(VARIANTS), set()).add(place % max(workers, 1))
    assert all(len(known) == 1 for known in owners.values())
