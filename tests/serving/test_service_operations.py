"""Operations over HTTP: looks into a model, search, and what an exported file cannot do."""

import gzip
import os
import signal
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.serving.running import Running, png, running
from vitrail.core.errors import UserError
from vitrail.core.packed import unpack
from vitrail.serving.launcher import Launcher
from vitrail.serving.operations import OPERATIONS


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(6):
        (folder / f"{seed}.png").write_bytes(png(seed))
    return folder


@pytest.fixture(scope="module")
def inside(
    launcher: Launcher, checkpoints: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A service with a directory of embeddings."""
    vectors = tmp_path_factory.mktemp("data") / "vectors"
    vitrail.embed(checkpoints / "pets", photos, out=vectors, engine="eager")
    models = [str(checkpoints / name) for name in ("pets", "other")]
    with running(launcher, *models, data=(str(vectors),)) as found:
        yield found


@pytest.mark.slow
def test_an_inspection_is_packed_and_compressed(inside: Running) -> None:
    plain = inside.form("/v1/inspect", [png(1)])
    assert plain.status == 200
    assert plain.headers["content-type"] == "application/octet-stream"
    assert "content-encoding" not in plain.headers
    found = unpack(plain.body)
    assert found.header["image_size"] == [32, 32]
    body = inside.ask(
        "POST", "/v1/inspect", png(1), {"content-type": "image/png", "accept-encoding": "gzip"}
    )
    assert body.headers["content-encoding"] == "gzip"
    assert gzip.decompress(body.body) == plain.body
    assert len(body.body) < len(plain.body)


def test_explanations_are_a_list_in_order(inside: Running) -> None:
    options = {"method": "rollout"}
    found = inside.form("/v1/explain", [png(1), b"no image", png(2)], **options).json()
    first, second, third = found["explanations"]
    assert first["grid"] == [4, 4]
    assert np.shape(first["map"]) == (4, 4)
    assert "error" in second
    assert third["map"] != first["map"]
    wrong = inside.form("/v1/explain", [png(1)], method="rolout")
    assert wrong.status == 422
    assert "rollout" in wrong.json()["error"]


@pytest.mark.parametrize("name", [one.name for one in OPERATIONS.values() if one.needs_image])
def test_operations_need_one_image(inside: Running, name: str) -> None:
    assert inside.form(f"/v1/{name}", []).status in (400, 422)
    if name != "explain":
        several = inside.form(f"/v1/{name}", [png(1), png(2)])
        assert (several.status, "got 2" in several.json()["error"]) == (422, True)
        assert inside.form(f"/v1/{name}", [b"no image"]).status == 422
    unknown = inside.form(f"/v1/{name}", [png(1)], nonsense=1)
    assert (unknown.status, "nonsense" in unknown.json()["error"]) == (422, True)


def test_operations_without_an_image_are_read_from_the_address(inside: Running) -> None:
    assert inside.get("/v1/model?model=pets").json()["parameters"] > 0
    samples = inside.get("/v1/samples").json()["samples"]
    assert samples
    data = inside.get("/v1/data?count=3").json()
    assert len(data["images"]) == 3
    image = inside.get("/v1/data/0/image?side=16")
    assert image.headers["content-type"].startswith("image/")
    assert max(Image.open(BytesIO(image.body)).size) <= 16
    assert inside.get("/v1/data/99/image").status == 422
    assert inside.get("/v1/data/x/image").status == 422
    assert inside.get("/v1/data?count=-1").status == 422


def test_search_is_that_of_the_library(inside: Running, photos: Path) -> None:
    found = inside.form("/v1/search", [png(4), b"no image"], k=3).json()["matches"]
    assert found[0][0]["name"] == "4.png"  # below the folder: no path of this machine
    assert found[0][0]["score"] == pytest.approx(1, abs=1e-4)
    assert len(found[0]) == 3
    assert "error" in found[1]
    assert inside.form("/v1/search", [png(4)], k=0).status == 422
    for other in (
        inside.form("/v1/search?model=other", [png(4)]),
        inside.get("/v1/data?model=other"),
    ):
        sentence = other.json()["error"]
        assert (other.status, "are of another model (digest " in sentence) == (422, True)
        assert str(photos.parent) not in sentence


@pytest.mark.slow
def test_a_process_that_looks_inside_is_replaced_when_it_dies(inside: Running) -> None:
    inside.form("/v1/explain", [png(1)])
    pool = inside.service.registry.models["pets"].pool
    assert pool is not None
    assert pool.inspection.child is not None
    before = pool.inspection.child.pid
    os.kill(before, signal.SIGKILL)
    assert inside.form("/v1/explain", [png(1)]).status == 200
    assert pool.inspection.child.pid != before


def test_data_that_cannot_be_opened_end_the_start(
    launcher: Launcher, checkpoints: Path, tmp_path: Path
) -> None:
    pets, data = str(checkpoints / "pets"), (str(tmp_path / "nothing"),)
    with pytest.raises(UserError, match="nothing"), running(launcher, pets, data=data):
        pass


@pytest.mark.slow
def test_an_exported_file_predicts_but_cannot_be_looked_into(
    launcher: Launcher, checkpoints: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="runs exported files")
    vitrail.export(checkpoints / "pets", tmp_path / "pets.onnx")
    with running(launcher, str(tmp_path / "pets.onnx")) as service:
        (model,) = service.get("/v1/models").json()["models"]
        assert not model["can_inspect"]
        (found,) = service.form("/v1/predict", [png(1)]).json()["predictions"]
        expected = vitrail.predict(checkpoints / "pets", Image.open(BytesIO(png(1))))
        assert found["label"] == expected.label
        assert found["score"] == pytest.approx(expected.score, abs=1e-5)
        for reply in (
            service.form("/v1/embed", [png(1)]),
            service.form("/v1/inspect", [png(1)]),
            service.form("/v1/search", [png(1)]),
            service.get("/v1/model"),
        ):
            assert (reply.status, "exported file" in reply.json()["error"]) == (422, True)
