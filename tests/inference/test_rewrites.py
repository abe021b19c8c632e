"""Every rewrite computes the same, leaves the model alone, shares its memory and removes work."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.kinds import KINDS, SMALL
from tests.parity.test_every_family import (
    ATTENTIVE,
    BACKEND,
    CONFIGS,
    SHALLOW,
    export,
    make,
    picture,
)
from vitrail import UserError, capture
from vitrail.inference.rewrites.activations import fuse_activations, name_of
from vitrail.inference.rewrites.batch_norms import fold_batch_norms
from vitrail.inference.rewrites.biases import bake_biases
from vitrail.inference.rewrites.channels_last import use_channels_last
from vitrail.inference.rewrites.kernels import bake_kernels
from vitrail.inference.rewrites.last_block import prune_last_block
from vitrail.inference.rewrites.norms import flatten_norms
from vitrail.inference.rewrites.optimise import (
    EAGER_REWRITES,
    REWRITES,
    OutputKind,
    compute,
    optimise,
    optimise_for_eager,
)
from vitrail.inference.rewrites.patches import multiply_patches
from vitrail.inference.rewrites.positions import bake_positions
from vitrail.inference.rewrites.projections import fuse_projections
from vitrail.inference.rewrites.windows import gather_windows
from vitrail.layers.linear import is_onednn_faster, multiply
from vitrail.models.catalogue import build, change
from vitrail.models.config import Config
from vitrail.models.model import Model

RELATIVE = 1e-10
# what the "rw" CoAtNets do otherwise, which decides where a norm can be folded
COATNET = CONFIGS["coatnet"]
RECORDS: dict[str, Config] = {
    **{f"vit, {kind}": config for kind, config in KINDS.items()},
    "vit, mean before the norm": replace(SMALL, pool="mean", final_norm="pooled", registers=1),
    "vit, class and mean before no norm": replace(SMALL, pool="cls+mean", final_norm="none"),
    "vit, registers and distilled": replace(SMALL, registers=3, distilled=True),
    **{family: config for family, config in CONFIGS.items() if family != "vit"},
    **{
        f"{family}, windows divide the grid": change(CONFIGS[family], {"image_size": (64, 96)})
        for family in ("swin", "swinv2")
    },
    "beit, shared bias": change(CONFIGS["beit"], {"relative_bias": "shared", "pool": "cls"}),
    "beit, large patches": change(CONFIGS["beit"], {"patch_size": 16}),
    "coatnet, pooled": change(COATNET, {"downsampling": "pool", "preactivation": True}),
    "coatnet, pooled, no activation": change(COATNET, {"downsampling": "pool"}),
    "coatnet, early squeeze": change(COATNET, {"early_squeeze": True}),
    "coatnet, computed bias": change(COATNET, {"bias_hidden": 16}),
}
every_record = pytest.mark.parametrize("record", RECORDS)


def filled(config: Config) -> Model:
    """Random everywhere, in float64, so that nothing hides a difference."""
    torch.manual_seed(0)
    model = build(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
    return model


def images(model: Model, batch: int = 2) -> Tensor:
    config = model.config
    generator = torch.Generator().manual_seed(1)
    shape = (batch, config.channels, *config.image_size)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= RELATIVE * expected.abs().max()


class Calls(TorchDispatchMode):
    """How often each operator runs, and how many multiplications its products take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def count_calls(model: Model) -> Counter[str]:
    batch = images(model)
    with torch.no_grad(), Calls() as calls:  # inference mode would hide what operators are made of
        model.features(batch)
    return calls.counts


# For each rewrite the operators that it removes, and the records where all of them disappear.
REMOVED: dict[Callable[[Model], Model], dict[str, tuple[str, ...]]] = {
    fold_batch_norms: {
        "mobilevit": ("native_batch_norm",),
        "mobilevitv2": ("native_batch_norm",),
        "coatnet": ("native_batch_norm",),
        "coatnet, pooled, no activation": ("native_batch_norm",),
        "resnet": ("native_batch_norm",),
        "mobilenetv2": ("native_batch_norm",),
    },
    bake_kernels: {
        "bit": ("var_mean", "rsqrt"),
        "vit, hybrid": ("var_mean", "sqrt"),
        "vit, hybrid, larger patches": ("sqrt",),
    },
    multiply_patches: {"beit, large patches": ("convolution",)},
    bake_positions: {},
    bake_biases: {
        "beit": ("index_select",),
        "beit, shared bias": ("index_select",),
        "swin": ("index_select", "where", "ne"),
        "swinv2": ("index_select", "ne", "sigmoid"),
        "coatnet": ("index_select",),
        "coatnet, computed bias": ("index_select", "relu"),
    },
    fuse_projections: {"swinv2": ("exp", "clamp", "zeros_like"), "beit": ("zeros_like",)},
    flatten_norms: {},  # the same operators on other shapes
    gather_windows: {
        "swin, windows divide the grid": ("roll",),
        "swinv2, windows divide the grid": ("roll",),
    },
}


def test_every_rewrite_has_its_count() -> None:
    assert set(REMOVED) == set(REWRITES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_the_operators_it_is_about_run_no_longer(rewrite: Callable[[Model], Model]) -> None:
    for record, operators in REMOVED[rewrite].items():
        model = filled(RECORDS[record])
        before, after = count_calls(model), count_calls(rewrite(model))
        assert any(before[one] for one in operators), (record, before)
        assert not any(after[one] for one in operators), (record, after)


@pytest.mark.sampled(2)
@every_record
def test_each_rewrite_alone_is_equal_and_leaves_the_model_alone(record: str) -> None:
    model = filled(RECORDS[record])
    batch = images(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules = dict(model.named_modules())
    with torch.inference_mode():
        tokens, features = model.encode(batch), model.features(batch)
        for rewrite in (*REWRITES, *EAGER_REWRITES):
            rewritten = rewrite(model)
            assert_close(rewritten.encode(batch), tokens)
            assert_close(rewritten.features(batch), features)
        assert_close(prune_last_block(model).features(batch), features)
        assert torch.equal(model.encode(batch), tokens)
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())


@pytest.mark.sampled(2)
@every_record
def test_all_of_them_together_are_equal(record: str) -> None:
    model = filled(RECORDS[record])
    batch = images(model)
    headless: tuple[OutputKind, ...] = ("pooled", "tokens")
    outputs: tuple[OutputKind, ...] = ("logits", "scores", *headless)
    with torch.inference_mode():
        for output in outputs if model.config.num_classes else headless:
            for fast in (optimise(model, output=output), optimise_for_eager(model, output=output)):
                assert_close(fast(batch), compute(model, batch, output))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rewrite", "applies"),
    [
        (fold_batch_norms, {"mobilevit", "mobilevitv2", "coatnet", "resnet", "mobilenetv2"}),
        (bake_kernels, {"bit"}),
        (multiply_patches, set[str]()),  # small patches stay a convolution
        (bake_positions, {"vit"}),
        (bake_biases, {"beit", "swin", "swinv2", "coatnet"}),
        (fuse_projections, {"beit", "swinv2"}),
        (flatten_norms, {"swin", "swinv2", "mobilevit"}),
        (gather_windows, set[str]()),  # windows that do not divide the grid stay
        (prune_last_block, {"vit", "beit"}),
        (use_channels_last, {"mobilevit", "mobilevitv2", "coatnet", "resnet", "mobilenetv2"}),
        (fuse_activations, {"vit", "beit", "swin", "swinv2", "mobilevit", "coatnet"}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_where_it_does_not_apply_the_model_is_returned(
    rewrite: Callable[[Model], Model], applies: set[str]
) -> None:
    changed = {name for name in CONFIGS if rewrite(model := make(name)) is not model}
    assert changed == applies


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["mobilevit", "coatnet", "resnet", "mobilenetv2"])
def test_maps_stay_channels_last_and_pointwise_convolutions_are_products(family: str) -> None:
    model = use_channels_last(fold_batch_norms(make(family)))
    convolutions = [module for module in model.modules() if type(module) is nn.Conv2d]
    strays = list[str]()

    def see(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        if not output.is_contiguous(memory_format=torch.channels_last):
            strays.append(str(module))

    for module in convolutions:
        module.register_forward_hook(see)
    with torch.inference_mode():
        model.features(images(model).float())
    assert not strays
    assert not any(one.kernel_size == one.stride == (1, 1) for one in convolutions)
    assert isinstance(model.config, type(make(family).config))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["vit", "swin", "mobilevit"])
def test_onednn_computes_activations_with_the_product_before(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.layers.linear.is_onednn_faster", lambda: True)
    monkeypatch.setattr("vitrail.layers.linear.MIN_PRODUCTS", 0)
    model = filled(CONFIGS[family])
    expected = model.features(images(model))
    single = fuse_activations(model.float())
    calls = list[str]()
    for name, module in single.named_modules():
        if isinstance(module, nn.GELU | nn.SiLU) and name.endswith("mlp.act"):
            module.register_forward_hook(lambda *rest: calls.append("act"))
    with torch.inference_mode():
        found = single.features(images(model).float())
    assert not calls
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_gradients_pass_fused_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.layers.linear.is_onednn_faster", lambda: True)
    monkeypatch.setattr("vitrail.layers.linear.MIN_PRODUCTS", 0)
    exact = filled(CONFIGS["vit"])
    given = images(exact).requires_grad_()
    expected = torch.autograd.grad(exact(given).square().sum(), given)[0]
    fast = optimise_for_eager(exact.float(), output="logits")
    single = given.detach().float().requires_grad_()
    found = torch.autograd.grad(fast(single).square().sum(), single)[0]
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_what_is_no_number_passes_activations_of_onednn() -> None:
    if not is_onednn_faster():
        pytest.skip("oneDNN is not used on this processor, and may have other code for it")
    odd = torch.tensor([[math.nan], [88.0], [-88.0], [0.0]])
    activations = (nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.ReLU())
    named = [(one, name) for one in activations if (name := name_of(one)) is not None]
    assert len(named) >= 3
    for activation, name in named:
        found = multiply(odd, torch.ones(1, 1), None, name)
        assert torch.allclose(found, activation(odd), equal_nan=True), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["swin", "swinv2", "mobilevit"])
def test_norms_of_grids_and_folds_see_sequences(name: str) -> None:
    model, ranks = flatten_norms(make(name).double()), set[int]()
    for module in model.modules():
        if type(module) is nn.LayerNorm:
            module.register_forward_hook(lambda _, given, __: ranks.add(given[0].ndim))
    model(images(model).double())
    assert ranks == {3}


def test_patches_and_positions_cost_one_addition_before_the_class_token() -> None:
    model = filled(replace(SMALL, patch_size=16, registers=2))
    before = count_calls(model)
    after = count_calls(bake_positions(multiply_patches(model)))
    assert after["convolution"] == 0 < before["convolution"]
    assert after["new_zeros"] == 0 < before["new_zeros"]
    assert after["cat"] == before["cat"] - 1


class Rows(TorchDispatchMode):
    """Rows times columns times depth of every matrix product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm"):
            left, right = args[-2:]
            self.products += left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))


def count_products(model: Model) -> int:
    batch = images(model, batch=1)
    with torch.no_grad(), Rows() as rows:
        model.features(batch)
    return rows.products


def test_a_last_block_for_the_class_token_projects_one_query() -> None:
    """Of 25 tokens 24 need no query, no output and no MLP: 2 D² and 2 D M products each."""
    model = filled(SMALL)
    saved = count_products(model) - count_products(prune_last_block(model))
    assert saved == 24 * (2 * 32 * 32 + 2 * 32 * 64)


def test_a_last_block_for_the_mean_has_one_output_of_its_mlp() -> None:
    model = filled(CONFIGS["beit"])
    saved = count_products(model) - count_products(prune_last_block(model))
    assert saved == 23 * 32 * 64  # 24 patches become one


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CONFIGS)
def test_memory_of_unchanged_weights_is_shared(family: str) -> None:
    model = make(family)
    own = {tensor.data_ptr() for tensor in model.state_dict().values()}
    fast = optimise(model)
    shared = {p.data_ptr() for p in fast.parameters()} & own
    copied = sum(p.numel() for p in fast.parameters() if p.data_ptr() not in own)
    convolutions = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d))
    vectors = sum(p.numel() for p in model.parameters() if p.ndim == 1 or p.shape[0] <= 2)
    norms = any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert shared
    assert copied <= 3 * vectors + (convolutions if norms else 0)


def test_the_copy_can_be_moved_and_hooked_without_the_model_noticing() -> None:
    model = make("vit")
    fast = optimise(model)
    fast.double()
    fast.model.get_submodule("blocks.0").register_forward_hook(lambda *rest: None)
    fast.model.register_forward_hook(lambda *rest: None)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not any(module._forward_hooks for module in model.modules())
    assert all(p.requires_grad for p in model.parameters())


def test_large_biases_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.inference.rewrites.biases.MOST_MEMORY", 1e-6)
    model = make("swin")
    assert bake_biases(model) is model


def test_what_stands_in_the_place_of_a_layer_is_left_alone() -> None:
    """A subclass, as adapters are, may compute something else."""

    class Other(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    model = make("mobilevit", torch.float64)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.__class__ = Other
    batch = picture("mobilevit", torch.float64)
    assert fold_batch_norms(model) is model
    assert_close(optimise(model, output="logits")(batch), model(batch))


def test_weights_that_change_need_another_call() -> None:
    model = make("mobilevit", torch.float64)
    batch = picture("mobilevit", torch.float64)
    stale = optimise(model, output="logits")
    with torch.no_grad():
        model.stem.norm.weight.mul_(1.5)  # type: ignore[union-attr,operator]
    assert (stale(batch) - model(batch)).abs().max() > 1e-5
    assert_close(optimise(model, output="logits")(batch), model(batch))


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="evaluation mode"):
        optimise(make("vit").train())
    with pytest.raises(UserError, match="no head"):
        optimise(make("vit", num_classes=0))
    model = make("vit")
    handle = model.register_forward_hook(lambda *rest: None)
    with pytest.raises(UserError, match="without hooks"):
        optimise(model)
    handle.remove()
    optimise(model)


def test_capture_sees_a_rewritten_model() -> None:
    """Every attention but the last has all of its rows; the last says what it lacks."""
    model = make("vit", torch.float64)
    fast, batch = optimise(model, output="logits"), picture("vit", torch.float64)
    with capture(model) as expected:
        model(batch)
    with capture(fast) as maps:
        fast(batch)
    *whole, last = maps.values()
    for one, other in zip(whole, expected.values(), strict=False):
        torch.testing.assert_close(one.weights, other.weights, rtol=1e-10, atol=1e-12)
    assert last.weights.shape[-2] == 1
    with pytest.raises(UserError, match="a row for each"):
        last.on_grid((0, 0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", [name for name in ATTENTIVE if name != "vit"])
def test_capture_sees_other_rewritten_families_whole(family: str) -> None:
    model = make(family, torch.float64)
    fast, batch = optimise(model, output="logits"), picture(family, torch.float64)
    with capture(model) as expected:
        model(batch)
    with capture(fast) as maps:
        fast(batch)
    assert len(maps) == len(expected)
    for one, other in zip(maps.values(), expected.values(), strict=True):
        torch.testing.assert_close(one.weights, other.weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=[] if f == "vit" else [pytest.mark.slow]) for f in SHALLOW]
)
def test_rewritten_models_export(family: str) -> None:
    model = make(family, torch.float64, SHALLOW)
    fast = optimise(model, output="logits")
    program = export(fast, picture(family, torch.float64))  # type: ignore[arg-type]
    one = picture(family, torch.float64, 1)
    assert_close(program.module()(one), model(one))


@pytest.mark.slow
@pytest.mark.parametrize("family", SHALLOW)
def test_rewritten_models_compile_in_one_graph(family: str) -> None:
    model, batch = make(family, torch.float64, SHALLOW), picture(family, torch.float64)
    compiled = torch.compile(optimise(model, output="logits"), fullgraph=True, backend=BACKEND)
    with torch.inference_mode():
        assert_close(compiled(batch), model(batch))
    torch._dynamo.reset()
