"""Real files that the repository does not ship: where they are, or why a test skips."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[2] / "shared" / "golden"


def golden(name: str) -> Path:
    """The file or folder of this name in the golden data; the test skips where it is absent.

    >>> golden("mnist").name
    'mnist'
    """
    path = Path(os.environ.get("VITRAIL_GOLDEN", BESIDE)) / name
    if not path.exists():
        pytest.skip(f"no golden data at {path}: set VITRAIL_GOLDEN to the folder that holds {name}")
    return path
