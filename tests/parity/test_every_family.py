"""What holds for every family: its model compiled, exported, in half precision, checkpointed,
looked into, saved and loaded computes what it computes plainly."""

import copy
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.parity.compare import assert_identical, close
from vitrail import capture, load, save
from vitrail.models import catalogue
from vitrail.models.beit import BeitConfig
from vitrail.models.bit import BiTConfig
from vitrail.models.catalogue import build, change, family_of
from vitrail.models.coatnet import CoAtNetConfig
from vitrail.models.config import Config
from vitrail.models.mobilenetv2 import MobileNetV2Config
from vitrail.models.mobilevit import MobileViTConfig
from vitrail.models.mobilevitv2 import MobileViTV2Config
from vitrail.models.model import Model
from vitrail.models.resnet_v15 import ResNetV15Config
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.vit import ViTConfig
from vitrail.training.recompute import checkpoint_blocks

# a tokenizer has no attention and no classes: tests/models/test_tokenizer.py is about it
FAMILIES = {name: row for name, row in catalogue.FAMILIES.items() if name != "tokenizer"}
MOST_AXES = 5  # that Core ML knows
# Everything that inductor does but generating code. Plain "aot_eager" expects other strides of
# LayerNorm's gradient than torch's own kernel gives.
BACKEND = "aot_eager_decomp_partition"

# small, oblong, and with what makes a family awkward: padding, shifts, folds, strides
CONFIGS: dict[str, Config] = {
    "vit": ViTConfig(
        dim=32, depth=3, heads=4, mlp_dim=64, patch_size=8, image_size=(32, 48), num_classes=5
    ),
    "beit": BeitConfig(
        dim=32, depth=3, heads=4, mlp_dim=64, patch_size=8, image_size=(32, 48), num_classes=5
    ),
    "swin": SwinConfig(
        dim=16, depths=(2, 2), heads=(2, 4), window_size=4, image_size=(36, 52), num_classes=5
    ),
    "swinv2": SwinV2Config(
        dim=16, depths=(2, 2), heads=(2, 4), window_size=4, image_size=(36, 52), num_classes=5
    ),
    "mobilevit": MobileViTConfig(
        stem=8,
        widths=(8, 8, 12, 16, 20),
        dims=(16, 24, 32),
        depths=(1, 2, 1),
        heads=4,
        last=40,
        image_size=(64, 96),
        num_classes=5,
    ),
    "mobilevitv2": MobileViTV2Config(
        stem=8,
        widths=(8, 8, 16, 24, 32),
        dims=(8, 16, 16),
        depths=(1, 2, 1),
        image_size=(64, 96),
        num_classes=5,
    ),
    "coatnet": CoAtNetConfig(
        stem=(8, 16),
        dims=(16, 32, 64, 96),
        depths=(1, 2, 2, 1),
        image_size=(64, 96),
        num_classes=5,
    ),
    "resnet": ResNetV15Config(depths=(1, 2, 1), width=16, image_size=(36, 52), num_classes=5),
    "bit": BiTConfig(depths=(1, 2, 1), width=16, groups=8, image_size=(36, 52), num_classes=5),
    "mobilenetv2": MobileNetV2Config(
        stem=8,
        widths=(8, 8, 16, 16, 24, 24, 32),
        depths=(1, 2, 1, 1, 1, 1, 1),
        last=32,
        expand=2.0,
        image_size=(64, 96),
        num_classes=5,
    ),
}

# Tracing takes seconds a block, so what compiles or exports has one block of each sort.
SHALLOW: dict[str, Config] = {
    "vit": change(CONFIGS["vit"], {"depth": 1}),
    "beit": change(CONFIGS["beit"], {"depth": 1}),
    "swin": change(CONFIGS["swin"], {"depths": (2,), "heads": (2,)}),
    "swinv2": change(CONFIGS["swinv2"], {"depths": (2,), "heads": (2,)}),
    "mobilevit": change(CONFIGS["mobilevit"], {"depths": (1, 1, 1)}),
    "mobilevitv2": change(CONFIGS["mobilevitv2"], {"depths": (1, 1, 1)}),
    "coatnet": change(CONFIGS["coatnet"], {"kinds": "CT", "dims": (16, 32), "depths": (1, 1)}),
    "resnet": change(CONFIGS["resnet"], {"depths": (1, 1)}),
    "bit": change(CONFIGS["bit"], {"depths": (1, 1)}),
    "mobilenetv2": change(CONFIGS["mobilenetv2"], {"depths": (1, 2, 1, 1, 1, 1, 1)}),
}
# which have no attention
CNNS = ("resnet", "bit", "mobilenetv2")

ATTENTIVE = tuple(name for name in FAMILIES if name not in CNNS)

with_attention = pytest.mark.parametrize("family", ATTENTIVE)
every_family = pytest.mark.parametrize("family", FAMILIES)
shallow_or_deep = pytest.mark.parametrize(
    "configs", [SHALLOW, pytest.param(CONFIGS, marks=pytest.mark.slow)], ids=["shallow", "deep"]
)


def make(
    family: str,
    dtype: torch.dtype = torch.float32,
    configs: dict[str, Config] = CONFIGS,
    **changes: Any,
) -> Model:
    """A model whose every parameter and statistic matters, so that nothing hides a difference."""
    torch.manual_seed(0)
    model = build(change(configs[family], changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 1.5)
    return model.to(dtype).eval()


def picture(family: str, dtype: torch.dtype = torch.float32, batch: int = 2) -> Tensor:
    config = CONFIGS[family]
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, config.channels, *config.image_size, generator=generator).to(dtype)


def test_there_is_a_small_model_of_every_family() -> None:
    assert CONFIGS.keys() == SHALLOW.keys() == FAMILIES.keys()
    assert all(family_of(CONFIGS[family]) == family for family in FAMILIES)


def quickly(*names: str) -> pytest.MarkDecorator:
    """Every family, all but these slow."""
    return pytest.mark.parametrize(
        "family",
        [pytest.param(n, marks=[] if n in names else [pytest.mark.slow]) for n in FAMILIES],
    )


# One family of each sort of code is compiled quickly: ViT for BEiT, below without a backward pass
# Swin V2 for Swin, and with checkpoints CoAtNet, for the convolutions of the others.
@pytest.mark.slow
@shallow_or_deep
@quickly("vit")
def test_compiled_in_one_graph_forwards_and_backwards(
    family: str, configs: dict[str, Config]
) -> None:
    model = make(family, torch.float64, configs)
    image = picture(family, torch.float64).requires_grad_()
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    out, expected = compiled(image), model(image)
    close(out, expected)
    (gradient,) = torch.autograd.grad(out.square().sum(), image)
    (plain,) = torch.autograd.grad(expected.square().sum(), image)
    close(gradient, plain)
    torch._dynamo.reset()


@pytest.mark.slow
def test_windows_are_traced_in_one_graph() -> None:
    model, image = make("swinv2", torch.float64, SHALLOW), picture("swinv2", torch.float64)
    with torch.no_grad():
        close(torch.compile(model, fullgraph=True, backend="eager")(image), model(image))
    torch._dynamo.reset()


def export(model: Model, image: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=64)
    return torch.export.export(model, (image,), dynamic_shapes=({0: batch},))


# The operators of every family are checked without exporting it, below; Swin V2 is traced above.
@pytest.mark.slow
@shallow_or_deep
@quickly("vit", "mobilevit")
def test_exported_for_any_batch_in_what_phones_read(
    family: str, configs: dict[str, Config]
) -> None:
    model = make(family, torch.float64, configs)
    program = export(model, picture(family, torch.float64))
    exported = program.module()
    for count in (1, 5):
        image = picture(family, torch.float64, count)
        close(exported(image), model(image))
    check_graph(program)


# torch's own, when it copies a graph
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.slow
@every_family
def test_exported_written_and_read_again_and_decomposed(family: str) -> None:
    model, file = make(family, torch.float64), io.BytesIO()
    program = export(model, picture(family, torch.float64))
    check_graph(program.run_decompositions())
    torch.export.save(program, file)
    file.seek(0)
    image = picture(family, torch.float64, 5)
    close(torch.export.load(file).module()(image), model(image))


def check_graph(program: torch.export.ExportedProgram) -> None:
    """Few enough axes for Core ML, and none of the operators that phones lack."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    wide = [
        f"{node.target} {tuple(node.meta['val'].shape)}"
        for node in calls
        if isinstance(node.meta.get("val"), Tensor) and node.meta["val"].ndim > MOST_AXES
    ]
    assert not wide
    assert not missing_on_phones({str(node.target) for node in calls})


def missing_on_phones(names: set[str]) -> list[str]:
    return [n for n in names if re.search(r"\b(unfold\w*|fold|im2col|col2im)\b", n)]


class Operators(TorchDispatchMode):
    """The names of all operators that run, and the most axes that one gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.names, self.axes = set[str](), 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.add(str(func))
        for one in result if isinstance(result, tuple | list) else [result]:
            self.axes = max(self.axes, one.ndim if isinstance(one, Tensor) else 0)
        return result


@pytest.mark.sampled(2)
@every_family
def test_phones_have_its_operators_and_axes(family: str) -> None:
    model, image = make(family), picture(family)
    with torch.no_grad(), Operators() as seen:
        model(image)
    assert not missing_on_phones(seen.names)
    assert 4 <= seen.axes <= MOST_AXES


def test_an_operator_that_phones_lack_is_seen() -> None:
    image = torch.zeros(1, 3, 4, 4)
    with Operators() as seen:
        nn.functional.unfold(image, 2)
        image.unfold(2, 2, 2).unfold(3, 2, 2)
    assert len(missing_on_phones(seen.names)) == 2
    assert seen.axes > MOST_AXES


@pytest.mark.sampled(2)
@every_family
def test_autocast_in_bfloat16_stays_near(family: str) -> None:
    model, image = make(family), picture(family)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(image)
    full = model(image)
    assert half.isfinite().all()
    assert (half.float() - full).abs().max() <= 0.05 * full.abs().max().clamp(min=1)


@pytest.mark.sampled(2)
@every_family
def test_checkpointed_blocks_give_the_same_gradients_and_statistics(family: str) -> None:
    results = []
    for prepare in (lambda _: None, checkpoint_blocks):
        model, image = make(family, drop_path=0.3).train(), picture(family, batch=4)
        prepare(model)
        torch.manual_seed(3)
        model(image).square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((gradients, model.state_dict()))
    (plain, state), (checkpointed, same_state) = results
    assert_identical(checkpointed, plain)
    assert_identical(same_state, state)


@pytest.mark.slow
def test_checkpointed_and_compiled_statistics_count_a_batch_once() -> None:
    model, image = make("coatnet", configs=SHALLOW).train(), picture("coatnet")
    plain = copy.deepcopy(model)
    expected = plain(image)
    expected.square().sum().backward()
    checkpoint_blocks(model)
    out = torch.compile(model, fullgraph=True, backend=BACKEND)(image)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    torch._dynamo.reset()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, msg=name)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(
            model.get_parameter(name).grad, parameter.grad, rtol=1e-3, atol=1e-4, msg=name
        )


@pytest.mark.sampled(2)
@with_attention
def test_looked_into_to_the_bit(family: str) -> None:
    model, image = make(family), picture(family)
    before = model(image)
    with capture(model) as maps:
        inside = model(image)
    assert torch.equal(inside, before)
    assert torch.equal(model(image), before)
    blocks = tuple(model.blocks_by_depth())
    for name, one in maps.items():
        assert name.startswith(blocks)
        sums = one.weights.sum(dim=-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))
        assert one.weights.shape[-1] == one.layout.tokens


@pytest.mark.sampled(2)
@every_family
def test_saved_and_loaded_to_the_bit(family: str, tmp_path: Path) -> None:
    model, image = make(family), picture(family)
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    assert_identical(again.state_dict(), model.state_dict())
    assert torch.equal(again(image), model(image))


@pytest.mark.sampled(2)
@every_family
def test_laid_out_without_memory_and_filled(family: str) -> None:
    """What no checkpoint brings back, such as indices and masks, has its values all the same."""
    model, image = make(family), picture(family)
    with torch.device("meta"):
        empty = FAMILIES[family].model(model.config)
    filled = empty.to_empty(device="cpu").eval()
    filled.load_state_dict(model.state_dict())
    assert torch.equal(filled(image), model(image))


@pytest.mark.sampled(2)
@every_family
def test_a_training_step_never_waits_for_the_device(family: str) -> None:
    """On a device without values, whatever asks for one fails."""
    changes: dict[str, Any] = {"drop_path": 0.5}
    if family == "vit":
        changes["patch_dropout"] = 0.5
    model = make(family, **changes).to("meta").train()
    model(picture(family, batch=8).to("meta")).square().sum().backward()
