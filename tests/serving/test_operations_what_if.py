"""What if: predictions after edits are those of the edited image, for every kind of model."""

import base64
import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.parity.test_every_family import CNNS
from tests.serving.small_models import MODELS, image_tensor, model_of, photo
from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.serving.operations import OPERATIONS
from vitrail.serving.operations.context import Context

every_model = pytest.mark.parametrize("kind", MODELS)


def what_if(model: Model, **options: Any) -> dict[str, Any]:
    operation = OPERATIONS["what_if"]
    found = operation.run(Context(model), photo(), operation.read_options(options))
    assert isinstance(found, dict)
    return found


def sent_image(found: dict[str, Any]) -> np.ndarray:
    kind, _, content = found["image"].partition(",")
    assert kind == "data:image/png;base64"
    return np.array(Image.open(io.BytesIO(base64.b64decode(content))))


def scores_of(model: Model, pixels: np.ndarray) -> torch.Tensor:
    """By hand: these pixels, normalised as the passport says, through the model."""
    how = model.passport.preprocessing
    image = torch.from_numpy(pixels).movedim(-1, 0)[: len(how.mean)] / 255
    image = (image - torch.tensor(how.mean).view(-1, 1, 1)) / torch.tensor(how.std).view(-1, 1, 1)
    with torch.no_grad():
        logits = model(image[None].float())[0]
    return logits.sigmoid() if model.passport.multi_label else logits.softmax(dim=0)


EDITS: dict[str, dict[str, Any]] = {
    "erase": {"erase": [[0, 0], [0, 1]], "grid": [2, 2]},
    "blur": {"blur": [[1, 1]], "grid": [2, 2]},
    "permute": {"permute": 3, "grid": [2, 2]},
    "shift": {"shift": [2, -1]},
    "corruption": {"corruption": {"name": "brightness", "severity": 4}},
    "several": {"erase": [[0, 0]], "blur": [[0, 1]], "shift": [1, 1], "permute": 1, "grid": [2, 2]},
}


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        *((kind, "several") for kind in MODELS),
        *(("labels", edit) for edit in EDITS),
        ("one channel", "corruption"),
        ("swin", "corruption"),
    ],
)
def test_the_prediction_is_that_of_the_image_that_was_sent_back(kind: str, edit: str) -> None:
    model = model_of(kind)
    found = what_if(model, **EDITS[edit])
    pixels = sent_image(found)
    assert pixels.shape == (*model.config.image_size, 3)
    if not model.config.num_classes:
        assert found["before"] is None
        assert found["after"] is None
        assert -1 <= found["similarity"] < 1 - 1e-9
        return
    scores = scores_of(model, pixels)
    for one in found["after"]:
        assert one["score"] == pytest.approx(float(scores[one["index"]]), rel=1e-4, abs=1e-6)
    assert found["after"][0]["score"] == pytest.approx(float(scores.max()), rel=1e-4)
    for one in found["changed"]:
        assert one["after"] == pytest.approx(float(scores[one["index"]]), rel=1e-4, abs=1e-6)
    assert any(one["before"] != one["after"] for one in found["changed"])


@every_model
def test_without_edits_nothing_changes(kind: str) -> None:
    model = model_of(kind)
    found = what_if(model)
    assert found["before"] == found["after"]
    assert all(one["before"] == one["after"] for one in found["changed"])
    if model.config.num_classes:
        with torch.no_grad():
            best = int(model(image_tensor(model))[0].argmax())
        assert found["before"][0]["index"] == best


@pytest.mark.sampled(2)
@every_model
def test_the_erased_part_of_an_explanation_is_where_its_map_is_largest(kind: str) -> None:
    model = model_of(kind)
    method = "gradcam" if kind in CNNS else "rollout"
    found = what_if(model, explain={"method": method, "share": 0.25})
    explain = OPERATIONS["explain"]
    options = explain.read_options({"method": method})
    why = explain.run(Context(model), photo(), options)
    assert isinstance(why, dict)
    heat = np.array(why["map"])
    cells = [tuple(cell) for cell in found["erased"]["cells"]]
    assert len(cells) == max(round(0.25 * heat.size), 1)
    assert found["erased"]["grid"] == why["grid"]
    chosen = np.zeros(heat.shape, dtype=bool)
    for cell in cells:
        chosen[cell] = True
    assert heat[chosen].min() >= (heat[~chosen].max() if (~chosen).any() else 0)


def test_patches_that_take_their_positions_along() -> None:
    model = model_of("labels")
    alone = what_if(model, permute=5)
    along = what_if(model, permute=5, permute_positions=True)
    assert sent_image(alone).tolist() == sent_image(along).tolist()
    for one in along["changed"]:
        assert one["after"] == pytest.approx(one["before"], abs=1e-5)
    assert max(abs(one["after"] - one["before"]) for one in alone["changed"]) > 1e-4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"erase": [[9, 9]]}, "erase must name cells"),
        ({"shift": [100, 0]}, "shift must be less than the image"),
        ({"corruption": {"name": "snowy"}}, "did you mean snow"),
        ({"corruption": {"name": "snow", "severity": 9}}, "severity must be from 1 to 5"),
        ({"explain": {"method": "magic"}}, "unknown method"),
        ({"explain": {"share": 2.0}}, "share must be from 0 to 1"),
        ({"permute": 1, "grid": [5, 5]}, "does not divide"),
        ({"eraze": []}, "unknown field"),
        ({"erase": [[0]]}, "what_if"),
        ({"grid": [0, 4]}, "grid must be"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        what_if(model_of("labels"), **options)
