"""The walk as the page gets it: plain values, few numbers, keys for words in two languages."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.kinds import SMALL, perturbed
from tests.serving.small_models import LABELS, MODELS, image_tensor, model_of, photo
from vitrail import capture
from vitrail.core.errors import UserError
from vitrail.explanation.source_lines import PACKAGE
from vitrail.explanation.walk import STEP_IDS
from vitrail.models.model import Model
from vitrail.serving.operations import OPERATIONS
from vitrail.serving.operations.context import Context


def walk(model: Model, **options: Any) -> dict[str, Any]:
    operation = OPERATIONS["walk"]
    found = operation.run(Context(model), photo(), operation.read_options(options))
    assert isinstance(found, dict)
    json.dumps(found, allow_nan=False)
    return found


def step_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in found["steps"] if one["id"] == name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_is_walked_through(kind: str) -> None:
    model = model_of(kind)
    found = walk(model, block=0, head=0)
    for step in found["steps"]:
        assert step["title_key"] == f"walk.step.{step['id']}"
        assert step["code"]["file"].endswith(".py")
        assert step["code"]["line"] > 0
        for name, value in step["values"].items():
            assert value["note_key"] == f"walk.value.{name}"
            assert 1 <= len(value["numbers"]) <= 64
            assert (
                len(value["numbers"]) == min(64, int(np.prod(value["shape"]))) or "tokens" in value
            )
            assert len(value.get("tokens", value["numbers"])) == len(value["numbers"])
    assert len(found["blocks"]) == found["blocks"][-1]["index"] + 1
    if model.config.num_classes:
        assert step_of(found, "head")["values"]["logits"]["shape"] == [5]
        assert found["prediction"][0]["index"] == step_of(found, "head")["text_args"]["best"]
    else:
        assert found["prediction"] is None
        assert "no head" in found["note"]


def test_the_first_step_shows_the_pixels_of_the_patch() -> None:
    model = model_of("labels")
    found = walk(model, block=1, head=2, patch=[1, 2])
    patch = step_of(found, "patches")
    assert patch["shape"] == "(24, 192)"
    pixels = patch["values"]["pixels"]
    assert pixels["shape"] == [8, 8, 3]
    how = model.passport.preprocessing
    seen = (image_tensor(model)[0, :, 8:16, 16:24] * how.std[0] + how.mean[0]) * 255
    np.testing.assert_allclose(pixels["numbers"], seen.movedim(0, -1).flatten()[:64], atol=1e-2)
    assert found["query"] == {"block": 1, "head": 2, "token": 9, "cell": [1, 2]}


def test_of_many_keys_the_ones_with_the_largest_weights_are_sent() -> None:
    config = {"image_size": (96, 96), "patch_size": 8, "num_classes": 200}
    model = perturbed(type(SMALL)(**{**SMALL.__dict__, **config})).eval()
    found = walk(model, patch=[3, 3], head=1)
    weights = step_of(found, "softmax")["values"]["weights"]
    assert weights["shape"] == [145]
    with capture(model) as maps, torch.no_grad():
        model(image_tensor(model))
    row = maps["blocks.0.attention"].weights[0, 1, 1 + 3 * 12 + 3]
    np.testing.assert_allclose(weights["numbers"], row[weights["tokens"]], rtol=1e-4)
    assert weights["tokens"] == sorted(row.argsort(descending=True)[:64].tolist())
    assert step_of(found, "scores")["values"]["scores"]["tokens"] == weights["tokens"]
    logits = step_of(found, "head")["values"]["logits"]
    assert len(logits["tokens"]) == 64
    assert step_of(found, "head")["text_args"]["best"] in logits["tokens"]


def test_labels_and_prefix_tokens_are_named() -> None:
    found = walk(model_of("labels"), token=0)
    assert found["query"]["cell"] is None
    assert found["prediction"][0]["label"] in LABELS
    assert found["blocks"][0]["prefix_names"] == ["class token"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"block": 7}, "block must be from 0 to 1"),
        ({"head": 9}, "head of"),
        ({"patch": [0, 99]}, "patch must be from"),
        ({"token": 99}, "token must be from"),
        ({"patch": [0, 0], "token": 1}, "leave one of them out"),
        ({"block": "first"}, "block must be"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        walk(model_of("labels"), **options)


def test_the_page_has_words_for_every_step_and_value() -> None:
    files = (PACKAGE / "pages" / "window" / "strings").glob("*.json")
    catalogues = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    steps = [step for kind in MODELS for step in walk(model_of(kind))["steps"]]
    values = {(step["id"], name) for step in steps for name in step["values"]}
    for language in ("en", "ko"):
        words = {key for one in catalogues for key in one[language]}
        assert {f"walk.step.{one}" for one in STEP_IDS} <= words
        for step, name in values:
            assert words & {f"walk.value.{step}.{name}", f"walk.value.{name}"}, (step, name)
