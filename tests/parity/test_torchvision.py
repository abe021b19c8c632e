"""torchvision's ViTs through our rows and back: the same numbers both ways."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import vision_transformer as torchvision
from torchvision.transforms._presets import ImageClassification

from tests.parity.compare import (
    assert_identical,
    assert_same,
    close,
    images,
    shaken,
    write_safetensors,
)
from vitrail import load
from vitrail.core.errors import UserError
from vitrail.core.without_init import without_init
from vitrail.models.vit import ViTConfig
from vitrail.weights.checkpoint import read_config
from vitrail.weights.convert import convert
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects.torchvision import TORCHVISION
from vitrail.weights.families.family import Request
from vitrail.weights.load import open_checkpoint

SMALL: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 48,
    "mlp_dim": 80, "num_classes": 7,
}  # fmt: skip


def no_head(peer: nn.Module) -> nn.Module:
    peer.heads = nn.Identity()
    return peer


def one_channel(peer: nn.Module) -> nn.Module:
    peer.conv_proj = nn.Conv2d(1, 48, 8, 8)
    return peer


KINDS: dict[str, tuple[dict[str, Any], Callable[[nn.Module], nn.Module]]] = {
    "plain": ({}, lambda peer: peer),
    "hidden head layer": ({"representation_size": 48}, lambda peer: peer),
    "another size": ({"image_size": 48, "patch_size": 16}, lambda peer: peer),
    "no head": ({}, no_head),
    "one channel": ({}, one_channel),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torchvision_and_back(kind: str, tmp_path: Path) -> None:
    arguments, changed = KINDS[kind]
    arguments = SMALL | arguments
    peer = shaken(changed(torchvision.VisionTransformer(**arguments)))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    image = images(1 if kind == "one channel" else 3, *[arguments["image_size"]] * 2)

    ours = load(source, heads=4)
    assert_same(ours, peer, image, blocks=(ours.blocks, peer.encoder.layers))  # type: ignore[arg-type, union-attr]

    convert(source, tmp_path / "native", to="vitrail", changes={"heads": 4})
    convert(tmp_path / "native", tmp_path / "back.safetensors", to="torchvision")
    back = load_file(tmp_path / "back.safetensors")
    assert_identical(back, load_file(source))
    again = changed(torchvision.VisionTransformer(**arguments)).double().eval()
    again.load_state_dict(back, strict=True)
    close(again(image), peer(image))


def test_reads_the_old_names_of_the_mlp(tmp_path: Path) -> None:
    peer = shaken(torchvision.VisionTransformer(**SMALL))
    old = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
        for name, tensor in peer.state_dict().items()
    }
    torch.save(old, tmp_path / "old.pth")
    assert_same(load(tmp_path / "old.pth", heads=4), peer, images(3, 32, 32))
    convert(tmp_path / "old.pth", tmp_path / "new.pth", to="torchvision", changes={"heads": 4})
    assert_identical(torch.load(tmp_path / "new.pth", weights_only=True), peer.state_dict())


def test_resizes_as_torchvision_does(tmp_path: Path) -> None:
    peer = shaken(torchvision.VisionTransformer(**SMALL))
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    state = torchvision.interpolate_embeddings(64, 8, peer.state_dict())
    larger = torchvision.VisionTransformer(**SMALL | {"image_size": 64}).double().eval()
    larger.load_state_dict(state)
    assert_same(load(source, heads=4, image_size=64), larger, images(3, 64, 64))


def shapes(make: Callable[..., nn.Module], **arguments: Any) -> dict[str, Tensor]:
    with without_init():
        return make(**arguments).state_dict()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "weights"),
    [
        (torchvision.vit_b_16, torchvision.ViT_B_16_Weights.IMAGENET1K_V1),
        (torchvision.vit_b_16, torchvision.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1),
        (torchvision.vit_b_32, torchvision.ViT_B_32_Weights.IMAGENET1K_V1),
        (torchvision.vit_l_16, torchvision.ViT_L_16_Weights.IMAGENET1K_V1),
        (torchvision.vit_l_16, torchvision.ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1),
        (torchvision.vit_l_32, torchvision.ViT_L_32_Weights.IMAGENET1K_V1),
        (torchvision.vit_h_14, torchvision.ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1),
        (torchvision.vit_h_14, torchvision.ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1),
    ],
)
def test_prepares_published_weights_as_documented(make: Any, weights: Any) -> None:
    """Everything that torchvision publishes, but for the SWAG twins that no file tells apart."""
    official: ImageClassification = weights.transforms()
    side = weights.meta["min_size"][0]
    foreign = Foreign("published", shapes(make, image_size=side))
    _, config, _ = read_config(foreign, TORCHVISION, Request("published", overrides={"heads": 16}))
    assert config.image_size == (side, side)
    ours = TORCHVISION.preprocessing(foreign, config)
    assert ours.size == (official.crop_size[0],) * 2 == (side, side)
    assert ours.resize == (official.resize_size[0],) * 2
    assert ours.interpolation == official.interpolation.value
    assert ours.mean == tuple(official.mean)
    assert ours.std == tuple(official.std)


def test_says_what_it_looked_up(tmp_path: Path) -> None:
    b_16 = SMALL | {"hidden_dim": 768, "patch_size": 16, "image_size": 224}
    source = write_safetensors(torchvision.VisionTransformer(**b_16), tmp_path / "b.safetensors")
    opened = open_checkpoint(source, overrides={"heads": 12})
    assert opened.dialect == "torchvision"
    assert any("SWAG" in note for note in opened.notes)


STEM = [torchvision.ConvStemConfig(24, 3, 2), torchvision.ConvStemConfig(32, 3, 2)]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "convolutional stem": ({"conv_stem_configs": STEM}, "convolutional stem"),
    "narrow hidden layer": ({"representation_size": 20}, "20 wide, but ours is as wide .* 48"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refuses_in_one_sentence(kind: str, tmp_path: Path) -> None:
    arguments, sentence = REFUSED[kind]
    peer = torchvision.VisionTransformer(**SMALL | arguments)
    source = write_safetensors(peer, tmp_path / "peer.safetensors")
    with pytest.raises(UserError, match=sentence):
        load(source, heads=4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image_size": (32, 48)}, "square grids only"),
        ({"activation": "swiglu"}, "no gated MLP"),
        ({"prefix_positions": 0}, "a position for every token"),
        ({"registers": 4}, "does not support registers=4"),
        ({"qkv_bias": "none"}, "does not support qkv_bias='none'"),
    ],
)
def test_writes_nothing_that_torchvision_cannot_hold(change: dict[str, Any], sentence: str) -> None:
    small = partial(ViTConfig, dim=48, depth=1, heads=4, mlp_dim=80, patch_size=8)
    assert TORCHVISION.reason_unsupported(small(image_size=(32, 32))) is None
    config = small(**{"image_size": (32, 32)} | change)
    assert sentence in (TORCHVISION.reason_unsupported(config) or "")
