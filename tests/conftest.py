"""Shared by all tests: peers that import torchvision need the guard before anything else, and no
example of a property fails because the machine is busy."""

import gc

from hypothesis import settings

from vitrail.core.torchvision import mend_torchvision

mend_torchvision()
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """The garbage collector leaves imported modules alone, millions of objects, and looks at those
    of tests less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
