"""The small models that claims compare: a ViT, a hybrid and convolutional networks."""

from typing import Any

from vitrail.tasks.claims.claim import Setting
from vitrail.tasks.compare_plan import ModelChoice

PATCH = 4
MLP_RATIO = 2


def vit_fields(setting: Setting, **fields: Any) -> dict[str, Any]:
    """A plain ViT with patches of 4 pixels, whose classifier reads the mean of the patches."""
    scale = setting.scale
    dim = fields.get("dim", scale.dim)
    return {
        "image_size": setting.side,
        "patch_size": PATCH,
        "dim": dim,
        "depth": scale.depth,
        "heads": scale.heads,
        "mlp_dim": MLP_RATIO * dim,
        "pool": "mean",
        "class_token": False,
        "channels": setting.channels,
    } | fields


def vit(
    setting: Setting, name: str = "ViT", start: str | None = None, **fields: Any
) -> ModelChoice:
    return ModelChoice(
        name=name, model="vit_ti_16", fields=vit_fields(setting, **fields), start=start
    )


def hybrid(setting: Setting, name: str = "hybrid", **fields: Any) -> ModelChoice:
    """A ViT whose patches are cells of the map of a small ResNet stem, as many as those of `vit`;
    one block less makes up for the stem."""
    shape: dict[str, Any] = {
        "stem": stem(setting.scale.dim // 4),
        "patch_size": 1,
        "depth": setting.scale.depth - 1,
    }
    return vit(setting, name, **(shape | fields))


def stem(width: int) -> dict[str, Any]:
    """One bottleneck block after the root: a cell for every 4 x 4 pixels.

    >>> stem(8)
    {'blocks': [1], 'width': 8, 'groups': 2}
    """
    return {"blocks": [1], "width": width, "groups": max(width // 4, 1)}


def resnet(setting: Setting, name: str = "ResNet", **fields: Any) -> ModelChoice:
    """ResNet-18 with fewer channels, and a first convolution that keeps the size of images."""
    shape = {
        "image_size": setting.side,
        "width": setting.scale.dim // 8,
        "stem": "3x3",
        "channels": setting.channels,
    }
    return ModelChoice(name=name, model="resnet18", fields=shape | fields)
