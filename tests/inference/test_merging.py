"""Token merging is what arXiv:2210.09461 describes, exact where it must be, and seen in pixels."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.inference.test_rewrites import filled, images
from tests.models.kinds import KINDS, SMALL
from tests.parity.test_every_family import CONFIGS, make, picture
from vitrail import UserError, capture
from vitrail.explanation.gradcam import gradcam, hirescam
from vitrail.explanation.gradients import attribution, relevance
from vitrail.explanation.rollout import attention, rollout
from vitrail.inference.graph import trace
from vitrail.inference.merging import Tokens, merge, merge_plan, merge_tokens
from vitrail.inference.rewrites.optimise import compute, optimise
from vitrail.layers.merged import gather_weights, mean_bias, unmerge_attention
from vitrail.models.beit import Beit
from vitrail.models.catalogue import change
from vitrail.models.config import Config
from vitrail.models.model import Model
from vitrail.weights.digest import digest_of

CONFIG = replace(SMALL, depth=3)
RECORDS: dict[str, Config] = {
    **{f"vit, {kind}": config for kind, config in KINDS.items() if "relative" not in kind},
    "vit, registers and distilled": replace(CONFIG, registers=3, distilled=True),
    "vit, mean before the norm": replace(CONFIG, pool="mean", final_norm="pooled"),
    "beit": change(CONFIGS["beit"], {"depth": 2}),
    "beit, shared bias": change(
        CONFIGS["beit"], {"relative_bias": "shared", "pool": "cls", "depth": 2}
    ),
}
PARITY = {
    "vit, plain",
    "vit, mean pooling",
    "vit, registers and distilled",
    "vit, mean before the norm",
    "beit",
    "beit, shared bias",
}
REST = [("vit", False), ("beit", False), ("beit", True)]  # of the graphs
every_record = pytest.mark.parametrize("record", RECORDS)


@pytest.mark.sampled(2)
@every_record
def test_without_merges_it_is_identical_to_the_bit(record: str) -> None:
    model = filled(RECORDS[record]).float()
    batch = images(model).float()
    merged = merge_tokens(model, 0)
    assert torch.equal(merged.encode(batch), model.encode(batch))
    assert torch.equal(merged.features(batch), model.features(batch))
    assert torch.equal(merged(batch), model(batch))


class Reference:
    """The paper's algorithm as it is told, one image and one token at a time: a token is a vector
    and the list of the original tokens in it."""

    def __init__(self, model: Any, r: int) -> None:
        self.model, self.r, self.prefix = model, r, model.config.layout.prefix

    def encode(self, image: Tensor) -> Tensor:
        """Every original token's final vector, (N, D)."""
        model = self.model
        x = model.embed(image[None])[0]
        if hasattr(model, "embed_norm"):
            x = model.embed_norm(x)
        tokens = [(vector, [place]) for place, vector in enumerate(x)]
        for block in model.blocks:
            tokens = self.block(block, tokens)
        final = torch.empty_like(x)
        for vector, members in tokens:
            for member in members:
                final[member] = vector
        is_beit = isinstance(model, Beit)
        normed = model.config.pool == "cls" if is_beit else model.config.final_norm == "tokens"
        return model.norm(final) if normed else final

    def block(self, block: Any, tokens: list[Any]) -> list[Any]:
        attention = block.attention
        x = torch.stack([vector for vector, _ in tokens])
        q, k, v = (
            part[0].unflatten(1, (attention.heads, -1)).movedim(0, 1)
            for part in attention.project(block.norm1(x)[None])
        )
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        bias = self.bias(block)
        for m, (_, queries) in enumerate(tokens):
            for n, (_, keys) in enumerate(tokens):
                logits[:, m, n] += math.log(len(keys))
                if bias is not None:
                    logits[:, m, n] += bias[:, queries][:, :, keys].mean(dim=(1, 2))
        mixed = (logits.softmax(dim=-1) @ v).movedim(0, 1).flatten(1)
        x = x + block.scale1(attention.out(mixed))
        tokens = self.merge(
            [(row, members) for row, (_, members) in zip(x, tokens, strict=True)], k
        )
        return [(row + block.mlp_branch(row[None])[0], members) for row, members in tokens]

    def bias(self, block: Any) -> Tensor | None:
        if not isinstance(self.model, Beit):
            return None
        relative = self.model.relative if block.relative is None else block.relative
        assert relative is not None
        bias: Tensor = relative()[0]
        return bias

    def merge(self, tokens: list[Any], keys: Tensor) -> list[Any]:
        patches = range(self.prefix, len(tokens))
        sources = [place for place in patches if place % 2 == 0]
        targets = [place for place in patches if place % 2 == 1]
        mean = keys.mean(dim=0)
        edges = []
        for source in sources:
            found = [
                (torch.cosine_similarity(mean[source], mean[target], dim=0).item(), target)
                for target in targets
            ]
            edges.append((*max(found), source))
        edges.sort(reverse=True)
        result = dict(enumerate(tokens))
        gone: dict[int, list[int]] = {}
        for _, target, source in edges[: min(self.r, len(patches) // 2)]:
            gone.setdefault(target, []).append(source)
        for target, leaving in gone.items():
            parts = [tokens[place] for place in (target, *leaving)]
            members = [member for _, own in parts for member in own]
            total = sum(vector * len(own) for vector, own in parts)
            result[target] = (total / len(members), members)
            for source in leaving:
                del result[source]
        first = [result[place] for place in sources if place in result]
        prefix = [result[place] for place in range(self.prefix)]
        return [*prefix, *first, *(result[place] for place in targets)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("record", sorted(PARITY))
@pytest.mark.parametrize("r", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_it_is_the_algorithm_of_the_paper(record: str, r: int) -> None:
    model = filled(RECORDS[record])
    batch = images(model)
    with torch.no_grad():
        found = merge_tokens(model, r).encode(batch)
        expected = torch.stack([Reference(model, r).encode(one) for one in batch])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.sampled(2)
@every_record
def test_heads_read_merged_patches_by_their_size(record: str) -> None:
    """Features and logits are those that the head makes of every token again; in the blocks there
    are fewer, and the record says which."""
    model = filled(RECORDS[record])
    batch, seen = images(model), []
    merged = merge_tokens(model, 4)
    handle = merged.get_submodule("blocks.1").register_forward_hook(
        lambda module, args, output: seen.append(output)
    )
    with torch.no_grad():
        features = merged.features(batch)
        assert features.shape == model.features(batch).shape
        assert not torch.allclose(features, model.features(batch), rtol=1e-6)
    handle.remove()
    (tokens,) = seen
    layout = model.config.layout
    assert tokens.values.shape[1] == layout.tokens - 8
    assert tokens.group.shape == (2, layout.tokens)
    for group, sizes in zip(tokens.group, tokens.sizes, strict=True):
        assert group.bincount(minlength=len(sizes)).tolist() == sizes.tolist()
        assert group[: layout.prefix].tolist() == list(range(layout.prefix))
        assert sizes[: layout.prefix].tolist() == [1] * layout.prefix


@pytest.mark.parametrize("r", [2, 12])
def test_equal_patches_merge_without_a_trace(r: int) -> None:
    """Proportional attention is exact where the merged tokens are equal: an image of one colour
    without positions."""
    model = filled(replace(CONFIG, positions="none", registers=1))
    batch = images(model)[:, :, :1, :1].expand(-1, -1, *model.config.image_size).contiguous()
    with torch.no_grad():
        torch.testing.assert_close(merge_tokens(model, r)(batch), model(batch), rtol=1e-9, atol=0)


@given(
    data=st.data(),
    batch=st.integers(1, 3),
    prefix=st.integers(0, 3),
    patches=st.integers(2, 12),
)
@settings(max_examples=60, deadline=None)
def test_a_merge_keeps_sums_and_every_token(
    data: st.DataObject, batch: int, prefix: int, patches: int
) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**30)))
    count = prefix + patches
    values = torch.randn(batch, count, 5, generator=generator, dtype=torch.float64)
    tokens, total = Tokens(values), values.sum(dim=1)
    while (most := (tokens.values.shape[1] - prefix) // 2) > 0:
        keys = torch.randn(batch, tokens.values.shape[1], 4, generator=generator)
        tokens = merge(tokens, keys.double(), data.draw(st.integers(1, most)), prefix)
        assert tokens.sizes is not None
        assert tokens.group is not None
        remaining = tokens.values.shape[1]
        for place in range(batch):
            sizes = tokens.group[place].bincount(minlength=remaining)
            assert sizes.tolist() == tokens.sizes[place].tolist()
        torch.testing.assert_close((tokens.values * tokens.sizes[..., None]).sum(dim=1), total)
        # a merged token is the mean of its parts
        parts = values.new_zeros(batch, remaining, 5)
        parts.scatter_add_(1, tokens.group[:, :, None].expand(-1, -1, 5), values)
        torch.testing.assert_close(parts / tokens.sizes[..., None], tokens.values)
    assert torch.equal(tokens.values[:, :prefix], values[:, :prefix])


@given(data=st.data(), tokens=st.integers(1, 9), heads=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_spread_attention_keeps_its_mass(data: st.DataObject, tokens: int, heads: int) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**30)))
    count = data.draw(st.integers(1, tokens))
    order = torch.randperm(tokens, generator=generator)
    more = torch.randint(count, (tokens - count,), generator=generator)
    group = torch.cat([torch.arange(count), more])[order][None]
    weights = torch.rand(1, heads, count, count, generator=generator, dtype=torch.float64)
    spread = unmerge_attention(weights, group)
    assert spread.shape == (1, heads, tokens, tokens)
    torch.testing.assert_close(spread.sum(dim=-1), weights.sum(dim=-1)[:, :, group[0]])
    received = spread.new_zeros(1, heads, tokens, count)
    received.scatter_add_(3, group[:, None, None].expand_as(spread), spread)
    torch.testing.assert_close(received, weights[:, :, group[0]])
    torch.testing.assert_close(gather_weights(spread, group, count), weights)


def test_a_bias_between_merged_tokens_is_the_mean_over_their_parts() -> None:
    bias = torch.arange(18.0, dtype=torch.float64).view(1, 2, 3, 3)
    found = mean_bias(bias, torch.tensor([[0, 1, 1]]), 2)
    expected = [[[0, 1.5], [4.5, 6]], [[9, 10.5], [13.5, 15]]]
    assert found[0].tolist() == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("record", ["vit, plain", "vit, registers and distilled", "beit"])
def test_captured_attention_lies_on_the_original_patches(record: str) -> None:
    model = filled(RECORDS[record]).float()
    batch = images(model).float()
    merged = merge_tokens(model, 3)
    with torch.no_grad():
        plain = merged(batch)
        with capture(model) as whole:
            model(batch)
        with capture(merged) as maps:
            inside = merged(batch)
        with capture(merged, differentiable=True):
            torch.testing.assert_close(merged(batch), plain, rtol=1e-4, atol=1e-5)
    assert torch.equal(inside, plain)
    assert list(maps) == list(whole)
    first, *rest = maps.values()
    torch.testing.assert_close(first.weights, next(iter(whole.values())).weights)
    for one in rest:
        tokens = one.layout.tokens
        assert one.weights.shape[-2:] == (tokens, tokens)
        sums = one.weights.sum(dim=-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))
        assert one.on_grid((0, 0)).shape[-2:] == one.layout.grid


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", [attention, rollout, relevance, attribution, gradcam, hirescam])
@pytest.mark.parametrize("record", ["vit, plain", "beit"])
def test_explanations_map_to_pixels(record: str, method: Any) -> None:
    model = filled(RECORDS[record])
    batch = images(model)
    expected = method(model, batch)
    for r, near in ((0, 1e-9), (2, None)):
        found = method(merge_tokens(model, r), batch)
        assert found.map.shape == expected.map.shape
        assert found.layout == expected.layout
        assert found.map.isfinite().all()
        assert found.map.sum() > 0
        if near is not None:
            torch.testing.assert_close(found.map, expected.map, rtol=near, atol=near)
    if method is rollout:
        torch.testing.assert_close(found.map.sum(), expected.map.sum(), rtol=0.2, atol=0)


@pytest.mark.parametrize("record", ["vit, plain", "beit"])
def test_intermediate_maps_have_every_patch(record: str) -> None:
    model = filled(RECORDS[record])
    batch = images(model)
    maps = merge_tokens(model, 4).intermediates(batch)
    assert [one.shape for one in maps] == [one.shape for one in model.intermediates(batch)]


def test_weights_are_shared_and_the_model_stays_as_it_is() -> None:
    model, batch = make("vit"), picture("vit")
    before = model(batch)
    merged = merge_tokens(model, 4)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in merged.parameters()} == own
    assert merged.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(model(batch), before)
    assert type(model).__name__ == "ViT"
    with torch.no_grad():
        model.get_parameter("blocks.0.mlp.fc1.weight").zero_()
    assert torch.equal(merged(batch), merge_tokens(model, 4)(batch))


@pytest.mark.sampled(2)
@every_record
def test_rewrites_and_merging_combine(record: str) -> None:
    model = filled(RECORDS[record])
    batch, merged = images(model), merge_tokens(model, 3)
    with torch.no_grad():
        for output in ("pooled", "tokens"):
            expected = compute(merged, batch, output)
            for fast in (
                optimise(model, output=output, r=3),
                optimise(merged, output=output),
            ):
                torch.testing.assert_close(fast(batch), expected, rtol=1e-9, atol=1e-10)


def test_a_last_block_for_the_class_token_merges_nothing() -> None:
    fast, seen = optimise(filled(CONFIG), output="logits", r=3), []
    fast.model.get_submodule("blocks.2.mlp").register_forward_hook(
        lambda module, args, output: seen.append(output.shape[1])
    )
    fast(images(fast.model))
    assert seen == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "attention"),
    [("vit", True), *(pytest.param(f, a, marks=pytest.mark.slow) for f, a in REST)],
)
def test_merged_models_become_graphs(family: str, attention: bool) -> None:
    model = merge_tokens(make(family, torch.float64, depth=2), 4)
    program = trace(model, batch=2, attention=attention)
    batch = picture(family, torch.float64)
    found = program.module()(batch)
    torch.testing.assert_close(found["logits"], model(batch), rtol=1e-9, atol=1e-10)
    if attention:
        with capture(model) as maps:
            model(batch)
        for name, one in maps.items():
            torch.testing.assert_close(found[name], one.weights, rtol=1e-9, atol=1e-10)


def test_a_merged_model_has_a_digest_of_its_own() -> None:
    """What is stored by a digest, as features are, is never that of another model."""
    model = make("vit")
    every = [model, merge_tokens(model, 2), merge_tokens(model, 3), merge_tokens(model, [2, 2, 0])]
    assert len({digest_of(one) for one in every}) == len(every)
    assert digest_of(merge_tokens(model, 0)) == digest_of(model)


def test_a_plan_leaves_half_of_the_patches() -> None:
    model = make("vit")  # 24 patches in 3 blocks
    assert merge_plan(model, 0) == [0, 0, 0]
    assert merge_plan(model, 5) == [5, 5, 5]
    assert merge_plan(model, 100) == [12, 6, 3]
    assert merge_plan(model, [0, 2, 30]) == [0, 2, 11]


def refuse(model: Model, r: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        merge_tokens(model, r)


def test_mistakes_are_one_sentence() -> None:
    refuse(make("swin"), 4, "needs a ViT, DeiT, hybrid or BEiT, got Swin")
    refuse(make("vit").train(), 4, "evaluation mode")
    refuse(make("vit", positions="relative"), 4, "relative")
    refuse(make("vit"), -1, "at least 0")
    refuse(make("vit"), [1, 2], "one for each of 3 blocks")
    refuse(merge_tokens(make("vit"), 2), 2, "merges tokens already")


@pytest.mark.parametrize("r", [2.5, None, "4", True, [1.5] * 12])
def test_what_is_no_whole_number_is_refused(r: Any) -> None:
    with pytest.raises(UserError, match="r must be"):
        merge_tokens(make("vit").eval(), r)
