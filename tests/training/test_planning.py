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
from vitrail.models.catalogue import change, find
from vitrail.models.config import Config
from vitrail.models.vit import ViTConfig
from vitrail.tasks.overrides import new_recipe
from vitrail.tasks.run_options import make_options
from vitrail.training.planning import GB, Setting, make_strategy, matrices_of_muon, part_counts
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
    # eight GPUs of a machine sum up an eighth of the gradients each, over the same link
    assert by_kind["hsdp"].sent_between == 8 * round(2 * 4 * found.params / 8 * 7 / 8)
    assert by_kind["hsdp"].sent_between < by_kind["ddp"].sent_between
    # autocast casts each weight once; with fsdp weights are gathered in bfloat16
    assert [by_kind[kind].memory.copies for kind in ("ddp", "fsdp")] == [2 * found.params, 0]
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
    with pytest.raises(UserError, match="gpus must be a multiple of gpus_per_machine=8, got 12"):
        plan("vit_b_16", gpus=12)
    with pytest.raises(UserError, match="unknown model"):
        plan("vit_x_16", gpus=8)
    with pytest.raises(UserError, match="batch_size must be at least 1 and at most 1,048,576"):
        plan("vit_b_16", gpus=8, batch_size=10**14)
    with pytest.raises(UserError, match="memory must be a finite number, got inf"):
        plan("vit_b_16", gpus=8, memory=float("inf"))


def test_few_images_at_a_time_are_the_last_resort() -> None:
    found = plan("vit_l_16", gpus=8, memory=10)
    smallest = min(one.images for one in found.strategies)
    assert found.recommended is not None
    assert smallest < 8 <= found.recommended.images


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


def test_every_part_sends_its_gradients() -> None:
    cost = count_activations(SMALL, half=True)
    setting = Setting(gpus=64, gpus_per_machine=8, batch_size=512, half=True)
    for kind, share in (("fsdp", 64), ("hsdp", 8)):
        one, four = (
            make_strategy(cost, setting, kind, share, "none", parts)  # type: ignore[arg-type]
            for parts in (1, 4)
        )
        assert four.sent_within == pytest.approx(4 * one.sent_within, rel=1e-6)
        assert four.sent_between == pytest.approx(4 * one.sent_between, rel=1e-6)
        assert four.memory.gradients == one.memory.gradients
    one, four = (make_strategy(cost, setting, "ddp", 1, "none", parts) for parts in (1, 4))
    assert four.sent_between == one.sent_between  # once, after the last part


def test_muon_needs_whole_matrices() -> None:
    cost = count_activations(SMALL, half=True)
    plain = Setting(gpus=64, gpus_per_machine=8, batch_size=64, half=True)
    whole = matrices_of_muon(SMALL)
    with_muon = replace(plain, optimiser="muon", matrices=whole)
    matrices = whole.share(1)
    inside = sum(block.params for block in cost.blocks)
    assert 0.9 * inside < matrices < inside  # not norms and biases
    for kind, share, sends in (("fsdp", 64, True), ("ddp", 1, False)):
        muon, sgd = (
            make_strategy(
                cost,
                setting,
                kind,  # type: ignore[arg-type]
                share,
                "none",
                1,
            )
            for setting in (with_muon, replace(plain, optimiser="sgd"))
        )
        assert muon.memory.communication == 2 * 4 * matrices > sgd.memory.communication
        more = round(4 * matrices * 63 / 64) if sends else 0
        assert muon.sent_within - sgd.sent_within == pytest.approx(more, abs=1)
    large = find("vit_g_14")
    setting = replace(
        plain, gpus=1, batch_size=1, optimiser="muon", matrices=matrices_of_muon(large)
    )
    cost = count_activations(large, half=True)
    muon = make_strategy(cost, setting, "ddp", 1, "none", 1)
    assert muon.memory.communication == 2 * 4 * 2**26  # at a time


@pytest.mark.parametrize(("batch", "gpus"), [(4096, 64), (1000, 8), (97, 4), (8, 8), (1, 1)])
def test_parts_divide_the_batch(batch: int, gpus: int) -> None:
    setting = Setting(gpus=gpus, gpus_per_machine=8, batch_size=batch, half=True)
    divisors = [count for count in range(1, batch // gpus + 1) if batch % count == 0]
    assert part_counts(setting) == divisors


def test_the_command_trains_what_was_planned() -> None:
    fields = {"depth": 2, "pool": "mean", "class_token": False}
    for optimiser, ema in (("sgd", False), ("adamw", True), ("muon", True)):
        found = plan(
            "vit_b_16",
            gpus=8,
            memory=4,
            batch_size=1000,
            set=fields,
            optimiser=optimiser,  # type: ignore[arg-type]
            ema=ema,
        )
        assert found.command is not None
        assert found.recommended is not None
        words = shlex.split(found.command)
        record = build_parser()(words[words.index("vitrail") + 1 :], exit_on_error=False)
        assert isinstance(record, Train)
        recipe = new_recipe(make_options("train", "digits", record.arguments()))
        config = change(find("vit_b_16"), dict(recipe.fields))
        assert count_activations(config, half=True).params == found.params
        assert recipe.fields.items() >= fields.items()
        assert recipe.optimiser.name == optimiser
        assert (recipe.ema_decay is not None) == ema
        assert recipe.accumulate == found.recommended.accumulate > 1
        assert recipe.parallel == found.recommended.parallel
