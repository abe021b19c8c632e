"""A row in a family's table of published models."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Config = TypeVar("Config")


@dataclass(frozen=True)
class Variant(Generic[Config]):
    """`params` and `macs` (multiply-adds for one image, through torch's flop counter) are of the
    config as it stands here; a test asserts both."""

    config: Config
    params: int
    macs: int
