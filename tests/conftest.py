"""Shared by all tests: peers that import torchvision need the guard before anything else."""

from vitrail.core.torchvision import mend_torchvision

mend_torchvision()
