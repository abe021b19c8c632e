"""Low-rank changes: only they and the head learn, and a saved model has them inside."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.kinds import KINDS
from tests.training.world import trainer
from vitrail import UserError, load
from vitrail.models.catalogue import build, build_meta, change, find
from vitrail.training.lora import adapt, merged
from vitrail.training.recipe import Lora, Schedule


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_model_computes_the_same(kind: str) -> None:
    torch.manual_seed(0)
    plain, adapted = (build(KINDS[kind]).double().eval() for _ in range(2))
    lora = Lora(rank=2, alpha=3.0)
    adapt(adapted, lora)
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.normal_(std=0.1)
    plain.load_state_dict(merged(adapted.state_dict(), lora))
    config = KINDS[kind]
    images = torch.randn(2, config.channels, *config.image_size, dtype=torch.float64)
    torch.testing.assert_close(plain(images), adapted(images), rtol=1e-9, atol=1e-9)


def test_it_begins_as_the_model_it_changes() -> None:
    torch.manual_seed(0)
    config = next(iter(KINDS.values()))
    model = build(config).eval()
    images = torch.randn(2, config.channels, *config.image_size)
    before = model(images)
    adapt(model, Lora())
    assert torch.equal(model(images), before)


def test_queries_keys_and_values_have_changes_of_their_own() -> None:
    model = build(next(iter(KINDS.values())))
    adapt(model, Lora(rank=2))
    change: Any = model.get_submodule("blocks.0.attention.qkv.parametrizations.weight.0")
    assert change.a.shape[0] == 3
    with torch.no_grad():
        change.b[1] = 1.0
    qkv: Any = model.get_submodule("blocks.0.attention.qkv")
    original = model.get_parameter("blocks.0.attention.qkv.parametrizations.weight.original")
    queries, keys, values = (qkv.weight - original).chunk(3)
    assert not queries.any()
    assert keys.any()
    assert not values.any()


@pytest.mark.slow
def test_a_run_changes_little_and_saves_all(tmp_path: Path) -> None:
    first = trainer(tmp_path / "first", schedule=Schedule(steps=30, warmup=4))
    first.run()
    start = str(tmp_path / "first" / "best")
    run = trainer(tmp_path / "second", start=start, fields={}, lora=Lora(rank=2))
    trained = {name for name, p in run.model.named_parameters() if p.requires_grad}
    assert all(".0.a" in n or ".0.b" in n or n.startswith("head.") for n in trained)
    run.run()
    before, after = load(start), load(tmp_path / "second" / "last")
    assert before.config == after.config
    for name, tensor in before.state_dict().items():
        matrix = name.endswith(("qkv.weight", "fc1.weight", "fc2.weight"))
        changed = not torch.equal(tensor, after.state_dict()[name])
        assert changed == (matrix or name.startswith("head.")), name
        if matrix:
            difference = after.state_dict()[name] - tensor
            parts = difference.chunk(3) if "qkv" in name else (difference,)
            assert all(torch.linalg.matrix_rank(part, atol=1e-6) <= 2 for part in parts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["resnet18", "bit_r50x1", "mobilenetv2_035"])
def test_convolutional_networks_have_no_attention_to_change(name: str) -> None:
    model = build_meta(find(name))
    with pytest.raises(UserError, match=r"lora changes the matrices of attention, and .* has none"):
        adapt(model, Lora())


def test_their_1x1_convolutions_can_be_named() -> None:
    model = build(change(find("resnet50"), {"depths": (1, 1), "width": 8, "num_classes": 2}))
    adapt(model, Lora(rank=2, targets=("stages.*.conv1.conv", "stages.*.conv3.conv")))
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(".0.a" in name or ".0.b" in name or name.startswith("head.") for name in learns)
    assert len(learns) == 2 * 2 * 2 + 2
