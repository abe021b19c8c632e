"""A model from `load` knows its path until it is changed, and what records it is found again."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from tests.inference.photos import small_model, write_photos

import vitrail
from vitrail import UserError
from vitrail.models.model import Model
from vitrail.tasks.models import source_of
from vitrail.tasks.names import name_of


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return vitrail.save(small_model(), tmp_path / "model")


def test_a_loaded_model_is_called_by_its_path(saved: Path) -> None:
    model = vitrail.load(saved)
    assert name_of(model) == str(saved)
    assert name_of(model.double()) == str(saved)
    assert name_of(small_model()) == "ViT"
    resized = source_of(vitrail.load(saved, num_classes=3))
    assert resized is not None
    assert resized.changes == {"num_classes": 3}


def train_step(model: Model) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_model_that_was_changed_has_no_path(saved: Path) -> None:
    for change in (
        train_step,
        lambda model: model.reset_head(3),
        lambda model: model.load_state_dict(small_model().state_dict()),
    ):
        model = vitrail.load(saved)
        change(model)
        assert name_of(model) == "ViT"
    assert source_of(deepcopy(vitrail.load(saved))) is None


def test_what_a_loaded_model_embedded_is_searched_without_it(saved: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 3)
    out = tmp_path / "vectors"
    vitrail.embed(vitrail.load(saved), photos, out=out, engine="eager")
    assert vitrail.search(out, photos[1], k=1)[0].id == photos[1]
    made = tmp_path / "made"
    vitrail.embed(small_model(), photos, out=made, engine="eager")
    with pytest.raises(UserError, match=r"in memory only: pass checkpoint="):
        vitrail.search(made, photos[1])
