"""Which precision and device a loaded model has, and what is kept of a module in memory."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.parity.test_every_family import CONFIGS
from timm.models import VisionTransformer
from torch import nn

from vitrail import UserError, create, load, save
from vitrail.core.devices import choose_device
from vitrail.models.catalogue import build
from vitrail.models.resnet import ResNetConfig
from vitrail.models.vit import ViT, ViTConfig
from vitrail.training.lora import adapt
from vitrail.training.recipe import Lora

TINY = ViTConfig(
    dim=16, depth=1, heads=2, mlp_dim=32, patch_size=8, image_size=(16, 16), num_classes=3
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def dtypes_of(model: nn.Module) -> set[torch.dtype]:
    return {tensor.dtype for tensor in (*model.parameters(), *model.buffers())}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_checkpoint_comes_back_in_the_precision_it_was_saved_in(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = build(TINY).to(dtype)
    again = load(save(model, tmp_path / "model"))
    assert dtypes_of(again) == {dtype}
    theirs = model.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in again.state_dict().items())
    assert dtypes_of(load(model)) == {dtype}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"], ids=str)
def test_another_precision_is_given_on_request(dtype: Any, tmp_path: Path) -> None:
    expected = torch.bfloat16 if isinstance(dtype, str) else dtype
    saved = save(build(TINY), tmp_path / "model")
    assert dtypes_of(load(saved, dtype=dtype)) == {expected}
    assert dtypes_of(load(saved, dtype=dtype, num_classes=5)) == {expected}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_other_libraries_files_are_float32_at_least(
    stored: torch.dtype, expected: torch.dtype, tmp_path: Path
) -> None:
    peer = VisionTransformer(img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2)
    save_file(peer.to(stored).state_dict(), tmp_path / "peer.safetensors")
    ours = load(tmp_path / "peer.safetensors", heads=2, grid=(2, 2))
    assert dtypes_of(ours) == {expected}
    assert dtypes_of(load(tmp_path / "peer.safetensors", heads=2, grid=(2, 2), dtype=stored)) == {
        stored
    }


def test_auto_is_a_device_that_is_there(tmp_path: Path) -> None:
    first = "cuda" if torch.cuda.is_available() else "cpu"
    first = "mps" if first == "cpu" and torch.backends.mps.is_available() else first
    loaded = load(save(build(TINY), tmp_path / "model"), device="auto")
    assert next(loaded.parameters()).device.type == choose_device("auto").type == first


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"device": "gpu"}, "device must be auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
        ({"device": "cuda:99"}, 'this machine has no cuda:99 device: try device="auto"'),
        (
            {"dtype": "float8"},
            "dtype must be one of float16, bfloat16, float32, float64, got 'float8'",
        ),
        ({"dtype": torch.int32}, "dtype must be one of"),
    ],
)
def test_a_wrong_device_or_precision_is_a_sentence(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)) as error:
        load("nothing-is-read", **said)
    assert "did you mean" not in str(error.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_new_head_is_like_the_model(family: str) -> None:
    model = build(CONFIGS[family]).double()
    model.new_head()
    assert dtypes_of(model) - {torch.int32, torch.int64, torch.bool} == {torch.float64}
    assert model.eval()(torch.zeros(1, 3, *model.config.image_size).double()).shape == (1, 5)


def test_reading_a_module_leaves_what_is_frozen_frozen() -> None:
    peer = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
    ).train()
    peer.blocks[0].eval()
    before = {name: part.training for name, part in peer.named_modules()}
    load(peer)
    assert {name: part.training for name, part in peer.named_modules()} == before


def test_a_model_that_was_not_created_by_name_is_saved(tmp_path: Path) -> None:
    model = ViT(TINY).eval()
    again = load(save(model, tmp_path / "model"))
    image = torch.randn(1, 3, 16, 16)
    assert torch.equal(again(image), model(image))
    assert again.passport.origin.source == "fresh"


def test_low_rank_changes_are_merged_where_a_model_is_loaded_or_saved(tmp_path: Path) -> None:
    model = build(TINY).double().eval()
    adapt(model, Lora(rank=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    image = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    expected = model(image)
    for merged in (load(model), load(save(model, tmp_path / "model"))):
        torch.testing.assert_close(merged(image), expected, rtol=0, atol=1e-12)
        assert not [name for name in merged.state_dict() if "parametrizations" in name]


def test_records_and_numpy_numbers_are_fields() -> None:
    stem = ResNetConfig(blocks=(1,), width=8, groups=4)
    fields: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "mlp_dim": 32, "patch_size": 1}
    fields |= {"image_size": np.int64(32), "num_classes": np.int32(7)}
    model = create("vit_ti_16", stem=stem, **fields)
    assert model.config.image_size == (32, 32)
    assert model.config.num_classes == 7
    assert model.config.stem == stem
    assert type(model.config.num_classes) is int
