"""What a run does on a GPU where nobody has chosen; a CPU changes nothing."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vitrail import create
from vitrail.data.augment import Augmentation
from vitrail.training.device_defaults import Machine, matmul_precision, with_device_defaults
from vitrail.training.progressive import allow_sides
from vitrail.training.recipe import Recipe

GPU = Machine("cuda", bfloat16=True, tf32=True, cores=96, processes=8)


def test_a_cpu_changes_nothing() -> None:
    recipe = Recipe(data="photos", model="coatnet_0")
    assert with_device_defaults(recipe, Machine("cpu", cores=96), given=()) == recipe


def test_every_choice_has_a_reason() -> None:
    found = with_device_defaults(Recipe(data="photos", model="coatnet_0"), GPU, given=())
    assert (found.precision, found.tf32, found.compile) == ("bfloat16", True, True)
    assert (found.workers, found.channels_last) == (12, True)
    assert len(found.reasons) == 5
    assert "workers 12: 96 cores for 8 training processes" in found.reasons


def test_what_is_given_stays() -> None:
    recipe = Recipe(data="photos", model="vit_ti_16", workers=3, precision="float32")
    found = with_device_defaults(recipe, GPU, given=("workers", "precision", "compile"))
    assert (found.workers, found.precision, found.compile) == (3, "float32", False)
    assert found.reasons == ("tf32: what stays in float32 is multiplied in TensorFloat-32",)


def test_old_gpus_and_native_resolution() -> None:
    old = replace(GPU, bfloat16=False, tf32=False)
    recipe = Recipe(data="photos", model="vit_ti_16", native_resolution=True)
    found = with_device_defaults(recipe, old, given=())
    assert (found.precision, found.tf32, found.compile) == ("float32", False, False)


def test_products_are_exact_again_afterwards() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision(Recipe(data="photos", tf32=True)):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("sizes", [{"progressive": (128, 160)}, {"sides": (160, 224)}])
def test_blocks_are_not_compiled_anew_for_every_size(sizes: dict[str, Any]) -> None:
    recipe = Recipe(data="photos", model="vit_ti_16", augmentation=Augmentation(**sizes))
    found = with_device_defaults(recipe, GPU, given=())
    assert not found.compile
    assert not any("compile" in reason for reason in found.reasons)
    allow_sides(create("vit_ti_16", depth=1), found)  # which refuses a compiled model
