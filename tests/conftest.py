"""Shared by all tests: peers that import torchvision need the guard before anything else."""

import os
from pathlib import Path

import pytest

from vitrail.core.torchvision import mend_torchvision

mend_torchvision()
