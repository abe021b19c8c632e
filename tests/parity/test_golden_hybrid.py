"""A hybrid that somebody else trained: the encoder of LaTeX-OCR, 12 ResNet blocks under a ViT."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.std_conv import StdConv2dSame
from timm.models import VisionTransformer
from timm.models.resnetv2 import ResNetV2
from torch import nn

from tests.golden import golden
from tests.parity.compare import assert_identical, assert_same, close, images
from vitrail import load
from vitrail.models.model import Model
from vitrail.models.vit import ViTConfig
from vitrail.weights.convert import convert
from vitrail.weights.load import open_checkpoint

HEIGHT, WIDTH = 192, 672


@pytest.fixture(scope="module")
def weights() -> Path:
    return golden("hybrid-ocr") / "encoder_fp16.safetensors"


@pytest.fixture(scope="module")
def peer(weights: Path) -> nn.Module:
    """timm's model of the same shape, which takes the file strictly."""
    backbone = ResNetV2(
        layers=[2, 3, 7],
        num_classes=0,
        global_pool="",
        in_chans=1,
        preact=False,
        stem_type="same",
        conv_layer=partial(StdConv2dSame, eps=1e-8),
    )
    model = VisionTransformer(
        img_size=(HEIGHT, WIDTH),
        patch_size=1,
        in_chans=1,
        num_classes=0,
        embed_dim=256,
        depth=4,
        num_heads=8,
        embed_layer=partial(HybridEmbed, backbone=backbone),
    )
    model.load_state_dict(load_file(weights), strict=True)
    return model.double().eval()


@pytest.fixture(scope="module")
def ours(weights: Path) -> Model:
    return load(weights, heads=8, image_size=(HEIGHT, WIDTH)).double()


def test_every_tensor_is_read(weights: Path) -> None:
    said = {"heads": 8, "image_size": (HEIGHT, WIDTH)}
    opened = open_checkpoint(weights, overrides=said)
    assert opened.dialect == "timm"
    assert len(opened.coverage.used) == len(opened.state) == len(load_file(weights)) == 174
    assert opened.coverage.dropped == opened.coverage.filled == []
    assert isinstance(opened.config, ViTConfig)
    assert opened.config.grid == (12, 42)
    assert opened.config.stem is not None
    assert opened.config.stem.blocks == (2, 3, 7)


@pytest.mark.slow  # every block and the gradient of the image; features alone are compared below
def test_tokens_equal_timm(ours: Model, peer: nn.Module) -> None:
    assert_same(
        ours,
        peer,
        images(1, HEIGHT, WIDTH, batch=1),
        blocks=(ours.blocks, peer.blocks),  # type: ignore[arg-type]
        mine=lambda model, x: model.encode(x),
        call=lambda model, x: model.forward_features(x),
    )


def test_features_equal_timm(ours: Model, peer: nn.Module) -> None:
    image = images(1, HEIGHT, WIDTH, batch=1)
    with torch.no_grad():
        close(ours.features(image), peer(image))


def test_back_to_the_bit(weights: Path, tmp_path: Path) -> None:
    """In float16 all the way: converting computes nothing."""
    said = {"heads": 8, "image_size": (HEIGHT, WIDTH)}
    convert(weights, tmp_path / "native", to="vitrail", changes=said)
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="timm")
    assert_identical(load_file(tmp_path / "back.safetensors"), load_file(weights))
