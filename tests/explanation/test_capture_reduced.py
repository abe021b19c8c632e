"""Maps that are made smaller at once, and maps that gradients reach."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.kinds import SMALL
from tests.parity.test_every_family import ATTENTIVE, make, picture
from torch import Tensor, nn

from vitrail import UserError, capture
from vitrail.explanation.capture import (
    AttentionMap,
    Fusion,
    apply_attention,
    apply_separable_attention,
    fuse_heads,
)
from vitrail.layers.attention import SeparableAttend
from vitrail.models.vit import ViT

every_family = pytest.mark.parametrize("family", ATTENTIVE)


@pytest.mark.sampled(2)
@every_family
@pytest.mark.parametrize("how", ["mean", "max", "min"])
def test_heads_are_fused_as_they_are_seen(family: str, how: Fusion) -> None:
    model, image = make(family), picture(family)
    before = model(image)
    with capture(model) as whole:
        model(image)
    with capture(model, reduce=how) as maps:
        inside = model(image)
    assert torch.equal(inside, before)
    assert list(maps) == list(whole)
    for name, one in maps.items():
        assert one.weights.shape[-3] == 1
        assert torch.equal(one.weights, fuse_heads(whole[name].weights, how))


def test_no_more_is_kept_than_was_asked_for() -> None:
    model = ViT(SMALL).eval()
    seen: list[torch.Size] = []

    def first_query(weights: Tensor) -> Tensor:
        seen.append(weights.shape)
        return weights[..., :1, :].clone()

    with torch.no_grad(), capture(model, where="blocks.1.*", reduce=first_query) as maps:
        model(torch.zeros(2, 3, 32, 48))
    assert seen == [(2, 4, 25, 25)]
    assert [one.weights.untyped_storage().nbytes() for one in maps.values()] == [2 * 4 * 25 * 4]


def test_what_is_reduced_to_something_else_is_refused() -> None:
    model = ViT(SMALL).eval()
    for wrong in (lambda weights: weights.mean(1), lambda weights: weights[..., :3]):
        with pytest.raises(UserError, match="all axes stay"), capture(model, reduce=wrong):
            model(torch.zeros(2, 3, 32, 48))
    with pytest.raises(UserError, match="mean, max or min"), capture(model, reduce="sum"):  # type: ignore[call-overload]
        model(torch.zeros(2, 3, 32, 48))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.sampled(2)
@every_family
def test_weights_times_values_are_the_fused_output(family: str) -> None:
    """What takes the place of an attention is what it gave, and so is what comes of it."""
    model, image = make(family, torch.float64), picture(family, torch.float64)
    seen: dict[bool, list[Tensor]] = {False: [], True: []}
    for through, outputs in seen.items():
        with capture(model, differentiable=through) as maps:
            # hooks run in their order: these see what capture gave
            hooks = [
                module.register_forward_hook(lambda m, a, out, to=outputs: to.append(out))
                for name, module in model.named_modules()
                if name.endswith(".attend")
            ]
            out = model(image)
        for hook in hooks:
            hook.remove()
        torch.testing.assert_close(out, model(image), rtol=0, atol=1e-12)
        for one in maps.values():
            sums = one.weights.sum(dim=-1)
            torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)
    assert len(seen[True]) == len(maps)
    for fused, given in zip(seen[False], seen[True], strict=True):
        torch.testing.assert_close(given, fused, rtol=0, atol=1e-12)


@pytest.mark.sampled(2)
@every_family
def test_gradients_reach_every_weight_and_are_right(family: str) -> None:
    """The gradient at the weights foretells what a small change of them does to the logits."""
    model, image = make(family, torch.float64), picture(family, torch.float64)
    with capture(model, differentiable=True) as maps:
        logits = model(image)[:, 1].sum()
    names = list(maps)
    gradients = torch.autograd.grad(logits, [maps[name].weights for name in names])
    for name, gradient in list(zip(names, gradients, strict=True))[:: max(len(names) - 1, 1)]:
        assert gradient.abs().max() > 0
        step = 1e-6 * torch.randn(gradient.shape, dtype=torch.float64)
        changed = logits_with(model, image, name, step)
        expected = float((gradient * step).sum())
        assert abs(changed - float(logits.detach()) - expected) < 1e-3 * abs(expected) + 1e-11


def logits_with(model: nn.Module, image: Tensor, name: str, step: Tensor) -> float:
    """The logits of a model one of whose attentions has other weights by a step."""
    with torch.no_grad(), capture(model, where=name) as maps:
        model(image)
    weights = maps[name].weights + step

    def change(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if isinstance(module, SeparableAttend):
            return apply_separable_attention(weights, args[1])
        return apply_attention(weights, args[2])

    hook = model.get_submodule(f"{name}.attend").register_forward_hook(change)
    with torch.no_grad():
        total = float(model(image)[:, 1].sum())
    hook.remove()
    return total


@pytest.mark.sampled(2)
@every_family
def test_autocast_goes_on_in_its_own_precision(family: str) -> None:
    model, image = make(family), picture(family)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(image)
        with capture(model, differentiable=True) as maps:
            inside = model(image)
    assert inside.dtype == plain.dtype
    assert (inside - plain).abs().max() <= 0.05 * plain.abs().max().clamp(min=1)
    for one in maps.values():
        assert one.weights.dtype is torch.float32
        sums = one.weights.sum(dim=-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-5)


def test_two_threads_look_into_one_model_and_do_not_mix() -> None:
    """Each goes through its own weights, sees its own pictures, and leaves no hook to the other."""
    model = ViT(SMALL).eval()
    ready = threading.Barrier(2)
    found: dict[int, Any] = {}
    errors: list[BaseException] = []

    def look(batch: int) -> None:
        try:
            image = torch.full((batch, 3, 32, 48), float(batch))
            for _ in range(5):
                with capture(model, differentiable=batch == 3) as maps:
                    ready.wait(timeout=30)
                    model(image)
                    ready.wait(timeout=30)
                found.setdefault(batch, []).append(dict(maps))
        except Exception as error:  # a thread's own would be lost
            errors.append(error)

    threads = [threading.Thread(target=look, args=(batch,)) for batch in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for batch, runs in found.items():
        with capture(model) as alone:
            model(torch.full((batch, 3, 32, 48), float(batch)))
        for maps in runs:
            assert list(maps) == list(alone)
            for name, one in maps.items():
                torch.testing.assert_close(one.weights, alone[name].weights, rtol=0, atol=1e-6)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_part_that_was_compiled_is_refused_too() -> None:
    model = ViT(SMALL).eval()
    model.blocks[1] = torch.compile(model.blocks[1])  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"before torch\.compile"), capture(model):
        pass


def test_a_stranger_is_told_how_to_become_one_of_us() -> None:
    with (
        pytest.raises(UserError, match=r"Linear has no attention that can be seen.*load"),
        capture(nn.Linear(2, 2)),
    ):
        pass


@pytest.mark.parametrize("query", [-1, 25, (4, 0), (0, 6), (-1, 0)])
def test_a_query_that_is_no_token_is_refused(query: int | tuple[int, int]) -> None:
    model = ViT(SMALL).eval()
    with capture(model) as maps:
        model(torch.zeros(1, 3, 32, 48))
    with pytest.raises(UserError, match="query must be"):
        maps["blocks.0.attention"].on_grid(query)


def test_images_of_another_size_have_no_place_in_the_layout() -> None:
    model = make("mobilevit")
    with capture(model) as maps:
        model(torch.zeros(1, 3, 64, 64))
    one = next(iter(maps.values()))
    assert isinstance(one, AttentionMap)
    with pytest.raises(UserError, match="image_size"):
        one.on_grid(0)


def test_memory_stays_below_a_map_of_all_heads() -> None:
    """With heads fused at once, what is kept of 12 layers is less than one layer's heads."""
    deep = replace(SMALL, depth=12, heads=16, dim=64, image_size=(64, 96))
    model = ViT(deep).eval()
    with torch.no_grad(), capture(model, reduce="mean") as maps:
        model(torch.zeros(1, 3, 64, 96))
    kept = sum(one.weights.untyped_storage().nbytes() for one in maps.values())
    assert kept < 16 * 97 * 97 * 4


def test_a_map_without_all_its_queries_stands_for_none_of_them() -> None:
    """One row is every token's only where attention is separable."""
    model = make("vit")
    with capture(model, reduce=lambda weights: weights[..., :1, :]) as maps:
        model(picture("vit"))
    with pytest.raises(UserError, match=r"a row for each of 25 queries, got 1"):
        maps["blocks.0.attention"].on_grid((0, 0))
