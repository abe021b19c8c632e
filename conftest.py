"""What the examples in docstrings may use: a model, images, and a directory with a checkpoint."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _example(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("_example_world")


@pytest.fixture
def _example_world(
    doctest_namespace: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    import vitrail
    from vitrail.models.catalogue import find

    model = vitrail.create("vit_ti_16", num_classes=3).eval()
    vitrail.save(model, tmp_path / "pets-model")
    monkeypatch.chdir(tmp_path)
    images = torch.zeros(1, 3, 224, 224)
    names = {"torch": torch, "model": model, "images": images, "find": find}
    doctest_namespace.update(names, create=vitrail.create)
