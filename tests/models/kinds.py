"""Small models of every kind the family can be, for tests that must hold for each."""

from dataclasses import replace

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
    "thirteen channels, tanh": replace(SMALL, channels=13, activation="gelu_tanh"),
}
