"""The ViT family: published sizes, every kind of model, and what a person hears when a config does
not fit."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.models.kinds import KINDS, SMALL, perturbed, random_images
from vitrail import UserError, create
from vitrail.core.without_init import without_init
from vitrail.layers.drop import DropPath
from vitrail.models.catalogue import FAMILIES, build_meta, change, find
from vitrail.models.measure import count, measure
from vitrail.models.vit import ViT


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "changes", "params"),
    [
        ("vit_ti_16", {"num_classes": 0}, 5_524_416),
        ("vit_s_32", {"num_classes": 0}, 22_493_952),
        ("vit_s_16", {"num_classes": 0}, 21_665_664),
        ("vit_s_8", {"num_classes": 0}, 21_670_272),
        ("vit_b_32", {"num_classes": 0}, 87_455_232),
        ("vit_b_16", {"num_classes": 0}, 85_798_656),
        ("vit_b_8", {"num_classes": 0}, 85_807_872),
        ("vit_l_32", {"num_classes": 0}, 305_510_400),
        ("vit_l_16", {"num_classes": 0}, 303_301_632),
        ("vit_l_14", {"num_classes": 0}, 303_178_752),
        ("vit_h_14", {"num_classes": 0}, 630_764_800),
        ("vit_g_14", {"num_classes": 0}, 1_011_202_432),
        ("vit_G_14", {"num_classes": 0}, 1_842_775_680),
        ("vit_b_16", {"image_size": 384}, 86_859_496),
        ("vit_b_32", {"image_size": 384}, 88_297_192),
        ("vit_l_16", {"image_size": 384}, 304_715_752),
        ("vit_l_16", {"image_size": 512}, 305_174_504),
        ("vit_h_14", {"image_size": 518}, 633_470_440),
        ("vit_b_16", {"head": "pretrain"}, 87_158_248),
        ("vit_b_16", {"num_classes": 21_843}, 102_595_923),
        ("vit_b_16", {"num_classes": 21_843, "head": "pretrain"}, 103_186_515),
        ("vit_b_16", {"qkv_bias": "none"}, 86_540_008),
        # vit-pytorch's "B/16": no qkv bias, two norms in the patch embedding
        ("vit_b_16", {"qkv_bias": "none", "patch_norm": True}, 86_543_080),
        ("vit_h_14", {"head": "pretrain"}, 633_685_480),
        ("vit_r50_b_16", {"image_size": 384}, 98_950_952),
        ("vit_r50_l_32", {"image_size": 384}, 329_092_136),
        ("deit_b_16_distilled", {"image_size": 384}, 87_630_032),
        # timm folds the class token's position into the token itself
        ("dinov2_s_14_reg", {"prefix_positions": 0}, 22_057_344),
        ("dinov2_b_14_reg", {"prefix_positions": 0}, 86_582_016),
    ],
)
def test_published_changes_have_the_published_parameters(
    name: str, changes: dict[str, object], params: int
) -> None:
    with without_init():
        assert count(create(name, **changes)) == params


def test_huge_with_the_pre_training_head_part_by_part() -> None:
    model = build_meta(change(find("vit_h_14"), {"head": "pretrain"}))
    assert count(model.get_submodule("patches")) == 753_920
    assert count(model.get_submodule("blocks.0")) == 19_677_440
    assert count(model.get_submodule("norm")) == 2_560
    assert count(model.get_submodule("head.hidden")) == 1_639_680
    assert count(model.get_submodule("head.classes")) == 1_281_000


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "changes", "giga"),
    [
        ("vit_b_16", {}, 17.564),
        ("vit_b_32", {}, 4.409),
        ("vit_l_16", {}, 61.555),
        ("vit_l_32", {}, 15.378),
        ("vit_h_14", {}, 167.295),
        ("vit_b_16", {"image_size": (384, 384)}, 55.484),
    ],
)
def test_multiply_adds_are_torchvisions(
    name: str, changes: dict[str, tuple[int, int]], giga: float
) -> None:
    """Those of the table are measured in tests/models/test_variants.py."""
    row = FAMILIES["vit"].variants[name]
    macs = measure(replace(row.config, **changes)).macs if changes else row.macs
    assert macs / 1e9 == pytest.approx(giga, abs=5e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gives_logits_features_and_tokens(kind: str) -> None:
    config = KINDS[kind]
    model = perturbed(config).eval()
    image = random_images(config)
    width = config.dim * (2 if config.pool == "cls+mean" else 1)
    assert model.encode(image).shape == (2, config.layout.tokens, config.dim)
    assert model.features(image).shape == (2, width)
    assert model(image).shape == (2, config.num_classes or width)


@pytest.mark.slow  # tests/parity/test_every_family.py has one of each family
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_in_one_graph(kind: str) -> None:
    model, image = perturbed(KINDS[kind]).eval(), random_images(KINDS[kind])
    # the backend that traces and differentiates everything and then runs torch's own kernels;
    # test_inductor runs the generated code
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_inductor(kind: str) -> None:
    model, image = perturbed(KINDS[kind]).eval(), random_images(KINDS[kind])
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.slow  # tests/parity/test_every_family.py has one of each family
@pytest.mark.parametrize("kind", KINDS)
def test_exports_with_any_batch(kind: str) -> None:
    model, config = perturbed(KINDS[kind]).eval(), KINDS[kind]
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (random_images(config),), dynamic_shapes=({0: batch},))
    other = random_images(config, batch=5)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_in_bfloat16_stays_near(kind: str) -> None:
    model, image = perturbed(KINDS[kind]).eval(), random_images(KINDS[kind])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(image)
    full = model(image)
    assert half.isfinite().all()
    assert (half.float() - full).abs().max() <= 0.05 * full.abs().max().clamp(min=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_from_outside_changes_no_gradient(kind: str) -> None:
    config = replace(KINDS[kind], dropout=0.1, drop_path=0.1)
    model, image = perturbed(config).train(), random_images(config)

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        loss = model(image).square().sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    plain = gradients()
    for block in model.blocks:
        inner = block.forward
        block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
    for one, other in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_goes_round(kind: str) -> None:
    one, other = perturbed(KINDS[kind]).eval(), ViT(KINDS[kind]).eval()
    image = random_images(KINDS[kind])
    assert not torch.equal(one(image), other(image))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(image), other(image))


def test_every_parameter_takes_part() -> None:
    for kind, config in KINDS.items():
        model = perturbed(config)
        model(random_images(config)).square().sum().backward()
        idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert not idle, (kind, idle)


def test_a_distilled_model_answers_with_the_mean_of_its_heads() -> None:
    model = perturbed(KINDS["distilled"]).eval()
    image = random_images(SMALL)
    class_head, distilled_head = model.both_heads(image)
    assert not torch.allclose(class_head, distilled_head)
    torch.testing.assert_close(model(image), (class_head + distilled_head) / 2)
    with pytest.raises(UserError, match="one head"):
        perturbed(SMALL).both_heads(image)


def test_dropout_and_stochastic_depth_act_in_training_alone() -> None:
    model = perturbed(replace(SMALL, dropout=0.3, drop_path=0.3))
    image = random_images(SMALL)
    assert torch.equal(model.eval()(image), model(image))
    assert not torch.equal(model.train()(image), model(image))


def test_stochastic_depth_rises_linearly_and_keeps_the_mean() -> None:
    model = ViT(replace(SMALL, depth=5, drop_path=0.4))
    layers = [module for module in model.modules() if isinstance(module, DropPath)]
    assert [layer.rate for layer in layers] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    torch.manual_seed(0)
    x = layers[-1].train()(torch.zeros(100_000, 1), lambda x: x + 1)
    assert x.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert x.mean().item() == pytest.approx(1, abs=4 * math.sqrt(0.4 / 0.6 / 100_000))


def test_a_new_head_says_nothing() -> None:
    for kind in ("plain", "pre-training head", "distilled"):
        config = KINDS[kind]
        assert not ViT(config).eval()(random_images(config)).any()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image_size": (225, 224)}, "image side 225 is not a multiple of patch 8: use 224 or 232"),
        ({"heads": 5}, "dim must be a multiple of heads, got 32 and 5"),
        ({"class_token": False}, 'pool="cls" needs a class token'),
        ({"distilled": True, "pool": "mean"}, 'pool must be "cls" for a distilled model'),
        ({"prefix_positions": 3}, "prefix_positions is 3 but there are 1 prefix tokens"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"registers": -1}, "registers must be at least 0, got -1"),
        ({"dim_head": 0}, "dim_head"),
        ({"dropout": 1.0}, r"must be in \[0, 1\), got"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0, got 0.0"),
        ({"image_size": (0, 32)}, "pixels a side, got"),
    ],
)
def test_a_config_that_does_not_fit_says_why(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(SMALL, **changes)


def test_an_image_of_another_size_says_what_fits() -> None:
    with pytest.raises(
        UserError, match=r"images are \(1, 3, 32, 32\), this model reads \(batch, 3, 32, 48\)"
    ):
        ViT(SMALL)(torch.zeros(1, 3, 32, 32))


def test_a_branch_is_not_computed_for_samples_that_go_without_it() -> None:
    drop, seen = DropPath(0.5).train(), []

    def branch(x: Tensor) -> Tensor:
        seen.append(len(x))
        return 2 * x

    torch.manual_seed(0)
    x = torch.ones(1000, 3, requires_grad=True)
    y = drop(x, branch)
    taken = (y[:, 0] != 1).sum().item()
    assert seen == [taken]
    assert 400 < taken < 600
    assert set(y.unique().tolist()) == {1.0, 5.0}
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)  # 1 without the branch, 1 + 2 / 0.5 with it


def test_compiled_stochastic_depth_computes_the_same() -> None:
    drop = DropPath(0.5).train()
    x = torch.randn(64, 3)
    torch.manual_seed(1)
    eager = drop(x, torch.tanh)
    torch.manual_seed(1)
    compiled = torch.compile(lambda x: drop(x, torch.tanh), backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(compiled, eager)
    torch._dynamo.reset()
