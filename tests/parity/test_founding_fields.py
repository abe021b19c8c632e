"""Fields that the founding code has: norm after adding, ReLU, rectangles, dropout of embeddings and
1-D sines, each against torch's or vit-pytorch's own."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import vitrail
from tests.models.kinds import KINDS, SMALL, perturbed, random_images
from vitrail import UserError
from vitrail.layers.mlp import Activation
from vitrail.models.packing import packed_logits
from vitrail.models.vit import ViT

POST = replace(SMALL, norm_placement="post", final_norm="none", activation="relu", norm_eps=1e-5)


def torch_encoder(model: ViT) -> nn.TransformerEncoder:
    """torch's own encoder with the weights of a model."""
    config = model.config
    layer = nn.TransformerEncoderLayer(
        config.dim, config.heads, config.mlp_dim, 0.0, config.activation, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, config.depth, enable_nested_tensor=False).double()
    for theirs, ours in zip(encoder.layers, model.blocks, strict=True):
        state = ours.state_dict()
        theirs.load_state_dict(
            {
                "self_attn.in_proj_weight": state["attention.qkv.weight"],
                "self_attn.in_proj_bias": state["attention.qkv.bias"],
                "self_attn.out_proj.weight": state["attention.out.weight"],
                "self_attn.out_proj.bias": state["attention.out.bias"],
                "linear1.weight": state["mlp.fc1.weight"],
                "linear1.bias": state["mlp.fc1.bias"],
                "linear2.weight": state["mlp.fc2.weight"],
                "linear2.bias": state["mlp.fc2.bias"],
                **{k: v for k, v in state.items() if k.startswith("norm")},
            }
        )
    return encoder


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_norm_after_adding_is_torchs_default_encoder_layer(activation: Activation) -> None:
    model = perturbed(replace(POST, activation=activation)).double()
    encoder = torch_encoder(model)
    images = random_images(model.config).double().requires_grad_()
    ours = model(images)
    theirs = model.head(encoder(model.embed(images))[:, 0])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    weights = torch.randn_like(ours)
    (expected,) = torch.autograd.grad((theirs * weights).sum(), images)
    (found,) = torch.autograd.grad((ours * weights).sum(), images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_norm_after_adding_through_everything_that_takes_blocks_apart() -> None:
    from vitrail.inference.merging import merge_tokens
    from vitrail.inference.pruning import can_prune_last_block, pruned_logits
    from vitrail.inference.rewrites.optimise import optimise

    model = perturbed(replace(POST, layer_scale=0.5)).double().eval()
    images = random_images(model.config).double()
    with torch.no_grad():
        expected = model(images)
        close = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
        close(packed_logits(model, list(images)), expected)
        close(packed_logits(model, list(images), prune=True), expected)
        assert can_prune_last_block(model)
        close(pruned_logits(model, images), expected)
        close(optimise(model, output="logits")(images), expected)
        torch.testing.assert_close(merge_tokens(model, 0)(images), expected, rtol=0, atol=0)
        merged = merge_tokens(model, 3)(images)
        assert not torch.equal(merged, expected)
        pruned = optimise(model, output="logits", r=3)(images)
        close(pruned, merged)


def test_no_dialect_writes_norm_after_adding() -> None:
    from vitrail.weights.dialects import DIALECTS

    vits = [dialect for dialect in DIALECTS if dialect.family == "vit"]
    assert all(one.reason_unsupported(POST) for one in vits)
    timm = next(one for one in vits if one.name == "timm")
    plain = replace(POST, final_norm="tokens", norm_eps=1e-6)
    assert timm.reason_unsupported(plain) == (
        "the timm dialect does not support norm_placement='post'"
    )


def test_the_walk_shows_the_sum_normed() -> None:
    from vitrail.explanation.walk import walk

    model = perturbed(POST).eval()
    found = walk(model, random_images(model.config)[:1])
    names = [step.id for step in found.steps]
    assert names.index("out") < names.index("block.norm1") < names.index("mlp")
    assert names.index("mlp") < names.index("block.norm2")
    steps = {step.id: step for step in found.steps}
    torch.testing.assert_close(
        steps["out"].values["result"].numbers, steps["block.norm1"].values["before"].numbers
    )


def test_sines_over_the_sequence_are_those_of_the_first_transformer() -> None:
    model = perturbed(replace(SMALL, positions="sincos1d")).double()
    assert model.positions is not None
    assert "positions.table" not in model.state_dict()
    table = model.positions()[0]
    assert len(table) == 1 + 4 * 6
    for place in (0, 1, 7, 24):
        for i in range(16):
            angle = place / 10_000 ** (2 * i / 32)
            assert table[place, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[place, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    without = perturbed(replace(SMALL, positions="sincos1d", prefix_positions=0)).double()
    assert without.positions is not None
    torch.testing.assert_close(without.positions()[0], table[:-1], rtol=0, atol=0)


def test_sines_over_the_sequence_are_computed_again_for_another_size() -> None:
    model = perturbed(replace(SMALL, positions="sincos1d")).eval()
    images = torch.randn(2, 3, 40, 24)
    with torch.no_grad():
        wide = vitrail.load(model, image_size=(40, 24)).eval()
        assert wide.config.grid == (5, 3)
        expected = wide(images)
        packed = packed_logits(model, list(images))
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-5)
    from vitrail.inference.any_size import for_any_size

    with torch.no_grad():
        found = for_any_size(model)(images)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="prefix_positions cannot change"):
        vitrail.load(model, prefix_positions=0)


def test_the_dropout_of_embeddings_is_its_own() -> None:
    assert ViT(replace(SMALL, dropout=0.1)).dropout.p == 0.1
    model = ViT(replace(SMALL, dropout=0.1, embed_dropout=0.3))
    assert model.dropout.p == 0.3
    assert model.get_submodule("blocks.0.dropout").p == 0.1
    assert ViT(replace(SMALL, dropout=0.1, embed_dropout=0.0)).dropout.p == 0.0
    with pytest.raises(UserError, match=r"embed_dropout must be in \[0, 1\)"):
        replace(SMALL, embed_dropout=1.0)


def test_rectangles_are_those_of_vit_pytorch() -> None:
    from vit_pytorch import ViT as Theirs

    torch.manual_seed(0)
    peer = Theirs(
        image_size=(32, 48), patch_size=(8, 4), num_classes=5, dim=32, depth=2, heads=4,
        mlp_dim=64, dim_head=8,
    ).double().eval()  # fmt: skip
    model = vitrail.load(peer, image_size=(32, 48)).double().eval()
    assert model.config.patch_size == (8, 4)
    assert model.config.grid == (4, 12)
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    torch.testing.assert_close(model(images), peer(images), rtol=0, atol=1e-9)


def test_a_square_is_one_number_in_every_config() -> None:
    assert replace(SMALL, patch_size=(8, 8)) == SMALL
    assert isinstance(
        vitrail.create("vit_ti_16", depth=1, patch_size=[16, 16]).config.patch_size, int
    )


def test_rectangles_keep_their_shape_when_saved_and_resized(tmp_path: Path) -> None:
    model = perturbed(KINDS["rectangular patches"]).eval()
    place = f"{tmp_path}/model"
    vitrail.save(model, place)
    again = vitrail.load(place).eval()
    images = random_images(model.config)
    assert again.config == model.config
    with torch.no_grad():
        torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)
    finer = vitrail.load(place, patch_size=4)
    assert finer.config.grid == (8, 12)
    assert any("from 8x4 to 4 pixels" in one for one in finer.passport.origin.changes)
    with pytest.raises(UserError, match="image side 48 is not a multiple of patch 32"):
        vitrail.load(place, patch_size=(8, 32))


def test_rectangles_on_the_way_to_pixels() -> None:
    from vitrail.core.layout import TokenLayout
    from vitrail.explanation.distance import pairwise_distances
    from vitrail.explanation.propagation import on_pixels

    layout = TokenLayout(grid=(2, 2), stride=(8, 4))
    distance = pairwise_distances(layout)[0]
    assert distance[0].tolist() == [0.0, 4.0, 8.0, math.hypot(8, 4)]
    heat = on_pixels(
        torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), (16, 8), layout=layout, mode="nearest"
    )
    assert [heat[0, y, x].item() for y, x in ((7, 3), (8, 3), (7, 4))] == [1, 3, 2]
    model = perturbed(KINDS["rectangular patches"]).eval()
    with vitrail.capture(model) as maps:
        model(random_images(model.config))
    assert next(iter(maps.values())).layout.strides == (8, 4)


def test_square_dialects_refuse_rectangles() -> None:
    from vitrail.weights.dialects import DIALECTS

    config = replace(SMALL, patch_size=(8, 4), image_size=(32, 16))
    for dialect in DIALECTS:
        if dialect.family != "vit" or "patch_size" in dialect.supports:
            continue
        assert dialect.reason_unsupported(config) is not None, dialect.name
