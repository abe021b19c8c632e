"""ONNX Runtime, OpenVINO and Inductor compute what PyTorch does, from several threads too."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.inference.photos import small_model, write_photos
from tests.inference.test_graph import SHALLOW
from tests.models.kinds import KINDS, SMALL
from vitrail import UserError
from vitrail.inference.engine import Job, OutputKind, plan_of
from vitrail.inference.engines.agreement import compare, sample_images
from vitrail.inference.engines.auto import open_runner
from vitrail.inference.engines.catalogue import LIBRARIES
from vitrail.models.catalogue import build, change
from vitrail.models.model import Model

# torch's own, when it copies a graph
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

QUICK = [name for name in ("onnxruntime", "openvino") if LIBRARIES[name].is_installed()]
OUTPUTS = ["scores", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pooled", "tokens"))]
EVERY = [*QUICK, pytest.param("compiled", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all tests of this file: what one builds the next opens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def check_engine(model: Model, job: Job, engine: str) -> None:
    plan = plan_of(model, job, callers=2)
    eager, opened = (open_runner(model, plan, name) for name in ("eager", engine))
    assert opened.engine == engine
    batches = [sample_images(plan) * (1 + number) for number in range(4)]
    expected = [eager.run(batch) for batch in batches]
    alone = [opened.run(batch) for batch in batches]
    for one, other in zip(expected, alone, strict=True):
        assert compare(one, other).difference < 1e-5
        assert one.std() > 0
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(opened.run, batches * 2))
    for one, other in zip(alone * 2, together, strict=True):
        np.testing.assert_array_equal(one, other)  # to the bit, whoever else computes


def lively(model: Model) -> Model:
    """A fresh head is zero."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize(
    "output",
    ["scores", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pooled", "tokens"))],
)
def test_an_engine_computes_every_output(output: OutputKind, engine: str) -> None:
    check_engine(small_model(), Job(output=output, batch_size=3), engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*QUICK, "compiled"])
@pytest.mark.parametrize("family", SHALLOW)
def test_an_engine_computes_every_family(family: str, engine: str) -> None:
    check_engine(lively(build(SHALLOW[family])), Job(output="scores", batch_size=2), engine)


@pytest.mark.parametrize(
    "engine",
    [
        name if name == "onnxruntime" else pytest.param(name, marks=pytest.mark.slow)
        for name in [*QUICK, "compiled"]
    ],
)
def test_predictions_are_those_of_eager(engine: str, tmp_path: Path) -> None:
    names = write_photos(tmp_path, 7, broken=(4,))
    model = small_model()
    eager = vitrail.predict(model, names, engine="eager", batch_size=3)
    for threads in (1, 2):
        found = vitrail.predict(model, names, engine=engine, batch_size=3, threads=threads)
        assert [one.label for one in found] == [one.label for one in eager]
        for one, other in zip(found, eager, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
        assert found[4].problem == eager[4].problem
    several = small_model()
    several.passport = replace(several.passport, multi_label=True)
    scores = vitrail.predict(several, names[0], engine=engine, batch_size=3, top=5).top
    assert sum(score for _, score in scores) != pytest.approx(1, abs=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not QUICK, reason="no engine is installed: pip install 'vitrail[fast]'")
def test_gray_images_and_models_without_a_head(tmp_path: Path) -> None:
    gray = lively(build(change(replace(SMALL, channels=1), {"depth": 1})))
    photo = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    eager, found = (
        vitrail.predict(gray, [photo] * 3, engine=engine, exact=False)
        for engine in ("eager", QUICK[0])
    )
    assert [one.label for one in found] == [one.label for one in eager]
    bare = lively(build(KINDS["no head"]))
    names = write_photos(tmp_path / "photos", 2)
    index = vitrail.embed(bare, names, out=tmp_path / "vectors", engine=QUICK[0])
    assert index.embedded == 2
    with pytest.raises(UserError, match="has no head"):
        vitrail.predict(bare, names, engine=QUICK[0])
