"""Queries, keys, values and scores of every family, as its attention was given them."""

from typing import Any

import pytest
import torch
from tests.models.kinds import KINDS, SMALL, perturbed, random_images
from tests.parity.test_every_family import ATTENTIVE, SHALLOW, make, picture

from vitrail import UserError, capture
from vitrail.inference.merging import merge_tokens
from vitrail.models.vit import ViT

WITH_QUERIES = [name for name in ATTENTIVE if name != "mobilevitv2"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", WITH_QUERIES)
def test_scores_make_the_weights_of_every_family(family: str) -> None:
    model, image = make(family, configs=SHALLOW).eval(), picture(family)
    with torch.no_grad():
        before = model(image)
        with capture(model) as maps:
            model(image)
        with capture(model, what="qkv") as found:
            inside = model(image)
    assert torch.equal(inside, before)
    assert list(found) == list(maps)
    for name, one in found.items():
        assert one.q.shape == one.k.shape == one.v.shape
        assert one.scores.shape == (*one.q.shape[:-1], one.k.shape[-2])
        assert one.layout == maps[name].layout
        assert torch.equal(one.to_map().weights, maps[name].weights)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["plain", "relative positions", "norm after adding", "hybrid"])
def test_they_are_the_projections_of_the_block(kind: str) -> None:
    model = perturbed(KINDS[kind]).double().eval()
    images = random_images(model.config).double()
    seen: dict[str, Any] = {}
    attention = model.get_submodule("blocks.1.attention")
    attention.qkv.register_forward_hook(lambda m, a, out: seen.update(qkv=out))
    with torch.no_grad(), capture(model, "blocks.1.*", what="qkv") as found:
        model(images)
    one = found["blocks.1.attention"]
    joined = torch.cat([x.transpose(1, 2).flatten(2) for x in (one.q, one.k, one.v)], dim=-1)
    assert torch.equal(joined, seen["qkv"])
    scores = one.q @ one.k.mT * 8**-0.5
    if kind == "relative positions":
        assert not torch.allclose(one.scores, scores)
    else:
        torch.testing.assert_close(one.scores, scores, rtol=0, atol=1e-12)


def test_cosine_attention_has_unit_keys_and_its_temperature_in_the_queries() -> None:
    model = make("swinv2", configs=SHALLOW).eval()
    with torch.no_grad(), capture(model, what="qkv") as found:
        model(picture("swinv2"))
    name, one = next(iter(found.items()))
    assert one.q.ndim == 5  # windows before heads
    length = one.k.norm(dim=-1)
    padding = length == 0  # keys have no bias, so empty cells have none at all
    torch.testing.assert_close(length[~padding], torch.ones(int((~padding).sum())))
    temperature = model.get_parameter(f"{name}.logit_scale").exp().flatten()
    longest = one.q.norm(dim=-1).amax(dim=(0, 1, 3))
    torch.testing.assert_close(longest, temperature, rtol=1e-5, atol=1e-5)


def test_a_relative_bias_is_in_the_scores() -> None:
    model = make("beit", torch.float64, SHALLOW).eval()
    with torch.no_grad(), capture(model, what="qkv") as found:
        model(picture("beit", torch.float64))
    one = next(iter(found.values()))
    plain = one.q @ one.k.mT * one.q.shape[-1] ** -0.5
    bias = one.scores - plain
    assert bias.abs().max() > 1e-6
    torch.testing.assert_close(bias[0], bias[-1], rtol=0, atol=1e-9)  # the same for every image


def test_separable_attention_is_refused_before_anything_runs() -> None:
    model = make("mobilevitv2", configs=SHALLOW).eval()
    with pytest.raises(UserError, match=r"needs attention with queries.*leave out what"):
        capture(model, what="qkv").__enter__()


def test_merged_tokens_are_fewer_and_say_what_they_are_made_of() -> None:
    merged = merge_tokens(perturbed(SMALL).eval(), 4)
    images = random_images(SMALL)
    with torch.no_grad(), capture(merged) as maps:
        merged(images)
    with torch.no_grad(), capture(merged, what="qkv") as found:
        merged(images)
    first, second = found.values()
    assert first.group is None
    assert second.group is not None
    assert second.q.shape[-2] == 1 + 24 - 4
    assert second.group.shape == (2, 25)
    for name, one in found.items():
        assert torch.equal(one.to_map().weights, maps[name].weights)


def test_half_precision_has_scores_in_float32() -> None:
    model = ViT(SMALL).half().eval()
    with torch.no_grad(), capture(model, what="qkv") as found:
        model(random_images(SMALL).half())
    one = found["blocks.0.attention"]
    assert (one.q.dtype, one.scores.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("r", [0, 4])
def test_gradients_reach_scores_queries_and_values(r: int) -> None:
    model = perturbed(SMALL).double().eval()
    model = merge_tokens(model, r) if r else model
    images = random_images(SMALL).double()
    expected = model(images)
    with capture(model, what="qkv", differentiable=True) as found:
        logits = model(images)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
    one = found["blocks.1.attention"]
    wanted = (one.q, one.k, one.v, one.scores)
    for gradient in torch.autograd.grad(logits[:, 0].sum(), wanted):
        assert gradient.abs().sum() > 0


def test_what_cannot_be_captured_is_told() -> None:
    model = ViT(SMALL).eval()
    with pytest.raises(UserError, match='what must be "weights" or "qkv"'):
        capture(model, what="keys")  # type: ignore[call-overload]
    with pytest.raises(UserError, match='reduce needs what="weights"'):
        capture(model, what="qkv", reduce="mean")  # type: ignore[call-overload]
    compiled: Any = torch.compile(model)
    with pytest.raises(UserError, match="compiled"), capture(compiled, what="qkv"):
        pass
