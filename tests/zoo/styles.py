"""The ten styles: which class of which file, and what it computes beside the paper's ViT."""

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Style:
    """`config`: the fields of ViTConfig that its sizes and choices come to."""

    file: str
    class_name: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.file}.py"

    @property
    def spec(self) -> str:
        return f"{self.path}:{self.class_name}"

    def build(self, seed: int = 0, lively: bool = True) -> nn.Module:
        """The model in eval mode; `lively`: no parameter is left at a zero or a one."""
        torch.manual_seed(seed)
        module = importlib.import_module(f"tests.zoo.{self.file}")
        model: nn.Module = getattr(module, self.class_name)().eval()
        if lively:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
        return model


def sizes(dim: int, depth: int, heads: int, mlp_dim: int, num_classes: int = 10) -> dict[str, Any]:
    return {
        "dim": dim,
        "depth": depth,
        "heads": heads,
        "mlp_dim": mlp_dim,
        "num_classes": num_classes,
        "patch_size": 8,
        "image_size": (32, 32),
    }


TORCH_EPS = {"norm_eps": 1e-5}
STYLES = {
    style.file: style
    for style in (
        Style(
            "einops_blocks",
            "ViT",
            sizes(64, 2, 4, 128) | TORCH_EPS | {"qkv_bias": "none"},
        ),
        Style("multihead_attention", "VisionTransformer", sizes(48, 3, 3, 96, 7)),
        Style("encoder_pre_norm", "ViTClassifier", sizes(48, 2, 4, 144, 5) | TORCH_EPS),
        Style(
            "encoder_post_norm",
            "ImageTransformer",
            sizes(32, 2, 4, 64)
            | TORCH_EPS
            | {"norm_placement": "post", "activation": "relu", "final_norm": "none"},
        ),
        Style(
            "separate_qkv",
            "ViTForImageClassification",
            sizes(48, 2, 4, 192) | {"patch_size": 4, "norm_eps": 1e-12},
        ),
        Style("fused_qkv", "VisionTransformer", sizes(64, 3, 4, 256)),
        Style("heads_in_a_list", "MyViT", sizes(36, 2, 3, 72) | TORCH_EPS),
        Style(
            "mean_pooling",
            "PatchTransformer",
            sizes(40, 2, 5, 80)
            | TORCH_EPS
            | {"class_token": False, "pool": "mean", "final_norm": "pooled"},
        ),
        Style(
            "one_sequential",
            "ViT",
            sizes(32, 2, 2, 96, 4) | TORCH_EPS | {"qkv_bias": "none", "prefix_positions": 0},
        ),
        Style(
            "korean_tutorial",
            "ViT",
            sizes(48, 2, 6, 96) | TORCH_EPS | {"pool": "all", "final_norm": "pooled"},
        ),
    )
}
