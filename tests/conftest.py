"""Shared by all tests: peers that import torchvision need the guard before anything else, and no
example of a property fails because the machine is busy."""

from hypothesis import settings

from vitrail.core.torchvision import mend_torchvision

mend_torchvision()
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
