"""Fixtures that tests against peers share."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def quiet_transformers() -> Iterator[None]:
    """Neither progress bars nor notes about weights that are new on purpose."""
    import transformers

    logging: Any = transformers.logging  # it has no types
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity_warning()
