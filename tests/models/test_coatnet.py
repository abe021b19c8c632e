"""The CoAtNet family: published sizes, every kind of model, and what a person hears when a config
does not fit."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models.kinds import perturbed, random_images
from vitrail import UserError, capture, create, list_models
from vitrail.layers.attention import Attend
from vitrail.layers.drop import DropPath
from vitrail.models import coatnet_rw
from vitrail.models.catalogue import find, variant_of
from vitrail.models.coatnet import VARIANTS, CoAtNet, CoAtNetConfig, MBConv, TransformerBlock
from vitrail.models.measure import measure

EVERY = {**VARIANTS, **coatnet_rw.VARIANTS}
SMALL = CoAtNetConfig(
    stem=(8, 16),
    dims=(16, 32, 64, 96),
    depths=(1, 2, 2, 1),
    image_size=(64, 96),
    num_classes=5,
)
RW = replace(
    EVERY["coatnet_0_rw"].config,
    **{
        name: getattr(SMALL, name)
        for name in ("stem", "dims", "depths", "image_size", "num_classes")
    },
)

KINDS_COATNET = {
    "paper": SMALL,
    "linear head": replace(SMALL, head="linear"),
    "no head": replace(SMALL, num_classes=0),
    "mixed third stage": replace(
        SMALL,
        dims=(16, 16, 24, 64, 96),
        depths=(1, 1, 1, 2, 1),
        kinds="CCCTT",
        strides=(2, 2, 2, 1, 2),
    ),
    "attention early": replace(SMALL, stem=(8, 32), dims=(32, 32, 64, 96), kinds="CTTT"),
    "one channel": replace(SMALL, channels=1, dim_head=16),
    "rw": RW,
    "rw, pooled by maxima": replace(RW, pooling="max", bias_hidden=12, squeeze_activation="silu"),
    "rw, late squeeze": replace(
        RW, early_squeeze=False, layer_scale=0.1, downsampling="convolution"
    ),
}


def test_sizes_are_the_papers() -> None:
    millions = {"0": 25, "1": 42, "2": 75, "3": 168, "4": 275, "5": 688, "6": 1470, "7": 2440}
    for number, size in millions.items():
        assert VARIANTS[f"coatnet_{number}"].params / 1e6 == pytest.approx(size, rel=0.007)


@pytest.mark.slow
def test_multiply_adds_are_the_papers() -> None:
    # table 9, with strided depthwise convolutions; table 5, at 512 pixels
    giga = {("coatnet_0", 224): 4.6, ("coatnet_1", 224): 8.8, ("coatnet_2", 224): 16.6}
    giga |= {("coatnet_6", 512): 1521, ("coatnet_7", 512): 2586}
    for (name, side), size in giga.items():
        config = replace(VARIANTS[name].config, image_size=(side, side))
        assert measure(config).macs / 1e9 == pytest.approx(size, rel=0.02)


def test_names() -> None:
    assert {f"coatnet_{number}" for number in range(8)} <= set(list_models("coatnet_*"))
    assert find("coatnet_0_224") == VARIANTS["coatnet_0"].config
    assert find("coatnet_rmlp_2_rw_384.sw_in12k_ft_in1k").image_size == (384, 384)
    for name in EVERY:
        assert variant_of(replace(find(name), num_classes=3)) == name.removesuffix("_384")
    assert create("coatnet_pico_rw", image_size=32, num_classes=2).config.grid == (2, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS_COATNET)
def test_gives_logits_features_and_cells(kind: str) -> None:
    config = KINDS_COATNET[kind]
    model, image = perturbed(config).eval(), random_images(config)
    assert model.encode(image).shape == (2, 96, 2, 3)
    assert model.features(image).shape == (2, 96)
    assert model(image).shape == (2, config.num_classes or 96)
    assert list(model.blocks_by_depth()) == [
        f"stages.{i}.{j}" for i, depth in enumerate(config.depths) for j in range(depth)
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS_COATNET)
def test_every_attention_owns_its_layout_and_is_captured(kind: str) -> None:
    config = KINDS_COATNET[kind]
    model, image = perturbed(config).eval(), random_images(config)
    before = model(image)
    with capture(model) as maps:
        inside = model(image)
    assert torch.equal(before, inside)
    stages = [i for i, letter in enumerate(config.kinds) if letter == "T"]
    assert len(maps) == sum(config.depths[i] for i in stages)
    for name, one in maps.items():
        layout = config.layouts[int(name.split(".")[1])]
        assert one.layout == layout
        assert layout.grid == tuple(side // layout.strides[0] for side in config.image_size)
        torch.testing.assert_close(one.weights.sum(-1), torch.ones_like(one.weights.sum(-1)))
    first = next(m for m in model.modules() if isinstance(m, Attend))
    assert config.tokens == first.layout.tokens == math.prod(config.grid)


# tests/parity/test_every_family.py does the same, and more, for the paper's
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixed third stage", "rw, pooled by maxima", "rw, late squeeze"])
def test_compiles_and_exports(kind: str) -> None:
    config = KINDS_COATNET[kind]
    model, image = perturbed(config).eval(), random_images(config)
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (image,), dynamic_shapes=({0: batch},))
    other = random_images(config, batch=5)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS_COATNET)
def test_gradient_checkpointing_from_outside_changes_no_gradient(kind: str) -> None:
    config = replace(KINDS_COATNET[kind], dropout=0.1, drop_path=0.3)
    model, image = perturbed(config).train(), random_images(config, batch=4)

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        loss = model(image).square().sum()
        return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))

    plain = gradients()
    for block in model.blocks_by_depth().values():
        inner = block.forward
        block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
    for one, other in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_every_parameter_takes_part() -> None:
    for kind, config in KINDS_COATNET.items():
        model = perturbed(config)
        model(random_images(config)).square().sum().backward()
        idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert not idle, (kind, idle)


def test_stochastic_depth_rises_over_all_stages_and_keeps_evaluation() -> None:
    config = replace(SMALL, drop_path=0.5)
    model = perturbed(config)
    rates = [module.rate for module in model.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    image = random_images(config)
    assert torch.equal(model.eval()(image), model(image))
    model.train()(image)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_a_new_head_says_nothing() -> None:
    for kind in ("paper", "linear head", "rw"):
        config = KINDS_COATNET[kind]
        assert not CoAtNet(config).eval()(random_images(config)).any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS_COATNET)
def test_init_leaves_nothing_as_it_was(kind: str) -> None:
    models = [CoAtNet(KINDS_COATNET[kind]) for _ in range(2)]
    for value, one in enumerate(models, 1):
        for tensor in one.state_dict().values():
            nn.init.constant_(tensor, value)
        torch.manual_seed(7)
        one.init_weights()
    for name, tensor in models[0].state_dict().items():
        assert torch.equal(tensor, models[1].state_dict()[name]), name


def test_init_is_the_table() -> None:
    torch.manual_seed(0)
    config = replace(EVERY["coatnet_3_rw"].config, depths=(1, 1, 1, 1), image_size=(64, 64))
    model = CoAtNet(config)
    conv, block = model.get_submodule("stages.1.0"), model.get_submodule("stages.2.0")
    assert isinstance(conv, MBConv)
    assert isinstance(block, TransformerBlock)
    stds = {
        "stem.conv2.weight": math.sqrt(2 / (192 * 9)),
        "stages.1.0.branch.expand.weight": math.sqrt(2 / 768),
        "stages.1.0.branch.depthwise.weight": math.sqrt(2 / 9),
        "stages.1.0.branch.squeeze.fc1.weight": math.sqrt(2 / 192),
        "stages.1.0.shortcut.project.weight": math.sqrt(2 / 384),
        "stages.2.0.shortcut.project.weight": math.sqrt(2 / (384 + 768)),
        "stages.2.0.attention.qkv.weight": math.sqrt(2 / (384 + 384)),
        "stages.2.0.mlp.fc1.weight": math.sqrt(2 / (768 + 3072)),
        "stages.2.0.attention.bias.table": 0.02,
        "stages.2.0.mlp.fc1.bias": 1e-6,
    }
    for name, std in stds.items():
        weight = model.get_parameter(name)
        assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(weight.numel())), name
    assert (model.get_parameter("stages.2.0.scale1.factor") == 1e-6).all()
    assert not model.get_parameter("stages.2.0.attention.qkv.bias").any()
    assert not model.get_parameter("stages.1.0.branch.squeeze.fc1.bias").any()


@pytest.mark.parametrize("side", [63, 64])
def test_the_stem_rounds_an_odd_side_up(side: int) -> None:
    model = perturbed(replace(SMALL, image_size=(side, 96))).eval()
    assert model.encode(torch.zeros(1, 3, side, 96)).shape == (1, 96, 2, 3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image_size": (225, 224)}, "image side 225 is not a multiple of 32: use 224 or 256"),
        ({"image_size": (30, 32)}, "image side 30 is not a multiple of 32: use 32 or 64"),
        ({"dim_head": 40}, "width 64 must be a multiple of dim_head 40"),
        ({"kinds": "CCXT"}, "must be up to 8 letters, C and T"),
        ({"kinds": "CCCC"}, "must be up to 8 letters, C and T"),
        ({"image_size": (16384, 16384), "depths": (1, 1, 99, 1)}, "use smaller images"),
        (
            {"widening": "late", "dims": (16, 24, 64, 96)},
            "width 24 must be a multiple of dim_head 32",
        ),
        ({"kinds": "CCT"}, r"dims must have one value for each of 'CCT', got"),
        ({"depths": (1, 1, 1)}, r"depths must have one value for each of 'CCTT', got \(1, 1, 1\)"),
        ({"strides": (2, 2)}, "steps must have one value for each"),
        ({"depths": (1, 0, 1, 1)}, "must be at least 1"),
        ({"stem": (0, 8)}, "must be at least 1"),
        ({"squeeze": 0}, "squeeze must be at least 1, got 0"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0, got 0.0"),
        ({"drop_path": 1.0}, r"must be in \[0, 1\), got"),
        ({"image_size": (0, 32)}, "pixels a side, got"),
    ],
)
def test_a_config_that_does_not_fit_says_why(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(SMALL, **changes)


def test_an_image_of_another_size_says_what_fits() -> None:
    with pytest.raises(UserError, match=r"this model reads \(batch, 3, 64, 96\)"):
        CoAtNet(SMALL)(torch.zeros(1, 3, 64, 64))
