"""Small models of every kind that ViT can be, and what tests of all families feed and build."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.models.catalogue import build
from vitrail.models.resnet import ResNetConfig
from vitrail.models.vit import ViTConfig

SMALL = ViTConfig(
    dim=32, depth=2, heads=4, mlp_dim=64, patch_size=8, image_size=(32, 48), num_classes=5
)

KINDS = {
    "plain": SMALL,
    "pre-training head": replace(SMALL, head="pretrain"),
    "no head": replace(SMALL, num_classes=0),
    "mean pooling": replace(SMALL, pool="mean", class_token=False),
    "every token pooled": replace(SMALL, pool="all"),
    "class and mean": replace(SMALL, pool="cls+mean"),
    "no positions": replace(SMALL, positions="none"),
    "sine positions": replace(SMALL, positions="sincos2d"),
    "2-D positions": replace(SMALL, positions="learned2d"),
    "relative positions": replace(SMALL, positions="relative"),
    "registers": replace(SMALL, registers=2, layer_scale=0.1),
    "distilled": replace(SMALL, distilled=True),
    "hybrid": replace(SMALL, stem=ResNetConfig(blocks=(1, 1), width=32), patch_size=1),
    "hybrid, larger patches": replace(SMALL, stem=ResNetConfig(blocks=(), width=32), patch_size=2),
    "wide heads, no bias": replace(SMALL, dim_head=16, qkv_bias="none"),
    "no key bias": replace(SMALL, qkv_bias="qv"),
    "normed patches": replace(SMALL, patch_norm=True, norm_eps=1e-5),
    "clip": replace(
        SMALL,
        patch_bias=False,
        embed_norm=True,
        final_norm="pooled",
        activation="quick_gelu",
        head_bias=False,
    ),
    "gated": replace(SMALL, activation="swiglu", final_norm="none"),
    "norm after adding": replace(SMALL, norm_placement="post", final_norm="none", layer_scale=0.1),
    "rectangular patches": replace(SMALL, patch_size=(8, 4), activation="relu"),
    "1-D sine positions": replace(SMALL, positions="sincos1d", registers=1),
    "thirteen channels, tanh": replace(SMALL, channels=13, activation="gelu_tanh"),
}


def random_images(config: Any, batch: int = 2) -> Tensor:
    """Normal noise of the size and channels that this config reads, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, config.channels, *config.image_size, generator=generator)


def perturbed(config: Any) -> Any:
    """A model with noise added to every parameter, so that no zero hides a difference."""
    torch.manual_seed(0)
    model = build(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model
