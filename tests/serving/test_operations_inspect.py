"""Inspection: decoded attention is that of the model, cell by cell, for every kind of model."""

import gzip
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import vitrail
from tests.models.kinds import SMALL, perturbed
from tests.parity.test_every_family import CNNS
from tests.serving.small_models import ATTENTIVE, LABELS, image_tensor, model_of, photo
from vitrail import capture
from vitrail.core.packed import Packed, compress, unpack
from vitrail.core.records import validate
from vitrail.explanation.attention_levels import decode_rows
from vitrail.explanation.capture import WITHOUT_ATTENTION
from vitrail.explanation.distance import mean_distance
from vitrail.explanation.propagation import global_attention
from vitrail.explanation.rollout import rollout
from vitrail.models.model import Model
from vitrail.serving.operations import OPERATIONS
from vitrail.serving.operations.context import Context
from vitrail.tasks import inspection

every_model = pytest.mark.parametrize("kind", ATTENTIVE)


def inspect(model: Model, seed: int = 0) -> Packed:
    operation = OPERATIONS["inspect"]
    found = operation.run(Context(model, name="m"), photo(seed), operation.read_options({}))
    assert isinstance(found, Packed)
    return unpack(gzip.decompress(compress(found.to_bytes())))


@cache
def inspected(kind: str) -> Packed:
    return inspect(model_of(kind))


def decoded(found: Packed, layer: int) -> np.ndarray:
    """As the page does it: a row over all tokens for each token that asks."""
    facts, groups = found.header["attention_layers"][layer], found.arrays[f"groups.{layer}"]
    rows = decode_rows(
        found.arrays[f"weights.{layer}"],
        found.arrays[f"rowmax.{layer}"],
        facts["levels"],
        found.arrays.get(f"places.{layer}"),
    )
    tokens = facts["prefix"] + facts["grid"][0] * facts["grid"][1]
    matrix = np.zeros((facts["heads"], tokens, tokens))
    for group, members in enumerate(groups):
        for place, token in enumerate(members):
            if token >= 0:
                own = rows[group, :, 0 if facts["separable"] else place]
                matrix[:, token, members[members >= 0]] = own[:, members >= 0]
    return matrix


def largest_of_rows(found: Packed, layer: int) -> np.ndarray:
    """The largest weight that each token gives, head by head."""
    facts, groups = found.header["attention_layers"][layer], found.arrays[f"groups.{layer}"]
    largest = found.arrays[f"rowmax.{layer}"]
    tokens = facts["prefix"] + facts["grid"][0] * facts["grid"][1]
    every = np.zeros((facts["heads"], tokens + 1))
    for group, members in enumerate(groups):
        every[:, members] = largest[group]
    return every[:, :-1]


@pytest.mark.sampled(2)
@every_model
def test_decoded_weights_are_those_of_the_model(kind: str) -> None:
    model = model_of(kind)
    found = inspected(kind)
    with capture(model) as maps, torch.no_grad():
        model(image_tensor(model))
    layers = found.header["attention_layers"]
    assert [layer["name"] for layer in layers] == list(maps)
    for i, one in enumerate(maps.values()):
        layer, matrix, prefix = layers[i], decoded(found, i), one.layout.prefix
        assert (layer["grid"], layer["prefix"]) == (list(one.layout.grid), prefix)
        assert layer["heads"] == one.weights.shape[-3]
        assert len(layer["prefix_names"]) == prefix
        np.testing.assert_allclose(layer["distance"], mean_distance(one)[0], rtol=1e-5)
        expected = global_attention(one)[0].numpy()
        limits = largest_of_rows(found, i)[..., None] * layer["tolerance"] + 1e-7
        assert (abs(matrix - expected) <= limits).all()
        assert ((matrix > 0) <= (expected > 0)).all()
        row = one.layout.grid[0] - 1
        token = prefix + row * one.layout.grid[1]
        on_grid = one.on_grid((row, 0))[0].numpy()
        got = matrix[:, token, prefix:].reshape(on_grid.shape)
        assert (abs(got - on_grid) <= limits[:, token, :, None]).all()


@every_model
def test_prediction_and_lens_are_those_of_the_model(kind: str) -> None:
    model, found = model_of(kind), inspected(kind).header
    if not model.config.num_classes:
        assert found["prediction"] is None
        assert found["lens"] is None
        assert "no head" in found["note"]
        assert found["methods"] == ["attention", "rollout"]
        return
    with torch.no_grad():
        logits = model(image_tensor(model))[0]
    scores = logits.sigmoid() if model.passport.multi_label else logits.softmax(dim=0)
    best = found["prediction"][0]
    assert best["index"] == int(scores.argmax())
    assert best["score"] == pytest.approx(float(scores.max()), rel=1e-5)
    assert (
        best["label"] == (model.passport.labels or [f"class {i}" for i in range(9)])[best["index"]]
    )
    ranked = [one["score"] for one in found["prediction"]]
    np.testing.assert_allclose(ranked, sorted(scores.tolist(), reverse=True), rtol=1e-5)
    lens = found["lens"]
    assert lens["exact_last"]
    assert len(lens["scores"]) == len(lens["blocks"]) >= 1
    for one, score in zip(lens["classes"], lens["scores"][-1], strict=True):
        assert score == pytest.approx(float(scores[one["index"]]), rel=1e-4)


@every_model
def test_pixels_and_rollout_belong_to_the_image(kind: str) -> None:
    model, found = model_of(kind), inspected(kind)
    assert found.arrays["pixels"].shape == (*model.config.image_size, 3)
    assert found.header["image_size"] == list(model.config.image_size)
    how = model.passport.preprocessing
    seen = image_tensor(model)[0] * torch.tensor(how.std).view(-1, 1, 1)
    seen = seen + torch.tensor(how.mean).view(-1, 1, 1)
    expected = (255 * seen).expand(3, -1, -1).movedim(0, -1).numpy()
    assert abs(found.arrays["pixels"] - expected).max() < 1e-2
    plain = rollout(model, image_tensor(model)).map[0]
    np.testing.assert_allclose(found.arrays["rollout"], plain, rtol=1e-4, atol=1e-7)


def test_labels_of_any_script_travel() -> None:
    prediction = inspected("several labels").header["prediction"]
    assert {one["label"] for one in prediction} == set(LABELS)
    assert sum(one["score"] for one in prediction) > 1.01


def test_windows_shifts_and_folds_are_described() -> None:
    swin = inspected("swin").header["attention_layers"]
    assert [one["short"] for one in swin[:3]] == [
        "stage 1 block 1", "stage 1 block 2", "stage 2 block 1",
    ]  # fmt: skip
    assert swin[1]["window"] == [4, 4]
    assert swin[1]["shift"] == [2, 2]
    assert inspected("mobilevit").header["attention_layers"][0]["fold"] == [2, 2]
    assert inspected("mobilevitv2").header["attention_layers"][0]["separable"]
    names = inspected("vit, distilled").header["attention_layers"][0]["prefix_names"]
    assert names == ["class token", "distillation token"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("vit", 900),
        ("vit, registers", 900),
        ("swin", 9000),
        ("mobilevit", 900),
        ("mobilevitv2", 99),
    ],
)
def test_weights_that_are_too_many_are_pooled(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(kind)
    full = inspected(kind)
    monkeypatch.setattr(inspection, "MAX_WEIGHTS", most)
    found = inspect(model)
    assert (
        sum(found.arrays[f"weights.{i}"].size for i in range(len(full.header["attention_layers"])))
        <= most
    )
    pooled = [one["pooled"] is not None for one in found.header["attention_layers"]]
    assert any(pooled)
    for i, one in enumerate(found.header["attention_layers"]):
        few, all_of_them = decoded(found, i), decoded(full, i)
        # the same attention in total, whoever is asked
        np.testing.assert_allclose(few.sum(-1).mean(), all_of_them.sum(-1).mean(), rtol=0.1)
        if one["pooled"] is not None:
            rows, columns = one["pooled"][:2]
            size = rows * columns + one["prefix"]
            assert found.arrays[f"weights.{i}"].shape[-1] == size
            assert found.arrays[f"places.{i}"].max() == size - 1


def test_an_answer_that_would_be_too_large_gets_fewer_levels_then_pooled_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = perturbed(replace(SMALL, image_size=(96, 96), patch_size=8)).eval()
    found = {}
    for most in (400_000, 160_000, 60_000):
        monkeypatch.setattr(inspection, "MAX_BYTES", most)
        one = inspect(model)
        assert len(compress(one.to_bytes())) <= most
        layer = one.header["attention_layers"][0]
        found[most] = layer["levels"], layer["pooled"]
    assert found[400_000] == (255, None)
    assert found[160_000][0] < 255
    assert found[160_000][1] is None
    assert found[60_000][1] is not None


@pytest.mark.slow
def test_all_maps_of_a_base_model_are_below_three_megabytes() -> None:
    torch.manual_seed(0)
    model = vitrail.create("vit_b_16").eval()
    for block in model.get_submodule("blocks").children():  # attention as a trained model has it
        with torch.no_grad():
            block.get_parameter("attention.qkv.weight").mul_(1.7)
    found = OPERATIONS["inspect"].run(
        Context(model),
        photo(size=(640, 480)),
        validate(OPERATIONS["inspect"].options, {}, where=""),
    )
    assert isinstance(found, Packed)
    assert len(compress(found.to_bytes())) < 3_000_000
    assert len(gzip.compress(found.to_bytes(), 1)) < 3_300_000
    assert found.header["attention_layers"][0]["pooled"] is None
    assert found.header["attention_layers"][0]["levels"] >= 31


def test_a_model_of_nan_is_answered_without_nan() -> None:
    model = perturbed(SMALL).eval()
    with torch.no_grad():
        model.get_parameter("blocks.0.attention.qkv.weight").fill_(float("nan"))
    found = inspect(model)
    assert found.header["prediction"][0]["score"] is None
    assert np.isfinite(found.arrays["rowmax.0"]).all()


@pytest.mark.parametrize("kind", CNNS)
def test_a_convolutional_network_has_blocks_in_the_place_of_attention(kind: str) -> None:
    model = model_of(kind)
    header = inspected(kind).header
    assert header["attention_layers"] == []
    assert [one["name"] for one in header["map_layers"]] == list(model.blocks_by_depth())
    maps = model.intermediates(image_tensor(model))
    assert [one["grid"] for one in header["map_layers"]] == [list(x.shape[2:]) for x in maps]
    assert header["methods"] == list(WITHOUT_ATTENTION)
    assert header["auto"] in WITHOUT_ATTENTION
    assert header["lens"]["exact_last"]
    assert "rollout" not in inspected(kind).arrays
