"""The table in `ViT.init_weights`, row by row, on enough numbers to tell."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.models.kinds import KINDS, SMALL
from vitrail.models.resnet import Bottleneck, ResNet, ResNetConfig
from vitrail.models.vit import Block, ViT

CONFIG = replace(
    SMALL,
    dim=256,
    mlp_dim=512,
    heads=4,
    registers=8,
    distilled=True,
    layer_scale=1e-4,
    head="pretrain",
    image_size=(128, 128),
)


@pytest.fixture(scope="module")
def model() -> ViT:
    torch.manual_seed(0)
    return ViT(CONFIG)


def uniform(weight: Tensor, bound: float) -> None:
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert abs(weight.mean().item()) < 4 * bound / math.sqrt(3 * weight.numel())


def normal(weight: Tensor, std: float) -> None:
    assert weight.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * weight.numel()))
    assert abs(weight.mean().item()) < 4 * std / math.sqrt(weight.numel())
    assert weight.abs().max() > 2.3 * std  # not truncated


def truncated(weight: Tensor, fan_in: int) -> None:
    std = math.sqrt(1 / fan_in)
    assert weight.std().item() == pytest.approx(std, rel=0.02)
    assert 1.9 * std < weight.abs().max() <= 2 * std / 0.87962566 + 1e-6


def test_linear_layers_are_xavier_uniform_q_k_and_v_each(model: ViT) -> None:
    block = model.blocks[0]
    assert isinstance(block, Block)
    for part in block.attention.qkv.weight.chunk(3):
        uniform(part, math.sqrt(6 / (256 + 256)))
    uniform(block.attention.out.weight, math.sqrt(6 / (256 + 256)))
    uniform(block.mlp.fc1.weight, math.sqrt(6 / (256 + 512)))
    uniform(block.mlp.fc2.weight, math.sqrt(6 / (256 + 512)))


def test_biases(model: ViT) -> None:
    block = model.blocks[0]
    assert isinstance(block, Block)
    normal(block.mlp.fc1.bias, 1e-6)
    normal(block.mlp.fc2.bias, 1e-6)
    for layer in (block.attention.qkv, block.attention.out, model.patches.projection):
        assert layer.bias is not None
        assert not layer.bias.any()


def test_patches_and_hidden_head_layer_are_truncated_normal(model: ViT) -> None:
    truncated(model.patches.projection.weight, 3 * 8 * 8)
    truncated(model.get_parameter("head.hidden.weight"), 256)


def test_tokens_positions_scales_norms_and_last_layers(model: ViT) -> None:
    assert model.cls is not None
    assert not model.cls.any()
    normal(model.get_parameter("distillation"), 0.02)
    normal(model.get_parameter("registers"), 1e-6)
    normal(model.get_parameter("positions.table"), 0.02)
    assert (model.get_parameter("blocks.0.scale1.factor") == 1e-4).all()
    assert not model.get_parameter("head.classes.weight").any()
    assert not model.get_parameter("head_distilled.classes.weight").any()
    for norm in (m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        assert (norm.weight == 1).all()
        assert not norm.bias.any()


def test_distances() -> None:
    model = ViT(replace(CONFIG, positions="relative", distilled=False))
    normal(model.get_parameter("blocks.0.attention.distances.table"), 0.02)


def test_a_hybrids_blocks_start_as_their_shortcuts() -> None:
    model = ViT(replace(KINDS["hybrid"], stem=ResNetConfig(blocks=(2,), width=64)))
    assert isinstance(model.stem, ResNet)
    unit = model.stem.get_submodule("stages.0.1")
    assert isinstance(unit, Bottleneck)
    assert not unit.norm3.weight.any()
    assert (unit.norm1.weight == 1).all()
    truncated(unit.conv2.weight, 64 * 9)
    x = torch.rand(1, 256, 8, 8)
    assert torch.equal(unit(x), x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_it_leaves_no_parameter_as_it_was(kind: str) -> None:
    models = [ViT(KINDS[kind]) for _ in range(2)]
    for value, one in enumerate(models, 1):
        for parameter in one.parameters():
            nn.init.constant_(parameter, value)
        torch.manual_seed(7)
        one.init_weights()
    for name, parameter in models[0].named_parameters():
        assert torch.equal(parameter, models[1].get_parameter(name)), name
