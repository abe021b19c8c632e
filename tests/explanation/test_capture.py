"""Looking inside changes nothing, and never shows nothing."""

import threading

import pytest
import torch
from tests.models.kinds import KINDS, SMALL
from torch import nn

from vitrail import UserError, capture
from vitrail.layers.attention import Attend
from vitrail.models.vit import ViT


def image(batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, 32, 48, generator=torch.Generator().manual_seed(0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_identical_to_the_bit_and_hooks_go(kind: str) -> None:
    config = KINDS[kind]
    model = ViT(config).eval()
    nn.init.normal_(model.head.get_parameter("classes.weight")) if config.num_classes else None
    x = image(channels=config.channels)
    before = model(x)
    with capture(model) as maps:
        inside = model(x)
    assert torch.equal(inside, before)
    assert list(maps) == ["blocks.0.attention", "blocks.1.attention"]
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["plain", "relative positions", "registers", "hybrid"])
def test_weights_are_those_of_the_fused_attention(kind: str) -> None:
    model = ViT(KINDS[kind]).double().eval()
    seen: dict[str, torch.Tensor] = {}
    attend = model.get_submodule("blocks.1.attention.attend")
    attend.register_forward_hook(lambda m, args, out: seen.update(v=args[2], out=out))
    with capture(model) as maps:
        model(image().double())
    one = maps["blocks.1.attention"]
    assert one.weights.shape[-1] == KINDS[kind].layout.tokens
    torch.testing.assert_close(one.weights.sum(-1), torch.ones_like(one.weights.sum(-1)))
    torch.testing.assert_close(one.weights @ seen["v"], seen["out"], rtol=0, atol=1e-12)
    assert one.on_grid(0).shape == (2, 4, *KINDS[kind].grid)


def test_hooks_go_even_when_the_block_fails() -> None:
    model = ViT(SMALL)
    with pytest.raises(ZeroDivisionError), capture(model):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in model.modules())


def test_chosen_layers_alone() -> None:
    model = ViT(SMALL).eval()
    with capture(model, where="blocks.1.*") as maps:
        model(image())
    assert list(maps) == ["blocks.1.attention"]


def test_gradients_reach_the_weights_under_autocast_too() -> None:
    model = ViT(SMALL).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16), capture(model) as maps:
        model(image())
    assert maps["blocks.0.attention"].weights.dtype is torch.float32
    maps["blocks.1.attention"].weights[:, :, 0, 1].sum().backward()
    assert model.get_parameter("blocks.0.attention.qkv.weight").grad is not None


def test_another_thread_is_not_recorded() -> None:
    model = ViT(SMALL).eval()
    with capture(model) as maps:
        model(image(batch=2))
        other = threading.Thread(target=lambda: model(image(batch=5)))
        other.start()
        other.join()
    assert all(one.weights.shape[0] == 2 for one in maps.values())


def test_nothing_seen_is_an_error() -> None:
    model = ViT(SMALL)
    with pytest.raises(UserError, match="call the model inside"), capture(model):
        pass
    with (
        pytest.raises(UserError, match="no attention is called 'stages"),
        capture(model, where="stages.*"),
    ):
        pass


@pytest.mark.slow
def test_compiled_models_are_refused_with_the_way_out() -> None:
    model = ViT(SMALL)
    with pytest.raises(UserError, match=r"before torch\.compile"), capture(torch.compile(model)):  # type: ignore[call-overload]
        pass
    model.compile()
    with pytest.raises(UserError, match=r"before torch\.compile"), capture(model):
        pass


def test_every_attention_owns_its_layout() -> None:
    for config in KINDS.values():
        attends = [m for m in ViT(config).modules() if isinstance(m, Attend)]
        assert len(attends) == config.depth
        assert all(attend.layout == config.layout for attend in attends)
