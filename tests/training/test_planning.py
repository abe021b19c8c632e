"""What a plan says of a GPU is what torch allocates, and what it recommends can be run."""

import json
import shlex
from dataclasses import replace

import pytest

from tests.parity.test_every_family import CONFIGS
from vitrail import UserError, plan
from vitrail.cli.app import build_parser, main
from vitrail.cli.train import Train
from vitrail.models.activations import count_activations
from vitrail.models.config import Config
from vitrail.models.vit import ViTConfig
from vitrail.training.planning import GB, Setting, make_strategy
from vitrail.training.rehearsal import rehearse

SMALL = ViTConfig(
    dim=256, depth=6, heads=4, mlp_dim=1024, patch_size=16, image_size=(96, 96), num_classes=100
)

# As many rows as the most processes.
WIDE = replace(SMALL, dim=1024, heads=16, mlp_dim=4096, num_classes=1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "share"),
    [
        (64, 64),
        pytest.param(64, 8, marks=pytest.mark.slow),
        pytest.param(256, 256, marks=pytest.mark.slow),
        pytest.param(1024, 1024, marks=pytest.mark.slow),
        pytest.param(1024, 8, marks=pytest.mark.slow),
    ],
)
def test_modelled_memory_is_what_torch_allocates(gpus: int, share: int) -> None:
    images, config = 2, SMALL if share < 256 else WIDE
    measured = rehearse(config, gpus=gpus, share=share, images=images)
    setting = Setting(
        gpus=gpus, gpus_per_machine=8, batch_size=images * gpus, half=False, ema=False
    )
    cost = count_activations(config, half=False)
    kind = "fsdp" if share == gpus else "hsdp"
    modelled = make_strategy(cost, setting, kind, share, "none", 1).memory  # type: ignore[arg-type]
    # every tensor is cut into equal rows, the last of which are padding
    assert modelled.weights == pytest.approx(measured.weights, rel=0.15)
    assert modelled.optimiser == pytest.approx(measured.optimiser, rel=0.15)
    if config is SMALL:  # at the peak of the others more is gathered, and less is kept
        assert modelled.activations == pytest.approx(measured.activations, rel=0.25)
    without = modelled.total - modelled.reserved
    print(f"{gpus} GPUs, {share} share: modelled {without:,}, measured {measured.total:,} bytes")
    assert without == pytest.approx(measured.total, rel=0.3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_can_be_counted(family: str) -> None:
    config: Config = CONFIGS[family]
    whole, half = (count_activations(config, half=half) for half in (False, True))
    assert whole.params == half.params
    assert len(whole.blocks) == len(half.blocks) > 1
    # kernels that are standardised at every call are kept in both precisions
    most = 1.1 if family == "bit" else 1.0
    assert 0.4 * whole.kept < half.kept < most * whole.kept
    assert whole.outside >= 0
    assert whole.outside_params > 0


def test_vit_g_on_64_gpus() -> None:
    found = plan("vit_G_14", gpus=64, memory=80, batch_size=4096)
    assert found.params == 1_844_440_680
    by_kind = {one.parallel: one for one in found.strategies}
    assert by_kind.keys() == {"ddp", "hsdp", "fsdp"}
    # from first principles: 4 bytes a number
    assert by_kind["ddp"].memory.weights == 4 * found.params
    # of each parameter rows, so a little more than the share
    share = 4 * found.params / 64
    assert 2 * share < by_kind["fsdp"].memory.optimiser < 2.05 * share
    assert 8 * share < by_kind["hsdp"].memory.gradients < 8.05 * share
    assert by_kind["ddp"].sent_between == round(2 * 4 * found.params * 63 / 64)
    assert by_kind["hsdp"].sent_between < by_kind["ddp"].sent_between / 8
    assert found.recommended is by_kind["hsdp"]
    assert found.recommended.fits(80 * GB)


@pytest.mark.slow
def test_less_memory_means_more_parts_then_recomputing_then_nothing() -> None:
    big, small, none = (plan("vit_l_16", gpus=8, memory=m, batch_size=2048) for m in (80, 12, 3))
    assert big.recommended is not None
    assert small.recommended is not None
    assert small.recommended.accumulate > big.recommended.accumulate
    assert none.recommended is None
    assert none.command is None


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "memory"), [(1, 80), (8, 24), (64, 40), (256, 80)])
def test_the_command_is_one_of_ours(gpus: int, memory: float) -> None:
    found = plan("vit_h_14", gpus=gpus, memory=memory, batch_size=2048)
    assert found.command is not None
    words = shlex.split(found.command)
    record = build_parser()(words[words.index("vitrail") + 1 :], exit_on_error=False)
    assert isinstance(record, Train)
    assert record.parallel == (found.recommended and found.recommended.parallel)
    assert record.batch_size == "2048"


def test_mistakes() -> None:
    with pytest.raises(UserError, match="batch_size must be at least one image for each of 64"):
        plan("vit_b_16", gpus=64, batch_size=32)
    with pytest.raises(UserError, match="gpus must be a multiple of gpus_per_machine 8, got 12"):
        plan("vit_b_16", gpus=12)
    with pytest.raises(UserError, match="unknown model"):
        plan("vit_x_16", gpus=8)


def test_the_shell_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plan", "vit_b_16", "--gpus", "16", "--batch", "512", "--set", "depth=2"]
    assert main([*options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == plan("vit_b_16", gpus=16, batch_size=512, set={"depth": 2}).facts()
    assert "modelled" in facts["method"]
    assert main(options) == 0
    printed = capsys.readouterr().out
    assert facts["command"] in printed.replace("\n", " ")
    assert "modelled from first principles" in printed


def test_another_size_costs_more() -> None:
    small, large = (
        count_activations(replace(SMALL, image_size=(side, side)), half=True).kept
        for side in (96, 192)
    )
    assert 3.5 < large / small < 4.5
