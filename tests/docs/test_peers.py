"""The README's table of peers: what can be tried is tried, with the versions in constraints.txt."""

import inspect
import re
import warnings
from collections.abc import Callable
from importlib.metadata import distribution
from typing import Any

import pytest
import torch

from tests.docs.blocks import read
from vitrail import capture, create, list_models

IMAGE = torch.zeros(1, 3, 32, 32)
SMALL = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}


def table() -> dict[str, dict[str, str]]:
    """row -> column -> cell, without formatting."""
    lines = re.search(r"^\| +\| Vitrail .*?\n\n", read("README.md"), re.MULTILINE | re.DOTALL)
    assert lines is not None
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[0].split("\n")
        if line
    )
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_counts_of_models() -> None:
    import timm
    import torchvision
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

    row = table()["architectures for images"]
    assert row["Vitrail"] == f"{len(list_models())}"
    assert row["timm"] == f"{len(timm.list_models()):,}"
    kinds = len(MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)
    assert row["transformers"] == f"{kinds} types, any size"
    names = torchvision.models.list_models(module=torchvision.models)
    assert row["torchvision"] == f"{len(names)}"


def attention_of_ours() -> str:
    model = create("vit_ti_16", depth=1).eval()
    with capture(model) as found:
        model(torch.zeros(1, 3, 224, 224))
    return "yes" if found["blocks.0.attention"].weights.numel() else "no"


def attention_of_timm() -> str:
    import timm
    from timm.utils import AttentionExtract

    model = timm.create_model("vit_tiny_patch16_224", depth=1).eval()
    try:
        found = AttentionExtract(model)(torch.zeros(1, 3, 224, 224))
    except RuntimeError:
        return "no: error"
    return "yes" if found else "no: empty"


def attention_of_transformers() -> str:
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(**SMALL, intermediate_size=48, image_size=32)).eval()
    found = model(IMAGE, output_attentions=True).attentions
    return "yes" if found and found[0] is not None else "no: none given"


def attention_of_torchvision() -> str:
    from torchvision.models import vision_transformer

    source = inspect.getsource(vision_transformer.EncoderBlock)
    return "no" if "need_weights=False" in source else "yes"


def attention_of_vit_pytorch() -> str:
    from vit_pytorch import ViT
    from vit_pytorch.recorder import Recorder

    model = ViT(
        image_size=32, patch_size=8, num_classes=3, dim=24, depth=1, heads=3, mlp_dim=48
    ).eval()
    _, found = Recorder(model)(IMAGE)
    return "plain attention" if found.numel() else "no"


def test_attention_with_the_default_kernel() -> None:
    row = table()["attention maps with the default kernel"]
    tried: dict[str, Callable[[], str]] = {
        "Vitrail": attention_of_ours,
        "timm": attention_of_timm,
        "transformers": attention_of_transformers,
        "torchvision": attention_of_torchvision,
        "vit-pytorch": attention_of_vit_pytorch,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert {name: row[name] for name in tried} == {name: one() for name, one in tried.items()}


def test_image_sides_of_torchvision() -> None:
    from torchvision.models import VisionTransformer

    assert table()["images that are not square"]["torchvision"] == "CNNs alone"
    assert inspect.signature(VisionTransformer).parameters["image_size"].annotation is int
    model = VisionTransformer(32, 8, 1, 3, 24, 48)
    with pytest.raises(AssertionError):
        model(torch.zeros(1, 3, 32, 64))


@pytest.mark.parametrize(
    ("package", "column"),
    [("vitrail", "Vitrail"), ("timm", "timm"), ("transformers", "transformers"),
     ("torchvision", "torchvision"), ("vit-pytorch", "vit-pytorch"), ("captum", "captum")],
)  # fmt: skip
def test_commands_that_are_installed(package: str, column: str) -> None:
    scripts = [
        one.name for one in distribution(package).entry_points if one.group == "console_scripts"
    ]
    cell = table()["a command that trains"][column]
    if column == "Vitrail":
        assert scripts == ["vitrail"]
    elif column == "transformers":
        assert "transformers" in scripts
        assert cell == "an example script"
    else:
        assert not [name for name in scripts if package in name], scripts
        assert cell != "yes"


def test_masked_patch_prediction_of_vit_pytorch() -> None:
    from vit_pytorch import ViT
    from vit_pytorch.mpp import MPP

    assert table()["masked patch prediction, as in the ViT paper"]["vit-pytorch"] == "raises"
    model: Any = ViT(
        image_size=32, patch_size=8, num_classes=3, dim=24, depth=1, heads=3, mlp_dim=48
    )
    trainer: Any = MPP(transformer=model, patch_size=8, dim=24)
    with pytest.raises(Exception, match=r"\w"):
        trainer(torch.rand(1, 3, 32, 32))


def test_measures_of_captum() -> None:
    from captum import metrics

    assert table()["a test of what a map is worth"]["captum"] == "two measures"
    assert {name for name in metrics.__all__ if "decorator" not in name} == {
        "infidelity",
        "sensitivity_max",
    }
