"""Dropout and stochastic depth by sample: the same in every batch, part and world."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.parity.test_every_family import CONFIGS
from vitrail.models.catalogue import build
from vitrail.models.sample_noise import SampleNoise
from vitrail.models.vit import ViTConfig
from vitrail.training.recompute import checkpoint_blocks

NOISY = ("vit", "beit", "swin", "swinv2")  # batch norms see who is beside: tests/training/cases.py


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", NOISY)
def test_a_sample_is_dropped_the_same_in_every_batch(family: str) -> None:
    torch.manual_seed(0)
    changes: dict[str, Any] = {"dropout": 0.3, "drop_path": 0.4}
    config = replace(CONFIGS[family], **changes)
    model = build(config).double().train()
    for parameter in model.parameters():  # heads begin at zero
        torch.nn.init.normal_(parameter, std=0.2)
    noise = SampleNoise(model, tuple(model.blocks_by_depth().values()))
    images = torch.randn(6, config.channels, *config.image_size, dtype=torch.float64)
    keys = torch.arange(6) * 7919

    def run(rows: list[int]) -> torch.Tensor:
        noise.start(keys[rows], 1)
        return model(images[rows]).detach()

    whole = run([0, 1, 2, 3, 4, 5])
    assert torch.equal(whole, run([0, 1, 2, 3, 4, 5]))
    torch.testing.assert_close(run([4, 1]), whole[[4, 1]], rtol=1e-9, atol=1e-9)
    noise.start(keys + 1, 1)
    assert not torch.allclose(model(images), whole)  # another step draws otherwise
    noise.stop()
    assert not torch.allclose(model(images), model(images))  # torch's generator again


def test_rates_are_kept() -> None:
    dropout = torch.nn.Dropout(0.3)
    noise = SampleNoise(dropout)
    noise.start(torch.arange(64), 0)
    dropped = dropout(torch.ones(64, 1000))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    again = dropout(torch.ones(64, 1000))
    assert not torch.equal(dropped, again)  # a second call draws anew
    # rows, columns and calls are independent
    for pair in ((dropped[0], dropped[1]), (dropped[:, 0], dropped[:, 1]), (dropped, again)):
        one, other = ((part == 0).double() for part in pair)
        both = (one * other).mean() - one.mean() * other.mean()
        assert abs(both.item()) < 0.08


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [True, 2, "selective"])
def test_what_is_computed_again_draws_the_same(how: bool | int | str) -> None:
    config = ViTConfig(
        dim=16, depth=4, heads=2, mlp_dim=32, patch_size=8, image_size=(16, 16), num_classes=3,
        dropout=0.2, drop_path=0.3,
    )  # fmt: skip
    found = []
    for checkpointing in (False, how):
        torch.manual_seed(0)
        model = build(config).train()
        for parameter in model.parameters():  # heads begin at zero
            torch.nn.init.normal_(parameter, std=0.2)
        noise = SampleNoise(model, tuple(model.blocks_by_depth().values()))
        checkpoint_blocks(model, checkpointing)  # type: ignore[arg-type]
        noise.start(torch.arange(5), 0)
        model(
            torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        ).sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        other = found[1][name]
        assert gradient is not None
        assert other is not None
        assert torch.equal(gradient, other), name


def test_stochastic_depth_draws_on_the_cpu_without_asking_the_device() -> None:
    """A tensor on "meta" cannot be brought to the CPU, which a GPU would only do after all that it
    has been asked to compute."""
    meta = torch.device("meta")
    changes: dict[str, Any] = {"dropout": 0.1, "drop_path": 0.5}
    config = replace(CONFIGS["vit"], **changes)
    model = build(config).to(meta).train()
    noise = SampleNoise(model, tuple(model.blocks_by_depth().values()))
    noise.start(torch.arange(4), 0, meta)
    images = torch.randn(4, config.channels, *config.image_size, device=meta)
    assert model(images).shape == (4, config.num_classes)
