"""A model behind an address in the place of a model: the verbs that take MODEL give what they give
for its checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.inference.photos import small_model, write_photos
from tests.serving.running import Running, running
from vitrail.cli.app import main
from vitrail.inference.parts import read_manifest
from vitrail.inference.remote_model import RemoteModel
from vitrail.serving.launcher import Launcher
from vitrail.tasks.models import open_model
from vitrail.tasks.predictions import PredictionFile
from vitrail.weights.digest import digest_of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of `insects`, and photos in folders of classes."""
    folder = tmp_path_factory.mktemp("remote")
    vitrail.save(small_model(), folder / "insects")
    for number, label in enumerate(("ant", "bee", "cat", "dog", "eel")):
        for place, part in enumerate(("train", "test")):  # equal photos would make neighbours tie
            photos = folder / "data" / part / label
            write_photos(photos, 4 + number % 2, seed=2 * number + place)
    write_photos(folder / "photos", 5, broken=(3,))
    return folder


@pytest.fixture(scope="module")
def remote(launcher: Launcher, place: Path, checkpoints: Path) -> Iterator[Running]:
    models = [f"insects={place / 'insects'}", f"pets={checkpoints / 'pets'}"]
    vectors = place / "vectors"
    vitrail.embed(str(place / "insects"), str(place / "photos"), out=vectors)
    with running(launcher, *models, data=(str(vectors),)) as found:
        yield found


@pytest.fixture
def local(place: Path) -> str:
    return str(place / "insects")


def test_predictions_are_those_of_the_checkpoint(
    remote: Running, local: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = str(place / "photos")
    wanted = vitrail.predict(local, photos)
    for found in (
        vitrail.Client(remote.address).predict(photos),
        vitrail.predict(f"{remote.address}/models/insects", photos),
        vitrail.predict(f"{remote.address}#insects", photos),
    ):
        assert [one.label for one in found] == [one.label for one in wanted]
        assert [one.problem for one in found] == [one.problem for one in wanted]
        scores = [[score for _, score in one.top] for one in found if one.label]
        known = [[score for _, score in one.top] for one in wanted if one.label]
        np.testing.assert_allclose(scores, known, atol=1e-5)
    assert main(["predict", remote.address, photos]) == 0
    shown = capsys.readouterr().out
    assert main(["predict", local, photos]) == 0
    assert capsys.readouterr().out == shown


def test_predictions_go_to_a_file_and_stop_where_the_weights_are_others(
    remote: Running, place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "labels.csv"
    done = vitrail.predict(remote.address, str(place / "photos"), out=out)
    assert isinstance(done, PredictionFile)
    assert done.images == 5
    assert len(out.read_text(encoding="utf-8").splitlines()) == 6
    one, other = (open_model(f"{remote.address}#{name}") for name in ("insects", "pets"))
    assert isinstance(one, RemoteModel)
    assert isinstance(other, RemoteModel)
    assert not one.digest.equal(other.digest)


def test_an_evaluation_and_a_probe_are_those_of_the_checkpoint(
    remote: Running, local: str, place: Path
) -> None:
    data = str(place / "data")
    wanted, found = (vitrail.evaluate(one, data) for one in (local, remote.address))
    assert found.metrics == pytest.approx(wanted.metrics, abs=1e-5)
    probes = [
        vitrail.probe(one, data, method="knn", neighbours=[3], cache=None)
        for one in (local, remote.address)
    ]
    assert probes[0].results == probes[1].results
    with pytest.raises(vitrail.UserError, match="a service gives no blocks"):
        vitrail.probe(remote.address, data, method="linear", cache=None)


def test_embeddings_are_those_of_the_checkpoint_and_are_found_again(
    remote: Running, local: str, place: Path, tmp_path: Path
) -> None:
    index = vitrail.embed(remote.address, str(place / "photos"), out=tmp_path / "vectors")
    assert (index.embedded, len(index.broken)) == (4, 1)
    image = str(place / "photos" / "00002.jpg")
    wanted = vitrail.search(place / "vectors", image, k=3, checkpoint=local)
    names = [one.id for one in wanted]
    below = [Path(name).name for name in names]  # a service does not tell where they are
    for found, ids in (
        (vitrail.search(tmp_path / "vectors", image, k=3), names),
        (vitrail.search(tmp_path / "vectors", image, k=3, checkpoint=local), names),
        (vitrail.search(remote.address, image, k=3), below),
    ):
        assert [one.id for one in found] == ids
        cosines = [one.cosine for one in found]
        assert cosines == pytest.approx([one.cosine for one in wanted], abs=1e-4)


@pytest.mark.slow
def test_what_was_embedded_through_an_address_is_searched_by_the_service(
    remote: Running, launcher: Launcher, local: str, place: Path, tmp_path: Path
) -> None:
    """The digest is that of the model that computed, whether here or there."""
    vitrail.embed(remote.address, str(place / "photos"), out=tmp_path / "there")
    vitrail.embed(local, str(place / "photos"), out=tmp_path / "here", engine="eager")
    digests = {read_manifest(tmp_path / name).digest for name in ("here", "there")}
    assert digests == {digest_of(vitrail.load(local))}
    vitrail.embed(f"{remote.address}#insects", str(place / "photos"), out=tmp_path / "here")
    with running(launcher, f"insects={local}", data=(str(tmp_path / "there"),)) as service:
        found = vitrail.search(service.address, str(place / "photos" / "00002.jpg"), k=1)
        assert found[0].id == "00002.jpg"
        assert found[0].cosine == pytest.approx(1, abs=1e-4)
        assert service.get("/v1/data").json()["kind"] == "vectors"


def test_tensors_are_computed_as_by_the_checkpoint(remote: Running, local: str) -> None:
    model = vitrail.load(local)
    pixels = np.random.default_rng(0).normal(size=(40, 3, 32, 48)).astype(np.float32)
    import torch

    images = torch.from_numpy(pixels)
    behind = open_model(remote.address)
    with torch.inference_mode():
        np.testing.assert_allclose(behind(images), model.eval()(images), atol=1e-4)
        np.testing.assert_allclose(behind.features(images), model.features(images), atol=1e-4)
    with pytest.raises(vitrail.UserError, match="this model reads"):
        behind(images[:, :, :16])


def test_explanations_are_those_of_the_checkpoint(
    remote: Running, local: str, place: Path, tmp_path: Path
) -> None:
    image = str(place / "photos" / "00000.jpg")
    each: list[dict[str, Any]] = [{}, {"method": "rollout"}, {"method": "gradcam", "target": "dog"}]
    for options in each:
        [wanted] = vitrail.explain(local, image, verdict=False, **options)
        [found] = vitrail.explain(remote.address, image, verdict=False, **options)
        assert found.method == wanted.method
        assert (found.label, found.target) == (wanted.label, wanted.target)
        np.testing.assert_allclose(found.map, wanted.map, atol=1e-4)
    both = vitrail.explain(remote.address, str(place / "photos"), out=tmp_path / "out")
    assert len(list(both)) == 4
    assert (tmp_path / "out" / "report.html").is_file()
    with pytest.raises(vitrail.UserError, match="discard is not an option of a service"):
        vitrail.explain(remote.address, image, method="rollout", discard=0.5)


def test_info_of_an_address_is_that_of_the_checkpoint(remote: Running, local: str) -> None:
    found, known = vitrail.info(remote.address), vitrail.info(local)
    assert (found.params, found.macs) == (known.params, known.macs)
    with pytest.raises(vitrail.UserError, match="dialect must not be given"):
        vitrail.info(remote.address, dialect="timm")


def test_mistakes_are_one_sentence(remote: Running, place: Path, tmp_path: Path) -> None:
    photos = str(place / "photos")
    cases: list[tuple[str, dict[str, Any], str]] = [
        (f"{remote.address}#none", {}, "none"),
        (remote.address, {"engine": "openvino"}, "a service computes with an engine of its own"),
        (remote.address, {"precision": "float64"}, "leave device and precision out"),
        (remote.address, {"precision": "int8"}, "give the checkpoint"),
        (remote.address, {"speed_up": 1.5}, "give the checkpoint"),
        (remote.address, {"engine": "ray", "out": tmp_path / "x.csv"}, "another engine than ray"),
    ]
    for address, options, sentence in cases:
        with pytest.raises(vitrail.UserError, match=sentence) as error:
            vitrail.predict(address, photos, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(vitrail.UserError, match="another engine than ray"):
        vitrail.embed(remote.address, photos, out=tmp_path / "vectors", engine="ray")
    assert not list(tmp_path.glob("x*"))
