"""Fixtures that the tests of several verbs share."""

from pathlib import Path

import pytest
from tests.inference.photos import small_model

from vitrail import save


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The directory of a small model."""
    return str(save(small_model(), tmp_path / "model"))
