"""Explaining one image: every method, every kind of model, the same maps as the library's."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.parity.test_every_family import FAMILIES
from tests.serving.small_models import image_tensor, model_of, photo
from vitrail.core.errors import UserError
from vitrail.explanation.methods import METHODS, explain_tensor
from vitrail.models.model import Model
from vitrail.serving.operations import OPERATIONS
from vitrail.serving.operations.context import Context


def explain(model: Model, **options: Any) -> dict[str, Any]:
    operation = OPERATIONS["explain"]
    found = operation.run(Context(model), photo(), operation.read_options(options))
    assert isinstance(found, dict)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*FAMILIES, "vit, distilled", "vit, no head", "one channel"])
def test_auto_is_the_librarys_choice_and_map(kind: str) -> None:
    model = model_of(kind)
    torch.manual_seed(0)
    found = explain(model)
    torch.manual_seed(0)
    plain = explain_tensor(model, image_tensor(model), "auto")
    assert found["method"] == plain.method
    assert found["reason"]
    assert np.array(found["map"]).shape == tuple(found["grid"]) == plain.layout.grid
    np.testing.assert_allclose(found["map"], plain.map[0], rtol=1e-3, atol=1e-5)
    if model.config.num_classes:
        assert found["target"]["index"] == int(model(image_tensor(model))[0].argmax())
    else:
        assert found["target"] is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_every_class(method: str) -> None:
    model = model_of("labels")
    found = explain(model, method=method, target="bird")
    assert found["method"] == method
    assert np.isfinite(np.array(found["map"])).all()
    if found["knows_classes"]:
        assert found["target"]["index"] == 2
        assert found["target"]["label"] == "bird"


def test_options_of_attention_reach_it() -> None:
    model = model_of("labels")
    found = explain(model, method="attention", layer=0, head=1, query=[2, 3])
    plain = explain_tensor(model, image_tensor(model), "attention", layer=0, head=1, query=(2, 3))
    np.testing.assert_allclose(found["map"], plain.map[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "magic"}, "unknown method"),
        ({"method": "all"}, "method must be one"),
        ({"target": "horse"}, "target must be a class of the model"),
        ({"target": 17}, "target must be a class of the model"),
        ({"method": "rollout", "head": 3}, "head is for attention"),
        ({"method": "attention", "head": 30}, "head of"),
        ({"metod": "auto"}, "unknown field"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        explain(model_of("labels"), **options)


def test_a_model_without_a_head_explains_no_class() -> None:
    with pytest.raises(UserError, match="has no head"):
        explain(model_of("vit, no head"), method="gradcam")
    with pytest.raises(UserError, match="no classification head"):
        explain(model_of("vit, no head"), method="rollout", target=1)


def test_a_missing_image_is_said() -> None:
    operation = OPERATIONS["explain"]
    with pytest.raises(UserError, match="an image is missing"):
        operation.run(Context(model_of("labels")), None, operation.read_options({}))
