"""What the examples in docstrings may use: a model, images, and a directory with a checkpoint.
Each is made for the examples that name it only, because most name none."""

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

CHECKPOINT, PHOTOS = "pets-model", "photos/"

# Some virtual machines advertise AMX and fault at its first instruction: no test depends on it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, Any, Any]:
    """Modules without examples are not imported and searched for them: that takes seconds in each
    worker."""
    found = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return found
    return [one for one in found if not isinstance(one, DoctestModule)]


@pytest.fixture(autouse=True)
def _example(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("_example_world")


@pytest.fixture
def _example_world(
    request: pytest.FixtureRequest,
    doctest_namespace: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "".join(example.source for example in request.node.dtest.examples)
    names = set(re.findall(r"\w+", source))
    if "register_dialect" in names:  # for this example alone
        from vitrail.weights import registered

        monkeypatch.setattr(registered, "_REGISTERED", {})
    for name in ("torch", "model", "images", "find", "create"):
        doctest_namespace.pop(name, None)  # what the example before has had
    if names & {"torch", "model", "images", "find", "create"} or CHECKPOINT in source:
        import torch

        import vitrail
        from vitrail.models.catalogue import find

        doctest_namespace.update(torch=torch, find=find, create=vitrail.create)
        if "images" in names:
            doctest_namespace["images"] = torch.zeros(1, 3, 224, 224)
        if "model" in names or CHECKPOINT in source:
            model = vitrail.create("vit_ti_16", num_classes=3).eval()
            doctest_namespace["model"] = model
        if CHECKPOINT in source:
            vitrail.save(model, tmp_path / CHECKPOINT)
    if PHOTOS in source:
        write_photos(tmp_path / PHOTOS)


def write_photos(folder: Path) -> None:
    """Three images for examples."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(folder / f"{number}.png")
