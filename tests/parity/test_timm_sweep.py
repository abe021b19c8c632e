"""timm's architectures by name: each gives timm's own logits or is refused, nothing else."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import model_entrypoint
from timm.models._hub import save_config_for_hf
from torch import nn

from tests.parity.compare import blank_timm, shaken
from vitrail.core.errors import UserError
from vitrail.core.without_init import without_init
from vitrail.models.model import Model
from vitrail.weights.checkpoint import Checkpoint, build_model, translate
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects import recognise

# One of each kind, and those that have the tensors of another and compute something else.
QUICK = (
    "beit_base_patch16_224",
    "coatnet_0_rw_224",
    "coatnet_rmlp_nano_rw_224",
    "deit3_small_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "flexivit_small",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "swin_s3_small_224",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "test_vit",
    "test_vit2",
    "test_vit3",
    "test_vit4",
    "vit_base_patch16_gap_224",
    "vit_base_patch16_rpn_224",
    "vit_base_patch32_clip_quickgelu_224",
    "vit_base_patch32_siglip_gap_256",
    "vit_dwee_patch16_reg1_gap_256",
    "vit_little_patch16_reg4_gap_256",
    "vit_pwee_patch16_reg1_gap_256",
    "vit_relpos_small_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_rope_ape_224",
    "vit_small_r26_s32_224",
    "vit_wee_patch16_reg1_gap_256",
    "vit_xsmall_patch16_clip_224",
)
REFUSED = {
    "test_vit3", "test_vit4", "vit_base_patch16_rpn_224", "vit_dwee_patch16_reg1_gap_256",
    "vit_pwee_patch16_reg1_gap_256", "vit_relpos_small_patch16_224",
    "vit_small_patch16_rope_ape_224",
}  # fmt: skip
# Modules of timm that have attention over patches or windows.
MODULES = (
    "beit", "cait", "coat", "convit", "crossvit", "davit", "deepseek_vit", "deit",
    "efficientvit_mit", "eva", "gcvit", "gemma4_vit", "hiera", "levit", "maxxvit", "mobilevit",
    "mvitv2", "naflexvit",
    "nest", "pit", "qwen3_vit", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr",
    "tiny_vit", "tnt", "twins", "visformer", "vision_transformer", "vision_transformer_hybrid",
    "vision_transformer_relpos", "vision_transformer_sam", "vitamin", "volo", "xcit",
)  # fmt: skip
DEPTHS: dict[str, dict[str, Any]] = {
    "maxxvit": {"depths": (1, 1, 1, 1)},
    "mobilevit": {},
    "swin_transformer": {"depths": (2, 2, 1, 1)},
    "swin_transformer_v2": {"depths": (2, 2, 1, 1)},
}


def module_of(name: str) -> str:
    return model_entrypoint(name).__module__.rpartition(".")[2]


def small(name: str, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """The architecture with fewer blocks, and on fewer patches where it is a ViT."""
    arguments: dict[str, Any] = dict(DEPTHS.get(module_of(name), {"depth": 1}))
    with without_init() if device == "meta" else nullcontext():
        model = timm.create_model(name, num_classes=5, **arguments)
    return model, arguments


def with_config(model: nn.Module, arguments: dict[str, Any], source: Path) -> dict[str, Any]:
    """The config.json that timm itself writes beside the weights."""
    save_config_for_hf(model, source / "config.json", model_args=arguments or None)
    return {"config.json": json.loads((source / "config.json").read_text())}


def opened(name: str, model: nn.Module, sidecars: dict[str, Any]) -> Checkpoint | UserError:
    foreign = Foreign(name, dict(model.state_dict()), sidecars)
    try:
        return translate(foreign, recognise(foreign), origin=name, overrides={})
    except UserError as error:
        return error


def distance(ours: Model, theirs: nn.Module) -> float:
    """Between the logits for one image of noise, as a share of the largest; patches may leave out
    some of timm's pixels, which ours does not take."""
    height, width = ours.config.image_size
    embed = getattr(theirs, "patch_embed", None)
    size = getattr(embed, "img_size", None) or (height, width)
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, ours.config.channels, *size, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        mine, other = ours(image[..., :height, :width]), theirs(image)
    return float((mine - other).abs().max() / other.abs().max())


def outcome(name: str, source: Path, *, config: bool = True) -> str:
    """refused, equal or different; what is refused by its shapes is not built."""
    try:
        model, arguments = small(name, "meta")
    except (TypeError, ValueError, AssertionError):  # no such argument: no family of ours
        model, arguments = blank_timm(name), {}
    sidecars = with_config(model, arguments, source) if config else {}
    if not config:  # values decide whether positions are sines
        model = small(name, "cpu")[0]
    if isinstance(opened(name, model, sidecars), UserError):
        return "refused"
    peer = shaken(small(name, "cpu")[0] if config else model)
    checkpoint = opened(name, peer, sidecars)
    assert isinstance(checkpoint, Checkpoint)
    ours = build_model(checkpoint, checkpoint.config)
    if distance(ours, peer) < 1e-9:
        return "equal"
    return "noted" if checkpoint.notes and not config else "different"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", QUICK)
def test_an_architecture_is_equal_or_refused(name: str, tmp_path: Path) -> None:
    expected = "refused" if name in REFUSED else "equal"
    assert outcome(name, tmp_path) == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_xsmall_patch16_clip_224", "refused"),  # nothing tells its heads
        ("vit_base_patch16_gap_224", "refused"),  # 12 heads or 16
        ("vit_base_patch16_rpn_224", "refused"),  # post-norm, or plain
        ("vit_base_patch32_clip_quickgelu_224", "noted"),
        ("vit_small_patch16_rope_ape_224", "noted"),
        ("deit_tiny_distilled_patch16_224", "equal"),
    ],
)
def test_without_a_config_what_is_assumed_is_noted(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be read has the width and blocks of ViT-Ti, which tell its heads."""
    tiny = {"depth": 12, "embed_dim": 192, "num_heads": 3}
    arguments = {"depth": 1} if expected == "refused" else tiny
    monkeypatch.setitem(DEPTHS, module_of(name), arguments)
    assert outcome(name, tmp_path, config=False) == expected


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_every_architecture_is_equal_or_refused(module: str, tmp_path: Path) -> None:
    names = [name for name in timm.list_models() if module_of(name) == module]
    found = {name: outcome(name, tmp_path) for name in names}
    counts = {kind: list(found.values()).count(kind) for kind in ("equal", "refused", "different")}
    print(module, counts)
    assert not [name for name, kind in found.items() if kind == "different"]
