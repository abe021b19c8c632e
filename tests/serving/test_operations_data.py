"""Data beside a model: a run, embeddings, a folder; mistakes, neighbours, a map, samples, facts."""

import base64
import io
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.models.kinds import SMALL, perturbed
from tests.parity.test_every_family import ATTENTIVE, FAMILIES
from tests.serving.small_models import MODELS, model_of, photo
from vitrail import capture
from vitrail.core.errors import UserError
from vitrail.data.sources.files import Files
from vitrail.explanation.distance import mean_distance
from vitrail.explanation.hooks import token_layouts
from vitrail.inference.nearest import find_nearest
from vitrail.inference.parts import normalise_rows
from vitrail.models.measure import count
from vitrail.models.model import Model
from vitrail.serving.operations import OPERATIONS, File, embedding_map
from vitrail.serving.operations import data_context as data_context_module
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.data_context import (
    DataContext,
    features_and_logits,
    open_data_context,
)
from vitrail.serving.operations.embedding_map import make_map, umap_points
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_file import write_recipe

LABELS = ("cat", "dog", "bird", "fish", "ant")


def ask(operation: str, context: Context, image: Image.Image | None = None, **options: Any) -> Any:
    one = OPERATIONS[operation]
    return one.run(context, image, one.read_options(options))


def labelled_model() -> Model:
    model: Model = perturbed(SMALL).eval()
    model.passport = replace(model.passport, labels=LABELS)
    return model


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of five images; one file that is no image."""
    root = tmp_path_factory.mktemp("data") / "photos"
    for number in range(10):
        folder = root / LABELS[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        photo(number, size=(60 + number, 40)).save(folder / f"{number}.png")
    (root / "cat" / "broken.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def context(photos: Path) -> Context:
    model = labelled_model()
    return Context(model, open_data_context(photos, model), name="pets & co")


def opened(path: Any, model: Model) -> DataContext:
    found = open_data_context(path, model)
    assert found is not None
    return found


def test_a_folder_is_listed_with_labels_predictions_and_mistakes(
    context: Context, photos: Path
) -> None:
    found = ask("data", context)
    assert (found["kind"], found["total"], found["computed"]) == ("images", 11, 10)
    assert found["unreadable"] == 1
    for one in found["images"]:
        image = Image.open(photos / one["label"] / one["name"])
        with torch.no_grad():
            scores = context.model(context.model.preprocess([image]))[0].softmax(dim=0)
        assert one["predicted"] == LABELS[int(scores.argmax())]
        assert one["score"] == pytest.approx(float(scores.max()), rel=1e-4)
        assert one["label"] in ("cat", "dog")
        assert (one["id"] in found["mistakes"]) == (one["label"] != one["predicted"])
        assert one["thumb"] == f"v1/data/{one['id']}/image?side=128&model=pets%20%26%20co"
    scores = [next(i["score"] for i in found["images"] if i["id"] == m) for m in found["mistakes"]]
    assert scores == sorted(scores, reverse=True)
    assert found["mistakes"]


def test_the_map_has_a_point_for_each_image_by_principal_components(context: Context) -> None:
    found = ask("data", context, map="pca")
    points = np.array(found["map"]["points"])
    assert found["map"]["method"] == "pca"
    assert points.shape == (len(found["images"]), 2)
    assert context.data is not None
    rows = np.stack([context.data.features[one["id"]] for one in found["images"]])
    centred = rows - rows.mean(axis=0)
    _, strengths, _ = np.linalg.svd(centred)
    np.testing.assert_allclose(np.linalg.norm(points, axis=0), strengths[:2], rtol=1e-4)
    assert sum(found["map"]["variance"]) <= 1


def test_umap_is_asked_for_where_it_is_not_installed(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_map, "has_umap", lambda: False)
    with pytest.raises(UserError, match="umap-learn"):
        ask("data", context, map="umap")
    found = ask("data", context)["map"]
    assert (found["method"], found["methods"], found["pending"]) == ("pca", ["pca"], None)


@pytest.mark.slow
def test_umap_places_images_beside_the_requests() -> None:
    """The first answer has principal components, a later one the points of the real UMAP: groups
    lie apart, and the same features lie at the same points."""
    pytest.importorskip("umap", reason="umap-learn is not installed")
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(60, 16)) + np.repeat(8 * np.eye(3, 16), 20, axis=0)
    data = DataContext("images", "groups", Files("", [""] * 60), model_of("labels"))
    data.features = dict(enumerate(normalise_rows(rows.astype(np.float32))))
    ids = list(range(60))
    began = time.monotonic()
    first = make_map(data, ids, "umap", wait=0)
    assert first is not None
    assert time.monotonic() - began < 5
    assert (first["method"], first["pending"], first["methods"]) == ("pca", "umap", ["pca", "umap"])
    found = make_map(data, ids, "umap", wait=500)
    assert found is not None
    assert (found["method"], found["pending"]) == ("umap", None)
    assert make_map(data, ids, "umap", wait=0) == found  # kept
    points = np.array(found["points"]).reshape(3, 20, 2)
    middles = points.mean(axis=1)
    spread = np.linalg.norm(points - middles[:, None], axis=2).max()
    gaps = [np.linalg.norm(middles[i] - middles[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(gaps) > 2 * spread
    again = umap_points(np.stack([data.features[i] for i in ids]).astype(np.float64))
    assert again == found["points"]
    few = make_map(data, ids[:10], "umap")
    assert few is not None
    assert (few["method"], few["methods"]) == ("pca", ["pca"])


def test_the_model_is_described_without_paths_and_with_its_labels() -> None:
    model = labelled_model()
    origin = replace(model.passport.origin, source="/srv/secret/B_16.npz")
    provenance = {"recipe": {"data": "/home/ann/photos", "epochs": 3}}
    labels = ("/m/0k4j", "/m/01g317", "a", "b", "c")
    model.passport = replace(model.passport, origin=origin, provenance=provenance, labels=labels)
    found = ask("model", Context(model, name="pets", source="/srv/secret/pets"))
    assert found["origin"] == found["passport"]["origin"]["source"] == "B_16.npz"
    assert found["passport"]["provenance"]["recipe"] == {"data": "photos", "epochs": 3}
    assert list(found["passport"]["labels"]) == list(labels)
    assert "secret" not in str(found)


def test_an_image_of_the_data_is_its_own_nearest(context: Context, photos: Path) -> None:
    assert context.data is not None
    for index in (0, 6):
        image = Image.open(context.data.source.name(index))
        matches = ask("neighbours", context, image, k=3)["matches"]
        assert matches[0]["id"] == index
        assert matches[0]["score"] == pytest.approx(1, abs=1e-5)
        assert len(matches) == 3
        assert matches[1]["score"] >= matches[2]["score"]


def test_a_patch_finds_itself_in_the_same_image(context: Context) -> None:
    assert context.data is not None
    image = Image.open(context.data.source.name(6))
    found = ask("neighbours", context, image, patch=[1, 4], k=4)
    assert found["grid"] == [4, 6]
    assert found["matches"][0] | {"score": 1} == {"id": 6, "score": 1, "patch": [1, 4]}
    assert found["matches"][0]["score"] == pytest.approx(1, abs=1e-2)
    with pytest.raises(UserError, match="patch must be from"):
        ask("neighbours", context, image, patch=[4, 0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", MODELS)
def test_features_and_logits_are_those_of_the_model(kind: str) -> None:
    model = model_of(kind)
    images = model.preprocess([photo(0), photo(1)])
    with torch.no_grad():
        features, logits = features_and_logits(model, images)
        torch.testing.assert_close(features, model.features(images), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logits, model(images))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*FAMILIES, "vit, distilled", "vit, no head", "one channel"])
def test_every_kind_of_model_has_neighbours_and_a_map(kind: str, photos: Path) -> None:
    model = model_of(kind)
    context = Context(model, open_data_context(photos, model))
    assert len(ask("data", context)["images"]) == 10
    image = Image.open(photos / "dog" / "1.png")
    assert ask("neighbours", context, image, k=1)["matches"][0]["score"] == pytest.approx(
        1, abs=1e-4
    )
    match = ask("neighbours", context, image, patch=[0, 0], k=1)["matches"][0]
    assert match["score"] == pytest.approx(1, abs=1e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ATTENTIVE)
def test_distances_are_means_over_the_images_of_the_data(kind: str, photos: Path) -> None:
    model = model_of(kind)
    data = opened(photos, model)
    found = ask("distances", Context(model, data))
    assert found["images"] == 10
    assert [one["name"] for one in found["layers"]] == list(token_layouts(model))
    files = [data.source.name(index) for index in data.distances]
    with capture(model) as maps, torch.no_grad():
        model(model.preprocess(files))
    for one in found["layers"]:
        expected = mean_distance(maps[one["name"]])
        np.testing.assert_allclose(one["distance"], expected.mean(dim=0), rtol=1e-4)
        assert (np.array(one["low"]) <= np.array(one["distance"]) + 1e-6).all()
    assert ask("distances", Context(model)) == {"images": 0, "layers": []}


def test_embeddings_are_searched_as_the_library_does(tmp_path: Path, photos: Path) -> None:
    model = labelled_model()
    vitrail.embed(model, photos, out=tmp_path / "vectors", engine="eager")
    data = opened(tmp_path / "vectors", model)
    context = Context(model, data)
    found = ask("data", context)
    assert (found["kind"], len(found["images"])) == ("vectors", 10)
    image = Image.open(photos / "cat" / "2.png")
    matches = ask("neighbours", context, image, k=4)["matches"]
    plain = find_nearest(tmp_path / "vectors", data.vector_of(model.preprocess([image])), k=4)
    assert [data.source.name(one["id"]) for one in matches] == [one.id for one in plain]
    np.testing.assert_allclose(
        [one["score"] for one in matches], [one.cosine for one in plain], rtol=1e-3
    )
    file = ask("data_image", context, id=matches[0]["id"])
    assert file.content == (photos / "cat" / "2.png").read_bytes()


def test_embedded_tokens_are_patches(tmp_path: Path, photos: Path) -> None:
    model = labelled_model()
    vitrail.embed(model, photos, out=tmp_path / "tokens", tokens=True, engine="eager")
    data = opened(tmp_path / "tokens", model)
    assert data.by_patches
    index = next(i for i in range(10) if data.source.name(i).endswith("4.png"))
    image = Image.open(photos / "cat" / "4.png")
    found = ask("neighbours", Context(model, data), image, patch=[2, 2], k=2)
    assert (found["matches"][0]["id"], found["matches"][0]["patch"]) == (index, [2, 2])
    whole = ask("neighbours", Context(model, data), image, k=1)
    assert whole["matches"][0]["id"] == index


def test_embeddings_of_another_model_are_passed_over(tmp_path: Path, photos: Path) -> None:
    model = labelled_model()
    vitrail.embed(model, photos, out=tmp_path / "vectors", engine="eager")
    other = model_of("vit, registers")
    assert open_data_context([tmp_path / "vectors"], other) is None
    fallback = open_data_context([tmp_path / "vectors", photos], other)
    assert fallback is not None
    assert fallback.kind == "images"


def test_a_run_shows_its_validation_images(tmp_path: Path, photos: Path) -> None:
    write_recipe(Recipe(data=str(photos), val_share=0.4), tmp_path)
    model = labelled_model()
    data = opened(tmp_path, model)
    assert data.kind == "run"
    assert len(data) == len(vitrail.open_data(photos, val_share=0.4)["val"])
    assert {data.label(i) for i in range(len(data))} == {"cat", "dog"}


def test_a_request_stops_when_its_time_is_up_and_the_next_goes_on(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_context_module, "BATCH", 2)
    data = opened(photos, labelled_model())
    data.compute(seconds=0)
    first = dict(data.features)
    assert 0 < len(first) < 10
    data.compute(seconds=60)
    assert len(data.features) == 10
    assert all(np.array_equal(data.features[index], row) for index, row in first.items())


def test_images_are_sent_by_number_alone(context: Context) -> None:
    whole = ask("data_image", context, id=6)
    assert isinstance(whole, File)
    assert whole.media_type == "image/png"
    small = Image.open(io.BytesIO(ask("data_image", context, id=6, side=16).content))
    assert max(small.size) == 16
    with pytest.raises(UserError, match="id must be from 0 to 10"):
        ask("data_image", context, id=11)
    with pytest.raises(UserError, match="id must be from 0 to 10"):
        ask("data_image", context, id=-1)
    with pytest.raises(UserError, match="data_image: id must be"):
        ask("data_image", context, id="../photos")
    assert context.data is not None
    broken = next(i for i in range(11) if context.data.source.name(i).endswith("broken.png"))
    with pytest.raises(UserError, match="cannot be read"):
        ask("data_image", context, id=broken)


def test_a_file_that_is_gone_is_one_sentence(tmp_path: Path, photos: Path) -> None:
    shutil.copytree(photos, tmp_path / "copy")
    model = labelled_model()
    context = Context(model, open_data_context(tmp_path / "copy", model))
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(UserError, match="cannot be read"):
        ask("data_image", context, id=0)
    assert ask("data", context)["images"] == []


def test_without_data_a_sentence_says_how_to_have_some() -> None:
    with pytest.raises(UserError, match="start it with --data PATH"):
        ask("data", Context(model_of("labels")))


@pytest.mark.parametrize("kind", ["labels", "one channel"])
def test_samples_can_be_opened_and_inspected(kind: str) -> None:
    context = Context(model_of(kind), name="a b")
    samples = ask("samples", context)["samples"]
    assert len(samples) == len({one["name"] for one in samples}) >= 2
    for number, one in enumerate(samples):
        assert one["url"] == f"v1/samples/{number}?model=a%20b"
        file = ask("sample", context, id=number)
        shown = Image.open(io.BytesIO(file.content))
        assert shown.mode == ("L" if kind == "one channel" else "RGB")
        assert ask("what_if", context, shown)["before"]
    with pytest.raises(UserError, match="id must be from 0"):
        ask("sample", context, id=99)


def test_samples_do_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(model_of("one channel"))
    before = ask("samples", context), ask("sample", context, id=0).content
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert (ask("samples", context), ask("sample", context, id=0).content) == before


def test_images_of_classes_that_the_model_does_not_have_are_no_mistakes(photos: Path) -> None:
    model = labelled_model()
    known = ask("data", Context(model, opened(photos, model)))
    assert known["foreign"] == 0
    model.passport = replace(model.passport, labels=("a", "b", "c", "d", "e"))
    found = ask("data", Context(model, opened(photos, model)))
    assert found["foreign"] == len(found["images"]) == 10
    assert found["mistakes"] == []


def test_no_cosine_exceeds_one(context: Context, photos: Path) -> None:
    """Rounding may make the cosine of an image with itself a little more."""
    for number in range(5):
        image = Image.open(photos / LABELS[number % 2] / f"{number}.png")
        for patch in (None, (0, 0)):
            scores = [m["score"] for m in ask("neighbours", context, image, patch=patch)["matches"]]
            assert 0.99 < max(scores) <= 1


def test_samples_begin_with_images_of_the_data(context: Context) -> None:
    samples = ask("samples", context)["samples"]
    assert {one["name"] for one in samples[:2]} == {"cat", "dog"}
    assert samples[-1]["name"] == "flower"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind", ["vit", "swin", "mobilevitv2", "vit, hybrid", "vit, no head", "one channel"]
)
def test_the_model_is_described(kind: str) -> None:
    model = model_of(kind)
    found = ask("model", Context(model, name="mine", source="runs/pets/best"))
    assert found["parameters"] == count(model)
    assert found["macs"] > 0
    assert found["config"]["num_classes"] == model.config.num_classes
    assert found["passport"]["preprocessing"]["size"] == list(model.config.image_size)
    assert found["commands"]["bench"] == ["vitrail bench runs/pets/best"]
    assert len(found["filters"]) >= 1
    for address in found["filters"]:
        picture = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
        assert min(picture.size) >= 48
    has_table = isinstance(getattr(model, "positions", None), torch.nn.Module)
    assert (found["positions"] is not None) == has_table
    if has_table:
        assert found["positions"]["grid"] == list(model.config.grid)
        address = found["positions"]["image"]
        picture = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
        opacity = set(np.asarray(picture.getchannel("A")).flatten().tolist())
        assert opacity == {0, 255}  # what lies between tiles has the colour of the page


def test_commands_tell_no_path_of_the_machine() -> None:
    context = Context(model_of("labels"), name="my pets", source="/srv/secret/model")
    found = ask("model", context)["commands"]
    assert found["bench"] == ["vitrail bench MODEL"]
    assert "secret" not in str(found)


def test_every_operation_has_its_function_and_needs_no_torch_to_check_options() -> None:
    for name, operation in OPERATIONS.items():
        assert operation.name == name
        assert callable(operation.function())
        assert operation.summary
    assert OPERATIONS["neighbours"].read_query({"k": "3", "patch": "[1, 2]"}).patch == (1, 2)
    with pytest.raises(UserError, match="k must be from 1 to 200"):
        OPERATIONS["neighbours"].read_options({"k": 0})
