"""MobileViT and MobileViT V2: published sizes, images of any size, folds, and what a person hears
when a config does not fit."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.kinds import random_images
from tests.parity.compare import blank_timm
from tests.parity.lively import lively
from vitrail import UserError, capture, create, load, save
from vitrail.layers.attention import Attend, SeparableAttend
from vitrail.layers.fold import fold, unfold
from vitrail.layers.inverted import expanded
from vitrail.models import mobilevit, mobilevitv2
from vitrail.models.catalogue import build, find
from vitrail.models.mobilevit import MobileViTConfig
from vitrail.models.mobilevitv2 import MobileViTV2Config
from vitrail.training.ema import EMA
from vitrail.training.recompute import checkpoint_blocks

EVERY: dict[str, Any] = {**mobilevit.VARIANTS, **mobilevitv2.VARIANTS}

SMALL = MobileViTConfig(
    widths=(8, 16, 16, 24, 24), dims=(16, 16, 24), depths=(1, 2, 1), heads=4, last=32,
    stem=8, expand=2.0, image_size=(64, 96), num_classes=5,
)  # fmt: skip
SMALL2 = MobileViTV2Config(
    widths=(8, 16, 16, 24, 24), dims=(16, 16, 24), depths=(1, 2, 1), stem=8,
    image_size=(64, 96), num_classes=5,
)  # fmt: skip
KINDS: dict[str, Any] = {
    f"{name}{kind}": replace(config, **changes)
    for name, config in (("v1", SMALL), ("v2", SMALL2))
    for kind, changes in (
        ("", {}),
        (", no head", {"num_classes": 0}),
        (", sides that patches do not divide", {"image_size": (33, 47)}),
        (", larger patches", {"patch_size": 4}),
        (", one channel", {"channels": 1}),
    )
}
every_kind = pytest.mark.parametrize("kind", KINDS)
# graphs take long to trace: the kinds that do most, which is to stretch maps and shrink them
every_graph = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.endswith("divide")])


def shaken(config: Any) -> Any:
    """A model whose every number matters, in float32."""
    return lively(build(config)).float()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EVERY)
def test_timms_names_mean_timms_models(name: str) -> None:
    theirs = blank_timm(name)
    assert find(name) == find(f"{name}.cvnets_in1k") == EVERY[name].config
    assert EVERY[name].params == sum(p.numel() for p in theirs.parameters())
    assert EVERY[name].config.features == theirs.num_features


@pytest.mark.sampled(2)
@every_kind
def test_gives_logits_features_and_a_map(kind: str) -> None:
    config = KINDS[kind]
    model, image = shaken(config).eval(), random_images(config)
    rows, columns = config.layouts[-1].grid
    if isinstance(config, MobileViTConfig):  # it gives back the map that it stretched
        rows, columns = (-(-side // 32) for side in config.image_size)
    assert model.encode(image).shape == (2, config.features, rows, columns)
    assert model.features(image).shape == (2, config.features)
    assert model(image).shape == (2, config.num_classes or config.features)
    assert config.tokens == config.layouts[0].tokens * config.patch_size**2


@pytest.mark.slow
@every_graph
def test_compiles_in_one_graph(kind: str) -> None:
    model, image = shaken(KINDS[kind]).eval(), random_images(KINDS[kind])
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.slow
@every_kind
def test_inductor(kind: str) -> None:
    model, image = shaken(KINDS[kind]).eval(), random_images(KINDS[kind])
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@every_graph
def test_exports_with_any_batch_and_what_phones_know(kind: str) -> None:
    model, config = shaken(KINDS[kind]).eval(), KINDS[kind]
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (random_images(config),), dynamic_shapes=({0: batch},))
    other = random_images(config, batch=5)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-4, atol=1e-5)
    for node in program.run_decompositions().graph.nodes:
        assert getattr(node.meta.get("val"), "ndim", 0) <= 5, node
        assert not re.search("unfold|im2col|col2im|shuffle", str(node.target)), node


@pytest.mark.sampled(2)
@every_kind
def test_autocast_in_bfloat16_stays_near(kind: str) -> None:
    model, image = shaken(KINDS[kind]).eval(), random_images(KINDS[kind])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(image)
    full = model(image)
    assert half.isfinite().all()
    assert (half.float() - full).abs().max() <= 0.05 * full.abs().max().clamp(min=1)


@every_graph
def test_gradient_checkpointing_changes_neither_gradients_nor_statistics(kind: str) -> None:
    config = replace(KINDS[kind], dropout=0.1, drop_path=0.1)
    image = random_images(config)

    def trained(wrap: Callable[[Any], None]) -> tuple[list[Tensor], dict[str, Tensor]]:
        model = shaken(config).train()
        wrap(model)
        torch.manual_seed(3)
        loss = model(image).square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return list(gradients), model.state_dict()

    (plain, before), (wrapped, after) = trained(lambda _: None), trained(checkpoint_blocks)
    assert all(torch.equal(one, other) for one, other in zip(plain, wrapped, strict=True))
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.sampled(2)
@every_kind
def test_state_goes_round_through_a_file(kind: str, tmp_path: Path) -> None:
    model, image = shaken(KINDS[kind]), random_images(KINDS[kind])
    model.train()(image)  # so that statistics are no longer those of a fresh model
    model.eval()
    state = model.state_dict()
    assert any(name.endswith("running_var") for name in state)
    assert all(tensor.is_floating_point() for tensor in state.values())
    save(model, tmp_path / "ours")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in (
        tmp_path / "ours" / "README.md"
    ).read_text(encoding="utf-8")
    again = load(tmp_path / "ours")
    assert again.config == model.config
    assert torch.equal(again(image), model(image))
    other = build(KINDS[kind])
    other.load_state_dict(state)
    assert torch.equal(other.eval()(image), model(image))


def test_a_running_mean_of_weights_has_the_statistics_too() -> None:
    for config in (SMALL, SMALL2):
        model = shaken(config)
        average = EMA(model, decay=0.5)
        assert average.state.keys() == model.state_dict().keys()
        before = average.state["stem.norm.running_mean"].clone()
        model.train()(random_images(config))
        average.update(model, step=1000)
        now = model.state_dict()["stem.norm.running_mean"]
        torch.testing.assert_close(
            average.state["stem.norm.running_mean"], (before + now) / 2, rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("config", [SMALL, SMALL2], ids=["v1", "v2"])
def test_every_parameter_takes_part(config: Any) -> None:
    model = shaken(config)
    model(random_images(config)).square().sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


@pytest.mark.parametrize("config", [SMALL, SMALL2], ids=["v1", "v2"])
def test_any_size_of_image_will_do(config: Any) -> None:
    model = shaken(config).eval()
    assert model.any_size
    for size in ((64, 96), (96, 64), (33, 47), (1, 1), (160, 32)):
        image = torch.randn(1, 3, *size)
        assert model(image).shape == (1, 5)
        other = build(replace(config, image_size=size)).eval()
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(image), model(image))
    with pytest.raises(UserError, match=r"reads \(batch, 3, height, width\)"):
        model(torch.zeros(1, 4, 64, 64))


@pytest.mark.parametrize("config", [SMALL, SMALL2], ids=["v1", "v2"])
def test_dropout_and_stochastic_depth_act_in_training_alone(config: Any) -> None:
    config = replace(config, dropout=0.3, drop_path=0.6)
    model, image = shaken(config).eval(), random_images(config)
    assert torch.equal(model(image), model(image))
    for module in model.modules():
        if not isinstance(module, nn.BatchNorm2d):
            module.training = True
    assert not torch.equal(model(image), model(image))
    rates = [m.rate for name, m in model.named_modules() if name.endswith("drop_path")]
    assert rates == pytest.approx([0, 0.2, 0.4, 0.6])


@pytest.mark.parametrize("config", [SMALL, SMALL2], ids=["v1", "v2"])
def test_a_fresh_model_starts_as_the_papers_code_does(config: Any) -> None:
    torch.manual_seed(0)
    model = build(replace(config, widths=(64, 64, 64, 64, 64), dims=(64, 64, 64)))
    assert not model.eval()(random_images(config)).any()  # a new head says nothing
    kernel = model.get_parameter("stages.1.0.expand.conv.weight")
    assert kernel.std().item() == pytest.approx((2 / kernel.shape[0]) ** 0.5, rel=0.05)
    filters = model.get_parameter("stages.1.0.filter.conv.weight")
    # fan_out counts every output channel, though each reads one input
    assert filters.std().item() == pytest.approx((2 / (9 * filters.shape[0])) ** 0.5, rel=0.1)
    for name, buffer in model.named_buffers():
        assert (buffer == (1 if name.endswith("var") else 0)).all()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
    if isinstance(config, MobileViTConfig):
        linear = model.get_parameter("stages.2.1.blocks.0.mlp.fc1.weight")
        assert linear.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_trunk_is_every_block_in_order() -> None:
    assert list(create("mobilevit_xxs").blocks_by_depth()) == [
        "stages.0.0", "stages.1.0", "stages.1.1", "stages.1.2", "stages.2.0", "stages.2.1",
        "stages.3.0", "stages.3.1", "stages.4.0", "stages.4.1", "last",
    ]  # fmt: skip
    assert list(create("mobilevitv2_050").blocks_by_depth()) == [
        "stages.0.0", "stages.1.0", "stages.1.1", "stages.2.0", "stages.2.1",
        "stages.3.0", "stages.3.1", "stages.4.0", "stages.4.1",
    ]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("size", "grids"),
    [
        ((256, 256), [(32, 32), (16, 16), (8, 8)]),
        ((64, 96), [(8, 12), (4, 6), (2, 4)]),
        ((40, 33), [(6, 6), (4, 4), (2, 2)]),
    ],
)
def test_layouts_are_of_the_config_s_image(
    size: tuple[int, int], grids: list[tuple[int, int]]
) -> None:
    for config in (replace(SMALL, image_size=size), replace(SMALL2, image_size=size)):
        assert [layout.grid for layout in config.layouts] == grids
        assert [layout.stride for layout in config.layouts] == [8, 16, 32]
        assert all(layout.fold == (2, 2) for layout in config.layouts)
        assert [layout.tokens for layout in config.layouts] == [h * w // 4 for h, w in grids]
        attends = [m for m in build(config).modules() if isinstance(m, Attend | SeparableAttend)]
        assert [one.layout for one in attends] == [config.layouts[i] for i in (0, 1, 1, 2)]


@pytest.mark.parametrize("patch", [1, 2, 3])
def test_folds_are_torchs_and_come_back(patch: int) -> None:
    x = torch.randn(2, 5, 6, 12)
    tokens = unfold(x, patch)
    columns = nn.functional.unfold(x, patch, stride=patch)
    assert torch.equal(tokens, columns.view(2, 5, patch**2, -1))
    assert torch.equal(fold(tokens, patch, rows=6 // patch), x)


def test_a_cell_meets_those_at_its_place_in_every_patch() -> None:
    block = shaken(SMALL).stages[2][1]
    x = torch.randn(1, 16, 4, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad(block.connect(x)[0, :, 1, 2].sum(), x)
    met = gradient.abs().sum(dim=(0, 1)) > 1e-9
    assert met.tolist() == [[row % 2 == 1 and column % 2 == 0 for column in range(6)]
                            for row in range(4)]  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "factor", "hidden"),
    [(16, 4.0, 64), (24, 2.0, 48), (20, 0.5, 16), (1, 1.0, 8), (18, 1.0, 24), (32, 2.1, 64)],
)
def test_inner_channels_are_multiples_of_eight(channels: int, factor: float, hidden: int) -> None:
    assert expanded(channels, factor) == hidden


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 5}, "dims must be multiples of heads (5), got 16"),
        ({"dims": (16, 16, 0)}, "dims must be at least 1, got (16, 16, 0)"),
        ({"depths": (1, 2**11, 1)}, "must be at most 1024"),
        ({"last": 0}, "last must be at least 1, got 0"),
        ({"expand": 0.0}, "expand must be above 0"),
        ({"mlp_ratio": 1e9}, "mlp_ratio must be above 0 and at most 256"),
        ({"patch_size": 0}, "patch_size must be at least 1, got 0"),
        ({"dropout": 1.0}, "must be in [0, 1), got"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0, got 0.0"),
        ({"image_size": (0, 32)}, "pixels a side, got"),
    ],
)
def test_a_config_that_does_not_fit_says_why(changes: dict[str, Any], sentence: str) -> None:
    for config in (SMALL, SMALL2):
        if changes.keys() <= vars(config).keys():
            with pytest.raises(UserError, match=re.escape(sentence)):
                replace(config, **changes)


@pytest.mark.sampled(2)
@every_kind
def test_looking_inside_changes_no_bit(kind: str) -> None:
    config = KINDS[kind]
    model, image = shaken(config).eval(), random_images(config)
    before = model(image)
    with capture(model) as maps:
        inside = model(image)
    assert torch.equal(inside, before)
    assert list(maps) == [
        f"stages.{stage}.1.blocks.{i}.attention" for stage, i in ((2, 0), (3, 0), (3, 1), (4, 0))
    ]
    assert not any(module._forward_hooks for module in model.modules())
    heads = 4 if isinstance(config, MobileViTConfig) else 1
    for one, stage in zip(maps.values(), (0, 1, 1, 2), strict=True):
        layout = config.layouts[stage]
        rows = layout.tokens if heads == 4 else 1  # one question for all tokens
        assert one.layout == layout
        assert one.weights.shape == (2, config.patch_size**2, heads, rows, layout.tokens)
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(one.weights.shape[:-1]))


def test_maps_are_the_weights_that_were_used() -> None:
    seen: dict[str, Any] = {}

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.update(args=args, output=output)

    for config in (SMALL, SMALL2):
        model = shaken(config).double().eval()
        model.get_submodule("stages.3.1.blocks.1.attention.attend").register_forward_hook(keep)
        with capture(model, where="stages.3.1.blocks.1.*") as maps:
            model(random_images(config).double())
        (weights,) = (one.weights for one in maps.values())
        if config is SMALL:
            made = weights @ seen["args"][2]
        else:  # B P 1 1 N and B D P N
            keys = seen["args"][1].permute(0, 2, 3, 1)
            made = (weights[:, :, 0] @ keys).permute(0, 3, 1, 2)
        torch.testing.assert_close(made, seen["output"], rtol=0, atol=1e-12)


def test_maps_have_gradients_under_autocast_too() -> None:
    for config in (SMALL, SMALL2):
        model = shaken(config).eval()
        with torch.autocast("cpu", dtype=torch.bfloat16), capture(model) as maps:
            model(random_images(config))
        one = maps["stages.4.1.blocks.0.attention"].weights
        assert one.dtype is torch.float32
        one[..., 0].sum().backward()
        assert model.get_parameter("stages.2.0.expand.conv.weight").grad is not None
