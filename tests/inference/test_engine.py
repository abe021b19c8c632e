"""What a picture gets does not depend on its company, on threads or on how it was read."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

from tests.inference.photos import small_model, write_photos
from tests.models.kinds import KINDS, SMALL
from vitrail import UserError
from vitrail.data.preprocess import prepare
from vitrail.data.reader import Named
from vitrail.data.threads import ahead
from vitrail.inference.engine import (
    AHEAD,
    Engine,
    Job,
    Output,
    OutputKind,
    compute_outputs,
    torch_threads,
)
from vitrail.models.catalogue import build

OUTPUTS: tuple[OutputKind, ...] = ("scores", "pooled", "tokens")


def bits(output: Output) -> bytes | str | None:
    return output.problem if output.values is None else output.values.tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("output", OUTPUTS)
def test_bits_do_not_depend_on_order_on_company_or_on_threads(
    output: OutputKind, tmp_path: Path
) -> None:
    names = write_photos(tmp_path, 21, broken=(4, 20))
    model, job = small_model(), Job(output=output)
    first = {one.name: bits(one) for one in compute_outputs(model, names, job)}
    assert list(first) == names
    assert len(set(first.values())) == 20  # the two broken ones are alike, no other
    mixed = [names[place] for place in np.random.default_rng(0).permutation(21)]
    with torch_threads(1):
        again = list(compute_outputs(model, mixed, job, threads=3))
    assert [one.name for one in again] == mixed
    assert {one.name: bits(one) for one in again} == first
    alone = {name: bits(one) for name in names[:3] for one in compute_outputs(model, [name], job)}
    assert alone == {name: first[name] for name in names[:3]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", OUTPUTS)
def test_values_are_those_of_the_model(kind: OutputKind, tmp_path: Path) -> None:
    names = write_photos(tmp_path, 3)
    model = small_model()
    job = Job(output=kind, exact=True, batch_size=2)
    computes: dict[OutputKind, Callable[[Tensor], Tensor]] = {
        "scores": model,
        "pooled": model.features,
        "tokens": model.encode,
    }
    compute = computes[kind]
    for name, output in zip(names, compute_outputs(model, names, job), strict=True):
        with Image.open(name) as photo, torch.inference_mode():
            expected = compute(prepare(photo.convert("RGB"), model.passport.preprocessing)[None])[0]
        expected = expected.softmax(0) if kind == "scores" else expected
        assert output.values is not None
        assert output.values == pytest.approx(expected.numpy(), abs=1e-5)


def test_several_labels_are_scored_one_by_one(tmp_path: Path) -> None:
    model = small_model()
    model.passport = replace(model.passport, multi_label=True)
    (output,) = compute_outputs(model, write_photos(tmp_path, 1), Job(output="scores"))
    assert output.values is not None
    assert output.values.sum() != pytest.approx(1, abs=1e-3)


def test_blue_comes_first_where_the_passport_says_so(tmp_path: Path) -> None:
    names = write_photos(tmp_path, 1)
    with Image.open(names[0]) as photo:
        pixels = np.asarray(photo.convert("RGB"))
    Image.fromarray(pixels).save(tmp_path / "rgb.png")
    Image.fromarray(np.ascontiguousarray(pixels[..., ::-1])).save(tmp_path / "bgr.png")
    model = small_model()
    job = Job(output="scores")
    (rgb,) = compute_outputs(model, [str(tmp_path / "rgb.png")], job)
    how = model.passport.preprocessing
    model.passport = replace(model.passport, preprocessing=replace(how, channel_order="bgr"))
    (bgr,) = compute_outputs(model, [str(tmp_path / "bgr.png")], job)
    assert bits(rgb) == bits(bgr)


def photos_of_a_camera(count: int) -> Iterator[bytes]:
    """Cuts of real photos at 2 megapixels, as a camera writes them."""
    draw = np.random.default_rng(0)
    for number in range(count):
        source = Image.fromarray(load_sample_image(("china.jpg", "flower.jpg")[number % 2]))
        left, top = (int(draw.integers(0, 250)), int(draw.integers(0, 150)))
        cut = (left, top, left + int(draw.integers(200, 390)), top + int(draw.integers(150, 277)))
        file = BytesIO()
        source.resize((1632, 1224), Image.Resampling.BICUBIC, box=cut).save(file, "JPEG")
        yield file.getvalue()


def test_the_fast_way_says_what_the_exact_one_says(tmp_path: Path) -> None:
    names = []
    for number, data in enumerate(photos_of_a_camera(30)):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(data)
        names.append(str(path))
    model = small_model()

    def ask(*, exact: bool) -> NDArray[np.float32]:
        found = compute_outputs(model, names, Job(output="scores", exact=exact))
        return np.stack([one.values for one in found if one.values is not None])

    fast, exact = ask(exact=False), ask(exact=True)
    assert len(set(exact.argmax(1))) > 1  # the model tells them apart
    assert (fast.argmax(1) == exact.argmax(1)).mean() >= 0.99
    assert 0 < np.abs(fast - exact).mean() < 0.01  # another way, and nearly the same


def test_a_stream_is_never_far_ahead_of_its_reader() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    stream = ahead(lambda number: -number, numbers(), threads=3, lead=AHEAD)
    assert [next(stream) for _ in range(5)] == [0, -1, -2, -3, -4]
    time.sleep(0.05)
    assert len(taken) <= 5 + 3 * AHEAD
    before = threading.active_count()
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() < before


def test_what_cannot_be_asked_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="has no head"):
        Engine(build(KINDS["no head"]), Job(output="scores"))
    with pytest.raises(UserError, match="batch_size must be at least 1, got 0"):
        Job(output="pooled", batch_size=0)


def test_what_a_thread_raises_reaches_the_reader() -> None:
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda number: 1 // number, [2, 1, 0, 3], threads=2, lead=AHEAD))


def test_a_model_of_many_bands_reads_arrays_and_refuses_photos() -> None:
    engine = Engine(build(replace(SMALL, channels=13)), Job(output="pooled"))
    bands = Named("bands", np.zeros((40, 30, 13), dtype=np.uint8))
    read, refused = engine([bands, Named("photo", Image.new("RGB", (40, 30)))])
    assert read.problem is None
    assert refused.problem == "a photo of 8 bits, the model reads 13 bands of 8 bits"
