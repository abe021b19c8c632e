"""One process that forks for all tests, small models on disk, and a service that most tests ask."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitrail
from tests.serving.running import Running, running
from vitrail.models.model import Model
from vitrail.serving.launcher import Launcher


def make_model(seed: int, classes: int = 3) -> Model:
    """A small model whose head is not zero, so that images differ in their scores."""
    torch.manual_seed(seed)
    fields = {"depth": 2, "image_size": 32, "patch_size": 8, "num_classes": classes}
    model = vitrail.create("vit_ti_16", **fields).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.startswith("head"):
                weights.normal_(std=0.2)
    model.passport = replace(
        model.passport, labels=("cat", "dog", "고양이")[:classes] if classes == 3 else None
    )
    return model


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    found = Launcher()
    yield found
    found.close()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `pets`, `other` (other weights) and `many` (200 classes without labels)."""
    folder = tmp_path_factory.mktemp("served")
    vitrail.save(make_model(0), folder / "pets")
    vitrail.save(make_model(1), folder / "other")
    vitrail.save(make_model(2, classes=200), folder / "many")
    return folder


@pytest.fixture(scope="session")
def service(launcher: Launcher, checkpoints: Path) -> Iterator[Running]:
    """Two models, no keys."""
    models = [str(checkpoints / name) for name in ("pets", "many")]
    with running(launcher, *models) as found:
        yield found
