"""`vitrail.info`: torchinfo's totals, and how weights start."""

import math
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.models.kinds import KINDS
from tests.parity.test_every_family import CONFIGS
from vitrail.models.catalogue import build, families
from vitrail.tasks.info import Initialisation, ModelInfo, Torchinfo

# As an article on ViT-H/14 has them.
ARTICLE: dict[str, Any] = {"head": "pretrain", "final_norm": "pooled"}


def counted_with_hooks(model: nn.Module, images: Tensor) -> Torchinfo:
    """torchinfo 1.8.0 by its source: calls of modules without children, of which each named weight
    or bias counts once for an image, or once for each place that a convolution writes."""
    found = {"macs": 0, "outputs": 0, "params": 0}

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        own = sum(parameter.numel() for parameter in module.parameters())
        places = output[:, 0].numel() if isinstance(module, nn.Conv2d) else len(output)
        found["macs"] += places * own
        found["outputs"] += 4 * output.numel()
        found["params"] += 4 * own

    for module in model.modules():
        if isinstance(getattr(module, "weight", None), nn.Parameter):
            module.register_forward_hook(note)
    model(images)
    return Torchinfo(found["macs"], 4 * images.numel(), 2 * found["outputs"], found["params"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", CONFIGS)
def test_totals_of_torchinfo_by_hooks(family: str) -> None:
    config = CONFIGS[family]
    images = torch.zeros(2, config.channels, *config.image_size)
    found = ModelInfo(family, config, 2).torchinfo
    assert found == counted_with_hooks(build(config).eval(), images)


def test_totals_of_torchinfo_where_a_kernel_is_read_and_not_called() -> None:
    found = ModelInfo("vit", KINDS["normed patches"], 1)
    assert found.facts()["torchinfo"]["total_size"] == found.torchinfo.total_size > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_mult_adds_of_torchinfo_without_measuring(kind: str) -> None:
    found = ModelInfo(kind, KINDS[kind], 2)
    assert found.why("blocks.0").weight_macs == found.torchinfo.macs


@pytest.mark.slow
def test_totals_of_torchinfo_in_an_article() -> None:
    """1.65 G, 1.20 + 1858.00 + 2533.42 = 4392.63 MB, for two images."""
    found = vitrail.info("vit_h_14", batch_size=2, **ARTICLE).torchinfo
    assert (found.macs, found.input_size) == (1_651_209_680, 2 * 3 * 224 * 224 * 4)
    sizes = (found.input_size, found.pass_size, found.params_size, found.total_size)
    assert [f"{size / 1e6:.2f}" for size in sizes] == ["1.20", "1858.00", "2533.42", "4392.63"]
    assert found.params_size == 4 * (633_685_480 - 1280 - 257 * 1280)


def test_totals_of_torchinfo_itself() -> None:
    """Our positions are a module, so that it counts them too."""
    torchinfo = pytest.importorskip("torchinfo", reason="compared where torchinfo is installed")
    fields: dict[str, Any] = {**ARTICLE, "depth": 2, "dim": 48, "heads": 3, "mlp_dim": 96}
    model = vitrail.create("vit_ti_16", **fields).eval()
    printed = torchinfo.summary(model, input_size=(2, 3, 224, 224), verbose=0)
    found = vitrail.info("vit_ti_16", batch_size=2, **fields).torchinfo
    positions = 4 * 197 * 48
    assert printed.total_output_bytes == found.pass_size + 2 * positions
    assert printed.total_input == pytest.approx(found.input_size, abs=100)  # and Python's object
    if printed.total_param_bytes != 4 * printed.total_params:  # 1.8.0, and not what came later
        assert printed.total_param_bytes == found.params_size + positions
        assert printed.total_mult_adds == found.macs


@pytest.fixture(scope="module")
def init() -> Initialisation:
    return vitrail.info("vit_h_14", depth=1, head="pretrain").init()


@pytest.mark.parametrize(
    ("name", "std", "largest"),  # of the largest absolute value, in deviations
    [
        ("cls", 0, 0),
        ("patches.projection.weight", math.sqrt(1 / 588), 2 / 0.8796),
        ("positions.table", 0.02, None),
        ("blocks.0.attention.qkv.weight", math.sqrt(2 / 2560), math.sqrt(3)),
        ("blocks.0.mlp.fc1.weight", math.sqrt(2 / 6400), math.sqrt(3)),
        ("blocks.0.mlp.fc1.bias", 1e-6, None),
        ("blocks.0.mlp.fc2.bias", 1e-6, None),
        ("blocks.0.attention.qkv.bias", 0, 0),
        ("head.hidden.weight", math.sqrt(1 / 1280), 2 / 0.8796),
        ("head.classes.weight", 0, 0),
        ("head.classes.bias", 0, 0),
    ],
)
def test_initial_values_of_an_article(
    init: Initialisation, name: str, std: float, largest: float | None
) -> None:
    found = next(one for one in init.tensors if one.name == name)
    numbers = math.prod(found.shape)
    assert found.std == pytest.approx(std, rel=4 / math.sqrt(2 * numbers))
    assert abs(found.mean) <= 4 * std / math.sqrt(numbers)
    if largest is None:  # a normal distribution has no end
        assert found.largest > 3 * std
    else:
        assert found.largest == pytest.approx(largest * std, rel=0.01)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CONFIGS)
def test_initial_values_are_those_of_create(family: str) -> None:
    state = torch.get_rng_state()
    found = ModelInfo(family, CONFIGS[family], 1).init()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    model = build(CONFIGS[family])
    assert [one.name for one in found.tensors] == [name for name, _ in model.named_parameters()]
    for one in found.tensors:
        parameter = model.get_parameter(one.name)
        assert one.largest == parameter.abs().max().item()
        assert one.std == pytest.approx(parameter.std(correction=0).item(), abs=1e-6)


@pytest.mark.parametrize("family", families())
def test_every_family_documents_how_its_weights_start(family: str) -> None:
    config = next(iter(families()[family].variants.values())).config
    rules = ModelInfo(family, CONFIGS.get(family, config), 1).init().rules
    assert len(rules) > 2
    assert all(what and how for what, how in rules)
    assert ("what", "how") not in rules


def test_blocks_are_one_row() -> None:
    init = ModelInfo("vit", CONFIGS["vit"], 1).init()
    rows = dict(init.by_kind())
    assert len(rows["blocks.*.norm1.weight"]) == 3
    assert [one.name for one in rows["norm.weight"]] == ["norm.weight"]
    assert sum(map(len, rows.values())) == len(init.tensors)
    assert init.facts()["tensors"][0] == asdict(init.tensors[0]) | {"shape": [1, 1, 32]}
    assert "std" in init._repr_html_()
