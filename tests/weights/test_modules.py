"""A module of another library, in memory, becomes one of ours that computes the same."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from tests.models.kinds import SMALL as OURS
from tests.parity.compare import shaken
from torch import Tensor, nn
from torch.nn.utils import prune
from torchvision.models import VisionTransformer as TorchvisionViT
from torchvision.models.swin_transformer import SwinTransformer as TorchvisionSwin

from vitrail import UserError, load
from vitrail.explanation.methods import METHODS, explain_tensor
from vitrail.models.vit import ViT

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 5}
TIMM_SWIN: dict[str, Any] = {
    "img_size": 64, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4,
    "num_classes": 5,
}  # fmt: skip


def timm_vit(**changes: Any) -> nn.Module:
    arguments = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return timm.create_model("vit_base_patch16_224", num_classes=5, **arguments | changes)


def timm_swin() -> nn.Module:
    return timm.create_model("swin_tiny_patch4_window7_224", **TIMM_SWIN)


def timm_swinv2() -> nn.Module:
    return timm.create_model("swinv2_tiny_window8_256", **TIMM_SWIN)


def hf_vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, intermediate_size=64, **SMALL
    )
    return transformers.ViTForImageClassification(config)


def hf_deit() -> nn.Module:
    config = transformers.DeiTConfig(
        image_size=32, patch_size=8, hidden_size=32, intermediate_size=64, **SMALL
    )
    return transformers.DeiTForImageClassification(config)


def hf_swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )
    return transformers.SwinForImageClassification(config)


def torchvision_vit() -> nn.Module:
    return TorchvisionViT(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        num_classes=5,
    )


def torchvision_swin() -> nn.Module:
    return TorchvisionSwin(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        num_classes=5,
    )


MODULES = {
    "timm ViT": timm_vit,
    "timm ViT, mean": lambda: timm_vit(global_pool="avg", class_token=False),
    "timm ViT, registers": lambda: timm_vit(reg_tokens=2, no_embed_class=True),
    "timm ViT, quick GELU": lambda: timm_vit(act_layer="quick_gelu"),
    "timm ViT, tanh GELU": lambda: timm_vit(act_layer="gelu_tanh"),
    "timm ViT, LayerScale": lambda: timm_vit(init_values=0.1),
    "timm BEiT": lambda: timm.create_model(
        "beit_base_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4
    ),
    "timm Swin": timm_swin,
    "timm Swin V2": timm_swinv2,
    "transformers ViT": hf_vit,
    "transformers DeiT": hf_deit,
    "transformers Swin": hf_swin,
    "torchvision ViT": torchvision_vit,
    "torchvision Swin": torchvision_swin,
}


# whole published models, because timm makes some in no other size; the others are narrowed
NARROW = {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 64}
PUBLISHED: dict[str, dict[str, Any]] = {
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "resnet18": {},
    "mobilenetv2_035": {},
    "coatnet_nano_rw_224": {
        "stem_width": (8, 16), "embed_dim": (16, 32, 64, 96), "depths": (1, 1, 1, 1),
    },
    "vit_tiny_r_s16_p8_224": {"depth": 2, "img_size": 64},
    "deit_tiny_distilled_patch16_224": NARROW,
    "vit_base_patch32_clip_quickgelu_224": NARROW,
}  # fmt: skip


def logits(module: nn.Module, image: Tensor) -> Tensor:
    answer = module(image)
    return getattr(answer, "logits", answer)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODULES)
def test_it_computes_the_same(name: str) -> None:
    torch.manual_seed(0)
    module = shaken(MODULES[name]())
    before = copy.deepcopy(module.state_dict())
    model = load(module)
    image = torch.randn(2, 3, *model.config.image_size, dtype=torch.float64)
    torch.testing.assert_close(model(image), logits(module, image), rtol=0, atol=1e-9)
    assert model.passport.origin.source.endswith(type(module).__name__)
    assert not model.training
    # a copy: neither knows of the other
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[key])


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_of_timm(name: str) -> None:
    module = shaken(timm.create_model(name, num_classes=5, **PUBLISHED[name]))
    model = load(module)
    size = (
        (64, 64) if name.startswith(("mobile", "resnet")) else model.config.image_size
    )  # takes any
    image = torch.randn(1, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(model(image), module(image), rtol=0, atol=1e-8)


def test_a_compiled_module_is_read_as_it_was_before() -> None:
    module = shaken(timm_vit())
    model = load(torch.compile(module))  # type: ignore[arg-type]
    image = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    torch.testing.assert_close(model(image), module(image), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "timm ViT",
        "transformers ViT",
        pytest.param("timm Swin", marks=pytest.mark.slow),
        pytest.param("transformers Swin", marks=pytest.mark.slow),
    ],
)
def test_every_method_explains_it_as_it_is(name: str) -> None:
    module = shaken(MODULES[name]())
    model = load(module)
    image = torch.randn(1, 3, *model.config.image_size, dtype=torch.float64)
    for method in METHODS:
        found = explain_tensor(module, image, method, target=2)
        torch.testing.assert_close(found.map, explain_tensor(model, image, method, target=2).map)
        assert found.map.isfinite().all()


def test_a_module_that_trains_goes_on_training() -> None:
    module = timm_vit(drop_path_rate=0.5).train()
    nn.init.normal_(module.get_parameter("head.weight"))
    model = load(module)
    assert module.training
    assert not model.training
    assert next(model.parameters()).dtype is torch.float32


def test_one_of_ours_is_copied_and_resized() -> None:
    torch.manual_seed(0)
    model = shaken(ViT(OURS))
    copied = load(model)
    image = torch.randn(1, OURS.channels, *OURS.image_size, dtype=torch.float64)
    assert copied is not model
    assert torch.equal(copied(image), model(image))
    height, width = OURS.image_size
    larger = load(model, image_size=(2 * height, width))
    assert larger.passport.origin.changes[0].startswith("positions resized")
    assert model.config.image_size == OURS.image_size


def test_changes_come_after_the_weights_are_understood() -> None:
    model = load(timm_vit(), image_size=(64, 48), num_classes=2)
    assert model.passport.preprocessing.size == (64, 48)
    assert model(torch.zeros(1, 3, 64, 48)).shape == (1, 2)


def test_what_computes_something_else_is_refused() -> None:
    """The same tensors, and an activation that none of them tells."""
    module = shaken(timm_vit())
    for block in module.get_submodule("blocks").children():
        block.get_submodule("mlp").act = nn.SiLU()
    with pytest.raises(UserError, match="computes something that no tensor shows"):
        load(module)


def test_what_its_library_would_not_compute_is_adopted_where_ours_does() -> None:
    module = shaken(timm_vit())
    for block in module.get_submodule("blocks").children():
        block.get_submodule("mlp").act = nn.ReLU()
    image = torch.randn(1, 3, 32, 48, dtype=torch.float64)
    model = load(module)
    assert model.config.activation == "relu"
    torch.testing.assert_close(model(image), module.eval()(image), rtol=1e-9, atol=1e-9)


def test_what_is_no_classifier_or_no_transformer_is_refused() -> None:
    with pytest.raises(UserError, match="in none of the known dialects"):
        load(nn.Sequential(nn.Linear(2, 2)))
    config = transformers.SwinConfig(image_size=64, embed_dim=16, depths=[2], num_heads=[2])
    with pytest.raises(UserError, match="give a model with the head"):
        load(transformers.SwinForMaskedImageModeling(config))


@pytest.mark.parametrize("kind", ["ViTMAEForPreTraining", "ViTMAEModel"])
def test_a_masked_autoencoder_is_its_encoder_as_in_its_file(kind: str, tmp_path: Path) -> None:
    decoder = {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 1}
    widths = {"decoder_hidden_size": 32, "decoder_intermediate_size": 64, "hidden_size": 32}
    config = transformers.ViTMAEConfig(
        image_size=32, patch_size=8, mask_ratio=0.75, **decoder, **widths, **SMALL
    )
    module: Any = shaken(getattr(transformers, kind)(config)).double()
    ours = load(module)
    assert module.config.mask_ratio == 0.75, "the module is left as it was"
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
    module.config.mask_ratio = 0.0
    order = torch.arange(16).expand(2, -1)  # every patch in its place
    theirs = module.base_model(image, noise=order).last_hidden_state
    torch.testing.assert_close(ours.encode(image), theirs, rtol=0, atol=1e-9)
    module.save_pretrained(tmp_path)
    filed = load(tmp_path).double()
    assert torch.equal(filed.encode(image), ours.encode(image))


def test_a_model_without_a_head_is_held_against_its_tokens() -> None:
    config = transformers.ViTConfig(image_size=32, patch_size=8, hidden_size=32, **SMALL)
    module = shaken(transformers.ViTModel(config, add_pooling_layer=False))
    model = load(module)
    image = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(
        model.encode(image), module(image).last_hidden_state, rtol=0, atol=1e-9
    )
    assert explain_tensor(module, image, "rollout").map.shape == (1, 4, 4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entry", ["vit_base_patch16_224", "vit_base_patch16_clip_224"])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_the_architecture_decides_eps(entry: str, pre_norm: bool, tmp_path: Path) -> None:
    arguments = {"img_size": 32, "embed_dim": 32, "depth": 1, "num_heads": 2, "pre_norm": pre_norm}
    module = timm.create_model(entry, num_classes=5, **arguments).eval()
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": entry, "num_classes": 5, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config))
    eps = module.get_submodule("norm").eps
    assert load(tmp_path).config.norm_eps == load(module).config.norm_eps == eps


def test_a_bare_file_with_a_norm_before_the_blocks_tells_the_eps_it_takes(tmp_path: Path) -> None:
    module = timm_vit(pre_norm=True)
    save_file(module.state_dict(), tmp_path / "x.safetensors")
    model = load(tmp_path / "x.safetensors", heads=4, grid=(4, 6))
    assert any("norm_eps 1e-05" in note for note in model.passport.origin.changes)
    assert load(tmp_path / "x.safetensors", heads=4, grid=(4, 6), norm_eps=1e-6).config.norm_eps


def test_another_eps_is_read_from_the_module() -> None:
    """At a scale where float32 and a loose tolerance would not show it."""
    module = shaken(timm_vit(norm_layer=partial(nn.LayerNorm, eps=3e-4))).float()
    model = load(module)
    image = torch.randn(1, 3, 32, 48)
    torch.testing.assert_close(model(image), module(image), rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "precision", [torch.float16, pytest.param(torch.float32, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_any_precision_are_accepted(name: str, precision: torch.dtype) -> None:
    module = shaken(MODULES[name]()).to(precision)
    assert next(load(module).parameters()).dtype is precision


def test_a_slight_difference_is_refused() -> None:
    module = shaken(timm_vit()).float()
    # in one block alone: a kind of GELU that all blocks have is read from them
    module.get_submodule("blocks.0.mlp").act = nn.GELU(approximate="tanh")
    with pytest.raises(UserError, match="computes something that no tensor shows"):
        load(module)


@pytest.mark.parametrize("make", [lambda: ViT(OURS), timm_vit])
def test_what_is_around_a_module_is_taken_off(make: Any) -> None:
    module = make()
    assert load(nn.DataParallel(module)).config == load(module).config


@pytest.mark.parametrize("make", [lambda: ViT(OURS), timm_vit])
def test_a_pruned_module_is_one_sentence(make: Any) -> None:
    module = make()
    prune.l1_unstructured(module.get_submodule("blocks.0.mlp.fc1"), "weight", amount=0.5)
    with pytest.raises(UserError, match="is pruned by a mask: make that permanent with"):
        load(module)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [lambda: ViT(OURS), timm_vit, hf_vit])
def test_frozen_parameters_stay_frozen(make: Any) -> None:
    module = make().requires_grad_(False)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(("head", "classifier")))
    frozen = {k for k, p in load(module).named_parameters() if not p.requires_grad}
    names = {k for k, _ in load(module).named_parameters() if not k.startswith("head")}
    assert frozen == names
    module.requires_grad_(False)
    new = load(module, num_classes=7)
    assert {
        k for k, p in new.named_parameters() if p.requires_grad
    } == new.state_dict().keys() - names


def test_mixed_precision_is_noted_and_loses_nothing() -> None:
    model = ViT(OURS).half()
    model.get_submodule("head").float()
    copied = load(model)
    assert {p.dtype for p in copied.parameters()} == {torch.float32}
    assert copied.passport.origin.changes[-1] == (
        "all in float32: the module has float16 and float32"
    )
