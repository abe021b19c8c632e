"""Models without memory, and without what makes them slow to begin with."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from vitrail.core.without_init import without_init
from vitrail.models.catalogue import FAMILIES, build_empty, build_meta


def test_parameters_have_a_shape_and_no_memory() -> None:
    with without_init():
        layer = nn.Linear(3, 4)
    assert layer.weight.is_meta
    assert layer.weight.shape == (4, 3)


def test_tensors_with_memory_are_filled_as_ever() -> None:
    with without_init():
        table = torch.empty(2, 3, device="cpu")
        nn.init.constant_(table, 5.0)
        table.mul_(2)
    assert table.tolist() == [[10.0] * 3] * 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_has_the_same_tensors_as_ever(family: str) -> None:
    config = next(iter(FAMILIES[family].variants.values())).config
    with torch.device("meta"):
        expected = FAMILIES[family].model(config).state_dict()
    for found in (build_meta(config).state_dict(), build_empty(config).state_dict()):
        assert {name: (one.shape, one.dtype) for name, one in found.items()} == {
            name: (one.shape, one.dtype) for name, one in expected.items()
        }


PROGRAM = """
import sys
from vitrail.models.catalogue import FAMILIES, build_empty
for family in FAMILIES.values():
    build_empty(next(iter(family.variants.values())).config)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


@pytest.mark.slow
def test_no_family_loads_a_compiler_to_be_without_values() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
