"""Corrupted images are those that the model sees, and each counts once per corruption."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitrail
from vitrail.core.errors import UserError
from vitrail.core.outputs import Outputs
from vitrail.core.passport import Preprocessing
from vitrail.data.images import BadImage
from vitrail.data.loader import iterate_batches
from vitrail.data.preprocess import prepare
from vitrail.data.source import Raw
from vitrail.evaluation.classify import score
from vitrail.evaluation.corruptions import CORRUPTIONS, corrupt
from vitrail.evaluation.matching import LabelMatch
from vitrail.evaluation.robustness import VARIANTS, Robustness
from vitrail.inference.variants import IDLE, Variants, order_for_workers
from vitrail.models.model import Model
from vitrail.tasks.evaluate import Run, apply_corruption
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.splits import Split

LABELS = ("dark", "middle", "bright")


class Shaded:
    """Noise around three shades, of odd sizes; those in `gone` are broken."""

    uniform = False

    def __init__(
        self, images: int = 13, *, multi_label: bool = False, gone: tuple[int, ...] = ()
    ) -> None:
        self.images, self.gone = images, set(gone)
        self.labels: tuple[str, ...] = LABELS
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


def outputs_of(model: Model, source: Shaded) -> Outputs:
    run = Run(model, "model", "shades", 4, 0, 0, silent)
    return run.outputs(Split("test", source, LabelMatch(LABELS, (0, 1, 2))))


def robustness_of(
    model: Model,
    clean: Outputs,
    source: Shaded,
    *,
    batch_size: int = 64,
    workers: int = 0,
    seed: int = 0,
    most: int | None = None,
    on_progress: OnProgress = silent,
) -> Robustness:
    run = Run(model, "model", "shades", batch_size, workers, seed, on_progress)
    return run.corrupted(clean, source, most)


def variants_of(model: Model, source: Shaded, indices: NDArray[np.int64]) -> Variants[Any]:
    how, apply = model.passport.preprocessing, partial(apply_corruption, 9)
    return Variants(source, how, indices, VARIANTS, apply, 4)


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_what_is_corrupted_is_what_the_model_sees(order: str) -> None:
    model, source = make(channel_order=order), Shaded()
    dataset = variants_of(model, source, np.arange(13))
    how = model.passport.preprocessing
    expected = torch.cat([batch.images for batch in iterate_batches(source, how, 4)])
    seen = torch.stack([prepare(dataset.pixels(index), dataset.normalise) for index in range(13)])
    assert torch.equal(seen, expected)


@pytest.mark.slow
@pytest.mark.parametrize("multi_label", [False, True])
def test_each_score_is_that_of_its_corrupted_images(multi_label: bool) -> None:
    model, source = make(), Shaded(multi_label=multi_label, gone=(2, 7))
    clean = outputs_of(model, source)
    assert clean.images == 11
    done: list[tuple[str, int, int | None]] = []
    found = robustness_of(
        model, clean, source, batch_size=4, seed=9, on_progress=lambda *step: done.append(step)
    )
    assert done[-1] == ("corruptions", 225, 225)
    assert (found.images, found.side) == (11, 32)
    expected = score(clean.logits, clean.targets, multi_label=multi_label)
    assert (found.metric, found.clean) == (expected.key, expected.best)
    dataset = variants_of(model, source, clean.indices)
    for name, severity in (("shot noise", 5), ("fog", 2), ("jpeg compression", 1)):
        images = [
            prepare(corrupt(dataset.pixels(i), name, severity, seed=9, index=i), dataset.normalise)
            for i in clean.indices.tolist()
        ]
        with torch.inference_mode():
            logits = model(torch.stack(images)).numpy()
        first = int(clean.indices[0])
        example = corrupt(dataset.pixels(first), name, 3, seed=9, index=first)
        assert np.array_equal(found.examples[list(CORRUPTIONS).index(name)], example)
        value = found.values[list(CORRUPTIONS).index(name), severity - 1]
        assert value == pytest.approx(score(logits, clean.targets, multi_label=multi_label).best)


@pytest.mark.slow
def test_the_interval_draws_an_image_with_all_its_corruptions() -> None:
    model = make()
    source = Shaded(images=20)
    clean = outputs_of(model, source)
    found = robustness_of(model, clean, source, batch_size=20)
    assert found.interval is not None
    low, high = found.interval
    assert low < found.mean < high
    # drawn each for itself, 75 times as many answers would seem to be known
    alone = 1.96 * (found.mean * (1 - found.mean) / (20 * 75)) ** 0.5
    assert high - low > 3 * 2 * alone
    assert robustness_of(model, clean, source, most=1).interval is None


@pytest.mark.slow
def test_neither_workers_nor_batches_change_a_number() -> None:
    model = make()
    source = Shaded(images=7)
    clean = outputs_of(model, source)
    one = robustness_of(model, clean, source, batch_size=3)
    two = robustness_of(model, clean, source, batch_size=5, workers=2)
    assert np.array_equal(one.values, two.values)
    assert one.interval == two.interval


def test_fewer_images_are_spread_over_all() -> None:
    model, source = make(), Shaded()
    clean = outputs_of(model, source)
    few = robustness_of(model, clean, source, most=4)
    assert few.images == 4
    rows = np.array([0, 4, 8, 12])
    assert few.clean == (clean.predicted == clean.truth)[rows].mean()


def test_an_image_that_is_gone_meanwhile_is_told() -> None:
    model, source = make(), Shaded()
    clean = outputs_of(model, source)
    source.gone.add(5)
    with pytest.raises(UserError, match="shade 5: could be read before, but now is gone"):
        robustness_of(model, clean, source)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_every_batch_is_one_workers_and_so_decoded_once(workers: int) -> None:
    batches = 5
    order = order_for_workers(batches * len(VARIANTS), len(VARIANTS), workers)
    assert sorted(set(order) - {IDLE}) == list(range(batches * len(VARIANTS)))
    owners: dict[int, set[int]] = {}
    for place, number in enumerate(order):
        if number != IDLE:
            owners.setdefault(number // len(VARIANTS), set()).add(place % max(workers, 1))
    assert all(len(known) == 1 for known in owners.values())
