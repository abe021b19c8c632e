"""timm's ViTs through our rows and back: the same numbers both ways."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.models import VisionTransformer

from tests.parity.compare import assert_identical, assert_same, images, shaken, write_safetensors
from vitrail import load
from vitrail.weights.convert import convert

SMALL: dict[str, Any] = {
    "img_size": (32, 48), "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4,
    "num_classes": 7,
}  # fmt: skip

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrow mlp": {"mlp_ratio": 2},
    "no qkv bias": {"qkv_bias": False},
    "layer scale": {"init_values": 0.1},
    "registers": {"reg_tokens": 3},
    "positions for patches alone": {"reg_tokens": 2, "no_embed_class": True},
    "mean pooling": {"global_pool": "avg"},
    "no class token": {"global_pool": "avg", "class_token": False},
    "no head": {"num_classes": 0},
    "one channel": {"in_chans": 1},
    "no positions": {"pos_embed": "none"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_timm_and_back(kind: str, tmp_path: Path) -> None:
    arguments = SMALL | KINDS[kind]
    peer = shaken(VisionTransformer(**arguments))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")

    ours = load(source, dialect="timm", heads=4, grid=(4, 6))
    assert_same(
        ours,
        peer,
        images(arguments.get("in_chans", 3), 32, 48),
        blocks=(ours.blocks_by_depth().values(), peer.blocks),
    )

    told: dict[str, Any] = {"dialect": "timm", "changes": {"heads": 4}, "grid": (4, 6)}
    convert(source, tmp_path / "native", to="vitrail", **told)
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="timm")
    assert_identical(load_file(tmp_path / "back.safetensors"), load_file(source))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "heads", "arguments"),
    [
        ("deit_tiny_distilled_patch16_224", 3, {"img_size": (32, 64)}),
        ("vit_tiny_r_s16_p8_224", 3, {"img_size": (64, 96)}),
        # test_timm_sweep.py has this one quickly
        pytest.param("vit_small_r26_s32_224", 6, {"img_size": (64, 96)}, marks=pytest.mark.slow),
        ("vit_base_patch16_clip_quickgelu_224", 12, {"img_size": (32, 64)}),
        ("deit3_small_patch16_224", 6, {"img_size": (32, 64)}),
        ("vit_small_patch14_reg4_dinov2", 6, {"img_size": (28, 56)}),
    ],
)
def test_timm_builds_what_we_write(
    name: str, heads: int, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """timm itself makes the same model from our directory, config.json and all."""
    peer = shaken(timm.create_model(name, num_classes=5, depth=1, **arguments))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    height, width = arguments["img_size"]
    said: dict[str, Any] = {"heads": heads, "image_size": (height, width)}
    if "quickgelu" in name:
        said["activation"] = "quick_gelu"
    ours = load(source, **said)
    assert_same(
        ours, peer, images(3, height, width), blocks=(ours.blocks_by_depth().values(), peer.blocks)
    )

    convert(source, tmp_path / "timm", to="timm", changes=said)
    assert_identical(load_file(tmp_path / "timm" / "model.safetensors"), load_file(source))
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    torch.testing.assert_close(
        theirs.eval()(images(3, height, width).float()),
        peer.float()(images(3, height, width).float()),
    )
    again = load(tmp_path / "timm")
    assert again.config == ours.config
