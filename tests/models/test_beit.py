"""The BEiT family: published sizes, both stages of training, and what its relative bias is."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from timm.models.beit import gen_relative_position_index
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.models.kinds import perturbed, random_images
from vitrail import UserError, capture, create
from vitrail.core.without_init import without_init
from vitrail.layers.drop import DropPath
from vitrail.models.beit import (
    VARIANTS,
    Beit,
    BeitConfig,
    RelativeBias,
    count_relations,
    relation_index,
)
from vitrail.models.catalogue import find, variant_of
from vitrail.models.measure import count
from vitrail.recipes.beit import LABELLED, MASKED
from vitrail.training.optimiser import layer_of

SMALL = BeitConfig(
    dim=32, depth=2, heads=4, mlp_dim=64, patch_size=8, image_size=(32, 48), num_classes=5
)
KINDS = {
    "fine-tuned": SMALL,
    "pre-trained": replace(SMALL, relative_bias="shared", pool="cls", num_classes=0),
    "shared bias, a head": replace(SMALL, relative_bias="shared"),
    "own bias, class token": replace(SMALL, pool="cls"),
    "no layer scale": replace(SMALL, layer_scale=None),
    "one channel, tanh": replace(SMALL, channels=1, activation="gelu_tanh"),
    "one patch": replace(SMALL, image_size=(8, 8)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "side", "params"),
    [
        ("beit_b_16", 384, 86_744_104),
        ("beit_l_16", 512, 305_674_728),
        ("beitv2_l_16", 512, 305_674_728),
        ("beit_base_patch16_384", None, 86_744_104),
        ("beit_large_patch16_512.in22k_ft_in22k_in1k", None, 305_674_728),
        ("beitv2_base_patch16_224", None, 86_530_984),
    ],
)
def test_published_sizes_have_the_published_parameters(
    name: str, side: int | None, params: int
) -> None:
    with without_init():
        assert count(create(name, **({"image_size": side} if side else {}))) == params


def test_variants_know_their_names() -> None:
    for name in VARIANTS:
        # the two large ones are one and the same
        assert variant_of(find(name)) in (name, name.replace("beitv2_l", "beit_l"))
    assert [VARIANTS[name].config.layer_scale for name in VARIANTS] == [0.1, 1e-5, 1e-5, 1e-5]


def test_recipes_name_models_that_exist() -> None:
    for tuning in (MASKED, LABELLED):
        assert set(tuning.rows) <= set(VARIANTS)


@pytest.mark.sampled(2)
@every_kind
def test_gives_logits_features_and_tokens(kind: str) -> None:
    config = KINDS[kind]
    model, image = perturbed(config).eval(), random_images(config)
    assert model.encode(image).shape == (2, config.tokens, config.dim)
    assert model.features(image).shape == (2, config.features)
    assert model(image).shape == (2, config.num_classes or config.dim)


def test_the_norm_stands_where_the_pooling_is() -> None:
    model, image = perturbed(SMALL).eval(), random_images(SMALL)
    tokens = model.encode(image)
    torch.testing.assert_close(model.features(image), model.norm(tokens[:, 1:].mean(dim=1)))
    pre_trained = KINDS["pre-trained"]
    model = perturbed(pre_trained).eval()
    last: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda *seen: last.append(seen[-1]))
    torch.testing.assert_close(model.features(image), model.norm(last[0])[:, 0])


@pytest.mark.parametrize("grid", [(4, 4), (2, 5), (7, 3), (1, 1)])
def test_relations_are_numbered_as_others_do(grid: tuple[int, int]) -> None:
    tokens = 1 + math.prod(grid)
    theirs = gen_relative_position_index(grid)
    assert torch.equal(relation_index(grid).view(tokens, tokens).long(), theirs)
    assert count_relations(grid) == int(theirs.max()) + 1


def test_a_bias_depends_on_nothing_but_the_distance() -> None:
    bias = RelativeBias((3, 4), heads=2)
    torch.nn.init.normal_(bias.table)
    grid = bias()[0, :, 1:, 1:].unflatten(2, (3, 4)).unflatten(1, (3, 4))
    # one row further down and one column further right, the same holds
    torch.testing.assert_close(grid[:, :-1, :-1, :-1, :-1], grid[:, 1:, 1:, 1:, 1:])
    to_patches, from_patches, itself = bias.table[-3:]
    assert torch.equal(bias()[0, :, 0, 0], itself)
    assert torch.equal(bias()[0, :, 0, 1:], to_patches[:, None].expand(-1, 12))
    assert torch.equal(bias()[0, :, 1:, 0], from_patches[:, None].expand(-1, 12))


def test_an_index_is_computed_and_never_stored() -> None:
    with torch.device("meta"):
        model = Beit(SMALL)
    assert not [name for name in model.state_dict() if "index" in name]
    values = Beit(SMALL).state_dict()
    model.load_state_dict(values, assign=True)
    fresh = Beit(SMALL)
    fresh.load_state_dict(values)
    assert torch.equal(model.eval()(random_images(SMALL)), fresh.eval()(random_images(SMALL)))
    empty = Beit(SMALL).to("meta").to_empty(device="cpu")
    empty.load_state_dict(values)
    assert torch.equal(empty.eval()(random_images(SMALL)), fresh(random_images(SMALL)))


@pytest.mark.sampled(2)
@every_kind
def test_attention_is_seen_with_its_bias(kind: str) -> None:
    config = KINDS[kind]
    model, image = perturbed(config).eval(), random_images(config)
    plain = model(image)
    with capture(model) as maps:
        assert torch.equal(model(image), plain)
    assert list(maps) == ["blocks.0.attention", "blocks.1.attention"]
    attention = maps["blocks.1.attention"]
    assert attention.weights.shape == (2, 4, config.tokens, config.tokens)
    assert attention.layout == config.layout
    assert attention.on_grid(0).shape[2:] == config.grid
    # the bias is in it: without, the map is another
    with torch.no_grad():
        for name, table in model.named_parameters():
            if name.endswith("relative.table"):
                table[:, :] = 0
    with capture(model) as others:
        model(image)
    assert not torch.allclose(
        others["blocks.0.attention"].weights, maps["blocks.0.attention"].weights
    )


@pytest.mark.slow
@every_kind
def test_compiles_in_one_graph(kind: str) -> None:
    model, image = perturbed(KINDS[kind]).eval(), random_images(KINDS[kind])
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.slow
@every_kind
def test_inductor(kind: str) -> None:
    model, image = perturbed(KINDS[kind]).eval(), random_images(KINDS[kind])
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.slow
@every_kind
def test_exports_with_any_batch_and_no_more_than_five_axes(kind: str) -> None:
    model, config = perturbed(KINDS[kind]).eval(), KINDS[kind]
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (random_images(config),), dynamic_shapes=({0: batch},))
    other = random_images(config, batch=5)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-5, atol=1e-5)
    made = [node.meta["val"] for node in program.graph.nodes if "val" in node.meta]
    assert max(value.ndim for value in made if isinstance(value, Tensor)) <= 5


@pytest.mark.sampled(2)
@every_kind
def test_autocast_in_bfloat16_stays_near(kind: str) -> None:
    model, image = perturbed(KINDS[kind]).eval(), random_images(KINDS[kind])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(image)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        fused = model(image)
    full = model(image)
    for answer in (half, fused):
        assert answer.isfinite().all()
        assert (answer.float() - full).abs().max() <= 0.05 * full.abs().max().clamp(min=1)


@pytest.mark.sampled(2)
@every_kind
def test_gradient_checkpointing_from_outside_changes_no_gradient(kind: str) -> None:
    config = replace(KINDS[kind], dropout=0.1, drop_path=0.1)
    model, image = perturbed(config).train(), random_images(config)

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        loss = model(image).square().sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    plain = gradients()
    for block in model.blocks_by_depth().values():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for one, other in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.sampled(2)
@every_kind
def test_every_parameter_takes_part(kind: str) -> None:
    model = perturbed(KINDS[kind])
    model(random_images(KINDS[kind])).square().sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle, idle


def test_training_knows_the_depth() -> None:
    for config in KINDS.values():
        model = Beit(config)
        steps = tuple(model.blocks_by_depth())
        assert layer_of("blocks.0.relative.table", steps) == 1
        assert layer_of("relative.table", steps) == 0
        assert layer_of("norm.weight", steps) == 3


def test_weights_start_as_the_authors_do() -> None:
    torch.manual_seed(0)
    model = Beit(replace(SMALL, dim=128, mlp_dim=512, depth=4, layer_scale=0.1))
    state = model.state_dict()
    for name, tensor in state.items():
        if name.endswith(("bias", "table")) or name.startswith("head"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        elif name.endswith("factor"):
            assert torch.equal(tensor, torch.full_like(tensor, 0.1)), name
        else:
            block = int(name.split(".")[1]) + 1 if name.startswith("blocks") else 0
            last = name.endswith(("attention.out.weight", "mlp.fc2.weight"))
            bound = 0.02 / (math.sqrt(2 * block) if last else 1)
            assert tensor.abs().max() <= bound * 1.0001, name
            # cut at one deviation, a normal has 0.54 of its deviation left
            assert tensor.std().item() == pytest.approx(0.54 * bound, rel=0.15), name


def test_stochastic_depth_rises_linearly() -> None:
    model = Beit(replace(SMALL, depth=5, drop_path=0.4))
    rates = [module.rate for module in model.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image_size": (225, 224)}, "image side 225 is not a multiple of patch 8: use 224 or 232"),
        ({"heads": 5}, "dim must be a multiple of heads, got 32 and 5"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"drop_path": 1.0}, r"must be in \[0, 1\), got"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0, got 0.0"),
        ({"image_size": (8192, 8192)}, "the distances between all patches would compute a table"),
    ],
)
def test_a_config_that_does_not_fit_says_why(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(SMALL, **changes)


def test_a_wrong_field_says_what_fits() -> None:
    with pytest.raises(UserError, match="relative_bias must be 'block'"):
        create("beit_b_16", relative_bias="none")
    with pytest.raises(UserError, match=r"images are \(1, 3, 32, 32\), this model reads"):
        Beit(SMALL)(torch.zeros(1, 3, 32, 32))
