"""Swin and Swin V2: published sizes, every kind of model, and what a person hears when a config
does not fit."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models.kinds import perturbed, random_images
from vitrail import UserError, capture, create
from vitrail.core.without_init import without_init
from vitrail.layers.attention import Attend
from vitrail.layers.drop import DropPath
from vitrail.layers.window import cells_of
from vitrail.models import swin, swinv2
from vitrail.models.catalogue import build, change, find, list_models, variant_of
from vitrail.models.measure import count
from vitrail.models.swin import Swin, SwinConfig
from vitrail.models.swinv2 import SwinV2, SwinV2Config, log_offsets

EVERY: dict[str, Any] = {**swin.VARIANTS, **swinv2.VARIANTS}

SMALL = SwinConfig(
    dim=12, depths=(2, 3), heads=(2, 4), window_size=4, image_size=(32, 64), num_classes=5
)
SECOND = SwinV2Config(**{**vars(SMALL), "window_size": 4})
KINDS_SWIN: dict[str, SwinConfig] = {
    "plain": SMALL,
    "square": replace(SMALL, image_size=(64, 64)),
    "padded": replace(SMALL, image_size=(40, 56)),
    "padded after rolling": replace(SMALL, image_size=(40, 56), window_policy="timm"),
    "large windows": replace(SMALL, image_size=(16, 40), window_policy="torchvision"),
    "small windows": replace(SMALL, image_size=(16, 40)),
    "odd grids": replace(SMALL, image_size=(36, 52), window_size=3),
    "no head": replace(SMALL, num_classes=0),
    "one channel, narrow MLP": replace(SMALL, channels=1, mlp_ratio=1.5),
    "second": SECOND,
    "second, padded": replace(SECOND, image_size=(40, 56)),
    "second, padded after rolling": replace(SECOND, image_size=(40, 56), window_policy="timm"),
    "second, by rows": replace(SECOND, image_size=(64, 16), window_policy="hf"),
    "second, grown": replace(SECOND, pretrained_windows=(3, 2)),
    "second, no head": replace(SECOND, num_classes=0),
}
every_kind = pytest.mark.parametrize("kind", KINDS_SWIN)


@pytest.mark.parametrize(
    ("name", "giga"),
    [
        ("swin_t", 4.491),
        ("swin_s", 8.741),
        ("swin_b", 15.431),
        ("swinv2_t", 5.940),
        ("swinv2_s", 11.546),
        ("swinv2_b", 20.325),
    ],
)
def test_multiply_adds_are_torchvisions(name: str, giga: float) -> None:
    assert EVERY[name].macs / 1e9 == pytest.approx(giga, abs=5e-4)


@pytest.mark.parametrize("name", EVERY)
def test_a_variant_knows_its_name(name: str) -> None:
    assert variant_of(find(name)) == name
    assert variant_of(change(find(name), {"window_policy": "timm", "num_classes": 3})) == name
    assert name in list_models("swin*")


TIMM = [
    name
    for name in timm.list_models(["swin_*", "swinv2_*"])
    if re.fullmatch(r"swin_\w+_patch4_window\d+_\d+|swinv2_[a-z]+_window\w+", name)
]


# the others differ from one of these in numbers of the same table
FIRST = (
    "swin_tiny_patch4_window7_224", "swin_base_patch4_window12_384", "swinv2_tiny_window16_256",
    "swinv2_base_window12to24_192to384",
)  # fmt: skip


def test_the_first_are_among_timms_names() -> None:
    assert set(FIRST) <= set(TIMM)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FIRST else [pytest.mark.slow]) for n in TIMM]
)
def test_timms_names_mean_timms_models(name: str) -> None:
    config: Any = find(f"{name}.some_tag")
    with without_init():
        theirs = timm.create_model(name, num_classes=1000)
        ours: Any = create(name)
    assert count(ours) == sum(p.numel() for p in theirs.parameters())
    assert config.image_size == theirs.patch_embed.img_size
    for stage, layer in enumerate(theirs.layers):
        for block, other in enumerate(layer.blocks):
            layout = config.layout(stage, block)
            assert (layout.window, layout.shift) == (other.window_size, other.shift_size)
            assert config.heads[stage] == other.attn.num_heads
            reference_window = getattr(other.attn, "pretrained_window_size", (0, 0))
            assert reference_window == (0, 0) or config.reference_window(stage) == reference_window


@pytest.mark.parametrize(("alias", "name"), [("swin_v2_t", "swinv2_t"), ("swin_t", "swin_t")])
def test_torchvisions_names_are_known(alias: str, name: str) -> None:
    assert find(alias) == find(name)


@pytest.mark.sampled(2)
@every_kind
def test_gives_logits_features_and_grid(kind: str) -> None:
    config = KINDS_SWIN[kind]
    model, image = perturbed(config).eval(), random_images(config)
    rows, columns = config.layout(1, 0).grid
    assert model.encode(image).shape == (2, rows, columns, 24)
    assert model.features(image).shape == (2, config.features) == (2, 24)
    assert model(image).shape == (2, config.num_classes or 24)
    assert config.tokens == math.prod(config.grid)


@pytest.mark.slow
@every_kind
def test_compiles_in_one_graph(kind: str) -> None:
    model, image = perturbed(KINDS_SWIN[kind]).eval(), random_images(KINDS_SWIN[kind])
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.slow
@every_kind
def test_inductor(kind: str) -> None:
    model, image = perturbed(KINDS_SWIN[kind]).eval(), random_images(KINDS_SWIN[kind])
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "grad"), [*((kind, True) for kind in KINDS_SWIN), ("plain", False), ("second", False)]
)
def test_exports_with_any_batch_and_no_more_than_five_axes(kind: str, grad: bool) -> None:
    config = KINDS_SWIN[kind]
    model, batch = perturbed(config).eval(), torch.export.Dim("batch", min=1, max=64)
    with torch.set_grad_enabled(grad):
        program = torch.export.export(model, (random_images(config),), dynamic_shapes=({0: batch},))
    other = random_images(config, batch=5)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-5, atol=1e-5)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        assert not isinstance(value, Tensor) or value.ndim <= 5, node
        assert not re.search(r"unfold|fold|im2col|col2im", str(node.target)), node


@pytest.mark.sampled(2)
@every_kind
def test_autocast_in_bfloat16_stays_near(kind: str) -> None:
    model, image = perturbed(KINDS_SWIN[kind]).eval(), random_images(KINDS_SWIN[kind])
    for grad in (True, False):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(image)
        full = model(image)
        assert half.isfinite().all()
        assert (half.float() - full).abs().max() <= 0.05 * full.abs().max().clamp(min=1)


@pytest.mark.sampled(2)
@every_kind
def test_runs_in_half_precision(kind: str) -> None:
    model, image = perturbed(KINDS_SWIN[kind]).eval().bfloat16(), random_images(KINDS_SWIN[kind])
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert model(image.bfloat16()).dtype is torch.bfloat16


@pytest.mark.sampled(2)
@every_kind
def test_gradient_checkpointing_from_outside_changes_no_gradient(kind: str) -> None:
    config = replace(KINDS_SWIN[kind], dropout=0.1, drop_path=0.1)
    model, image = perturbed(config).train(), random_images(config)

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        loss = model(image).square().sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    plain = gradients()
    for block in model.blocks_by_depth().values():
        inner = block.forward
        block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
    for one, other in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.sampled(2)
@every_kind
def test_state_dict_goes_round_and_holds_nothing_computed(kind: str) -> None:
    config = KINDS_SWIN[kind]
    one, other, image = perturbed(config).eval(), build(config).eval(), random_images(config)
    assert set(one.state_dict()) == {name for name, _ in one.named_parameters()}
    assert not torch.equal(one(image), other(image))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(image), other(image))


def test_every_parameter_takes_part() -> None:
    for kind, config in KINDS_SWIN.items():
        model = perturbed(config)
        model(random_images(config)).square().sum().backward()
        idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert not idle, (kind, idle)


@pytest.mark.sampled(2)
@every_kind
def test_capture_sees_every_attention_and_changes_no_bit(kind: str) -> None:
    config = KINDS_SWIN[kind]
    model, image = perturbed(config).eval(), random_images(config)
    before = model(image)
    with capture(model) as maps:
        assert torch.equal(model(image), before)
    names = [f"stages.{i}.blocks.{j}.attention" for i, n in enumerate((2, 3)) for j in range(n)]
    assert list(maps) == names
    for stage, depth in enumerate(config.depths):
        for block in range(depth):
            one = maps[f"stages.{stage}.blocks.{block}.attention"]
            assert one.layout == config.layout(stage, block)
            windows, cells = cells_of(one.layout).shape
            assert one.weights.shape == (2, windows, config.heads[stage], cells, cells)
            torch.testing.assert_close(one.weights.sum(-1), torch.ones(one.weights.shape[:-1]))


def test_weights_are_those_of_the_attention() -> None:
    for kind in ("padded", "second, padded"):
        model = perturbed(KINDS_SWIN[kind]).double().eval()
        seen: dict[str, Tensor] = {}
        attend = model.get_submodule("stages.0.blocks.1.attention.attend")
        attend.register_forward_hook(lambda m, args, out, seen=seen: seen.update(v=args[2], y=out))
        with capture(model) as maps:
            model(random_images(KINDS_SWIN[kind]).double())
        weights = maps["stages.0.blocks.1.attention"].weights
        torch.testing.assert_close(weights @ seen["v"], seen["y"], rtol=0, atol=1e-12)


def test_shifted_windows_do_not_look_around_the_edge() -> None:
    """A change in the last row of cells reaches the first row neither directly nor by the roll."""
    config = replace(SMALL, depths=(2,), heads=(2,), image_size=(48, 48))
    for model in (perturbed(config), perturbed(SwinV2Config(**vars(config)))):
        model.eval()
        image = random_images(config)
        changed = image.clone()
        changed[:, :, -4:] += 1
        one, other = model.encode(image), model.encode(changed)
        torch.testing.assert_close(one[:, :4], other[:, :4], rtol=0, atol=1e-6)
        assert not torch.allclose(one[:, -4:], other[:, -4:])


def test_a_model_laid_out_on_meta_gets_what_is_computed_back() -> None:
    for config in (SMALL, SECOND):
        with torch.device("meta"):
            model = build(config)
        like = perturbed(config).eval()
        model.to_empty(device="cpu").load_state_dict(like.state_dict())
        assert torch.equal(model.eval()(random_images(config)), like(random_images(config)))


def test_trunk_is_in_order_and_holds_all_but_patches_and_head() -> None:
    model = build(SMALL)
    assert list(model.blocks_by_depth()) == [
        "stages.0.blocks.0", "stages.0.blocks.1", "stages.1.merge", "stages.1.blocks.0",
        "stages.1.blocks.1", "stages.1.blocks.2",
    ]  # fmt: skip
    inside = {id(p) for block in model.blocks_by_depth().values() for p in block.parameters()}
    outside = {
        name.partition(".")[0] for name, p in model.named_parameters() if id(p) not in inside
    }
    assert outside == {"patches", "embed_norm", "norm", "head"}


def test_stochastic_depth_rises_over_all_stages() -> None:
    model = Swin(replace(SMALL, drop_path=0.4))
    rates = [module.rate for module in model.modules() if isinstance(module, DropPath)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_a_new_head_says_nothing() -> None:
    for config in (SMALL, SECOND):
        assert not build(config).eval()(random_images(config)).any()


def close_to(weight: Tensor, std: float) -> None:
    assert weight.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * weight.numel()))
    assert abs(weight.mean().item()) < 4 * std / math.sqrt(weight.numel())


def test_weights_start_as_the_table_says() -> None:
    torch.manual_seed(0)
    for kind in (SwinConfig, SwinV2Config):
        config = kind(dim=96, depths=(1, 1), heads=(3, 6), image_size=(224, 224), window_size=8)
        model: Any = build(config)
        block = model.stages[1].blocks[0]
        for layer in (block.attention.qkv, block.attention.out, block.mlp.fc1, block.mlp.fc2):
            close_to(layer.weight, 0.02)
        close_to(model.stages[1].merge.reduction.weight, 0.02)
        assert not block.mlp.fc1.bias.any()
        assert (model.norm.weight == 1).all()
        assert model.patches.projection.weight.abs().max() <= 1 / math.sqrt(48)
    assert not block.norm1.weight.any()
    assert not block.attention.qv_bias.any()
    assert torch.allclose(block.attention.logit_scale, torch.tensor(math.log(10)))
    close_to(block.attention.bias.fc2.weight, 0.02)
    first: Any = Swin(replace(SMALL, dim=96, heads=(3, 6), window_size=8))
    close_to(first.stages[0].blocks[0].attention.bias.table, 0.02)
    assert (first.stages[0].blocks[0].norm1.weight == 1).all()


def test_blocks_of_the_second_version_begin_as_nothing() -> None:
    block = SwinV2(SECOND).get_submodule("stages.0.blocks.1").eval()
    x = torch.randn(1, 8, 16, 12)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("kind", ["plain", "second"])
def test_init_leaves_no_parameter_as_it_was(kind: str) -> None:
    models: list[Any] = [build(KINDS_SWIN[kind]) for _ in range(2)]
    for value, one in enumerate(models, 1):
        for parameter in one.parameters():
            nn.init.constant_(parameter, value)
        torch.manual_seed(7)
        one.init_weights()
    for name, parameter in models[0].named_parameters():
        assert torch.equal(parameter, models[1].get_parameter(name)), name


def test_offsets_are_the_papers() -> None:
    """Eq. 4, offset by offset: within the windows of training they reach 8 before the logarithm."""
    table = log_offsets((3, 5), (2, 3)).view(5, 9, 2)
    for down in range(-2, 3):
        for across in range(-4, 5):
            for got, offset in zip(
                table[down + 2, across + 4], (down / 1, across / 2), strict=True
            ):
                expected = math.copysign(math.log2(1 + abs(8 * offset)) / 3, offset)
                assert got.item() == pytest.approx(expected, abs=1e-6)


def test_the_scale_of_cosine_attention_is_at_most_a_hundred() -> None:
    model: Any = perturbed(replace(SECOND, image_size=(16, 16), depths=(1,), heads=(2,))).eval()
    image = random_images(model.config)
    with torch.no_grad():
        model.stages[0].blocks[0].attention.logit_scale.fill_(math.log(100))
        at_the_limit = model(image)
        model.stages[0].blocks[0].attention.logit_scale.fill_(50.0)
        beyond = model(image)
    torch.testing.assert_close(at_the_limit, beyond)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image_size": (33, 64)}, "image side 33 is not a multiple of patch 4: use 32 or 36"),
        ({"heads": (5, 4)}, "the width of stage 1 must be a multiple of its heads, got 12 and 5"),
        ({"heads": (2, 0)}, "the width of stage 2 must be a multiple of its heads, got 24 and 0"),
        ({"heads": (2,)}, "heads must have one value for each of 2 stages, got"),
        ({"depths": ()}, "1 to 8 stages"),
        ({"depths": (0, 2)}, "1 to 8 stages"),
        ({"window_size": 0}, "window_size must be at least 1, got 0"),
        ({"window_size": 500, "window_policy": "torchvision"}, "would compute a table"),
        ({"mlp_ratio": 0.0}, "mlp_ratio must be in "),
        ({"dropout": 1.0}, r"must be in \[0, 1\), got"),
        ({"image_size": (0, 32)}, "pixels a side, got"),
    ],
)
def test_a_config_that_does_not_fit_says_why(changes: dict[str, Any], sentence: str) -> None:
    for config in (SMALL, SECOND):
        with pytest.raises(UserError, match=sentence):
            replace(config, **changes)


@pytest.mark.parametrize(
    ("windows", "sentence"),
    [((8,), "one for each of 2 stages"), ((8, 0), "1 to 1024 cells")],
)
def test_windows_of_training_are_checked(windows: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(SECOND, pretrained_windows=windows)


def test_an_image_of_another_size_says_what_fits() -> None:
    with pytest.raises(UserError, match=r"this model reads \(batch, 3, 32, 64\)"):
        Swin(SMALL)(torch.zeros(1, 3, 32, 32))


def test_create_takes_the_ecosystems_fields() -> None:
    model: Any = create("swin_t", image_size=64, num_classes=3, depths=(1, 1), heads=(3, 6))
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    with pytest.raises(UserError, match="window_policy must be 'paper'"):
        create("swinv2_t", window_policy="round")
    assert all(isinstance(m.layout.window, tuple) for m in model.modules() if isinstance(m, Attend))
