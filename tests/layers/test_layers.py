"""The bricks against plain statements of what they compute."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from vitrail import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import SHORT, Attend, QkvBias, SelfAttention, unfused_is_faster
from vitrail.layers.conv import MaxPoolSame, Standardize, StandardizedConv, pad_same
from vitrail.layers.drop import PatchDropout
from vitrail.layers.mlp import make_activation
from vitrail.layers.patch import NormedPatchEmbedding, PatchEmbedding
from vitrail.layers.position import LearnedPositions2d, sincos_2d

LAYOUT = TokenLayout(grid=(2, 3), stride=8, prefix=1)


def filled(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.double()


def test_attend_is_softmax_attention_with_a_bias() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 7, 5, dtype=torch.float64)
    bias = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    expected = (q @ k.mT * 0.3 + bias).softmax(-1) @ v
    torch.testing.assert_close(Attend(LAYOUT)(q, k, v, bias, 0.3), expected, rtol=0, atol=1e-12)
    assert not list(Attend(LAYOUT).parameters())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("qkv_bias", ["qkv", "qv", "none"])
def test_self_attention_head_by_head(qkv_bias: QkvBias) -> None:
    attention = SelfAttention(LAYOUT, dim=12, heads=3, dim_head=5, qkv_bias=qkv_bias)
    filled(attention)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    q, k, v = (x @ attention.qkv.weight.T).chunk(3, dim=-1)
    if qkv_bias == "qkv":
        q, k, v = (part + b for part, b in zip((q, k, v), attention.qkv.bias.chunk(3), strict=True))
    if qkv_bias == "qv":
        assert attention.qv_bias is not None
        q, v = q + attention.qv_bias[0], v + attention.qv_bias[1]
    outputs = [
        (q[..., h] @ k[..., h].mT / 5**0.5).softmax(-1) @ v[..., h]
        for h in (slice(0, 5), slice(5, 10), slice(10, 15))
    ]
    expected = torch.cat(outputs, dim=-1) @ attention.out.weight.T + attention.out.bias
    torch.testing.assert_close(attention(x), expected, rtol=0, atol=1e-9)


def test_relative_attention_meets_each_distance_with_the_query() -> None:
    """Appendix D.4, pair by pair."""
    attention = SelfAttention(LAYOUT, dim=8, heads=2, dim_head=4, relative=True)
    filled(attention)
    assert attention.distances is not None
    table = attention.distances.table
    q = torch.randn(1, 2, 7, 4, dtype=torch.float64)
    bias = attention.distances(q)
    for row in range(7):
        for column in range(7):
            expected = q[0, :, row] @ table[row - column + 6] / 2
            torch.testing.assert_close(bias[0, :, row, column], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("queries", [None, 1, 3])
@pytest.mark.parametrize("qkv_bias", ["qkv", "qv", "none"])
@pytest.mark.parametrize("relative", [False, True])
def test_a_callers_bias_is_added_and_fewer_queries_are_the_first_rows(
    relative: bool, qkv_bias: QkvBias, queries: int | None
) -> None:
    attention = SelfAttention(
        LAYOUT,
        dim=8,
        heads=2,
        dim_head=4,
        relative=relative,
        qkv_bias=qkv_bias,
    )
    filled(attention)
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    bias = torch.randn(1, 2, 7, 7, dtype=torch.float64)
    q, k, v = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in attention.project(x))
    logits = q @ k.mT / 2 + bias
    if attention.distances is not None:
        logits = logits + attention.distances(q)
    expected = attention.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))[:, :queries]
    torch.testing.assert_close(attention(x, bias, queries), expected, rtol=0, atol=1e-12)


@given(
    side=st.integers(1, 40), size=st.sampled_from([1, 2, 3, 7]), stride=st.sampled_from([1, 2, 4])
)
def test_same_padding_gives_one_cell_for_every_stride(side: int, size: int, stride: int) -> None:
    x = pad_same(torch.zeros(1, 1, side, side + 3), size, stride)
    cells = [(length - size) // stride + 1 for length in x.shape[2:]]
    assert cells == [-(-side // stride), -(-(side + 3) // stride)]
    assert x.shape[2] - side < max(size, 1)


def test_same_padding_puts_the_odd_pixel_last() -> None:
    x = pad_same(torch.ones(1, 1, 4, 4), 3, 2)
    assert x[0, 0].sum(0).tolist() == [4, 4, 4, 4, 0]
    assert MaxPoolSame(3, 2)(-torch.ones(1, 1, 4, 4)).max() == -1  # padding never wins


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("jax", lambda w: (w - w.mean()) / (w.std() + 1e-5)),
        ("timm", lambda w: (w - w.mean()) / np.sqrt(w.var() + 1e-8)),
    ],
)
def test_kernels_are_standardised_one_by_one(
    kind: Standardize, formula: Callable[[Any], Any]
) -> None:
    conv = StandardizedConv(3, 4, 3, standardize=kind)
    filled(conv)
    kernels = conv.weight.detach().numpy()
    expected = np.stack([formula(kernel) for kernel in kernels])
    torch.testing.assert_close(
        conv.standardized().detach(), torch.from_numpy(expected), rtol=0, atol=1e-12
    )


def test_patches_come_in_reading_order() -> None:
    embedding = PatchEmbedding(1, 4, 2, bias=False)
    embedding.projection.weight.data = torch.eye(4).view(4, 1, 2, 2)
    image = torch.arange(24.0).view(1, 1, 4, 6)
    assert embedding(image)[0, 0].tolist() == [0, 1, 6, 7]
    assert embedding(image)[0, 1].tolist() == [2, 3, 8, 9]
    assert embedding(image)[0, 3].tolist() == [12, 13, 18, 19]


def test_normed_patches_without_their_norms_are_plain_patches() -> None:
    normed = NormedPatchEmbedding(3, 16, 4, eps=1e-5)
    filled(normed)
    plain = PatchEmbedding(3, 16, 4).double()
    plain.load_state_dict({f"projection.{n}": p for n, p in normed.projection.state_dict().items()})
    image = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    for name in ("pixel_norm", "norm"):
        normed.set_submodule(name, nn.Identity())
    torch.testing.assert_close(normed(image), plain(image), rtol=0, atol=1e-9)


def test_sine_positions_are_moco_v3s() -> None:
    table = sincos_2d((3, 5), 16).view(3, 5, 16)
    omega = 10_000 ** -(np.arange(4) / 3)
    row, column = 2, 4
    expected = [*np.sin(column * omega), *np.cos(column * omega)]
    expected += [*np.sin(row * omega), *np.cos(row * omega)]
    assert table[row, column].tolist() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(UserError, match="multiple of 4"):
        sincos_2d((2, 2), 10)


def test_2d_positions_join_column_and_row() -> None:
    positions = LearnedPositions2d((2, 3), 4)
    filled(positions)
    table = positions()[0].view(2, 3, 4)
    assert torch.equal(table[1, 2], torch.cat([positions.columns[2], positions.rows[1]]))


def test_activations() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    torch.testing.assert_close(make_activation("gelu")(x), x * torch.special.ndtr(x))
    assert (make_activation("gelu_tanh")(x) - F.gelu(x)).abs().max() == pytest.approx(
        4.73e-4, rel=0.02
    )
    torch.testing.assert_close(make_activation("quick_gelu")(x), x / (1 + (-1.702 * x).exp()))
    gate, value = x[:50], x[50:100]
    torch.testing.assert_close(make_activation("swiglu")(x[:100]), F.silu(gate) * value)


@pytest.mark.parametrize("batch", [2, 0])
@pytest.mark.parametrize("biased", [False, True])
def test_plain_and_fused_attention_agree_forth_and_back(batch: int, biased: bool) -> None:
    torch.manual_seed(0)
    shapes = [(batch, 3, 5, 4)] * 3 + [(1, 3, 5, 5)] * biased
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    for scale in (None, 0.3):
        ours = Attend(TokenLayout(grid=(1, 5), stride=1))(*given, scale=scale)
        bias = given[3] if biased else None
        q, k, v = given[:3]
        fused = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
        torch.testing.assert_close(ours, fused, rtol=0, atol=1e-12)
        back = [
            torch.autograd.grad((y**2).sum(), given, materialize_grads=True) for y in (ours, fused)
        ]
        torch.testing.assert_close(*back, rtol=0, atol=1e-11)


def test_plain_attention_is_for_gradients_in_full_precision_on_a_cpu() -> None:
    q = torch.zeros(1, 1, SHORT, 2, requires_grad=True)
    assert unfused_is_faster(q, None)
    assert not unfused_is_faster(q.detach(), None)
    assert not unfused_is_faster(q.bfloat16(), None)
    assert not unfused_is_faster(q.to("meta"), None)
    assert not unfused_is_faster(q.expand(1, 1, SHORT, 2).repeat(1, 1, 2, 1), None)
    assert not unfused_is_faster(q, torch.zeros(1, 1, SHORT, SHORT))
    assert unfused_is_faster(q, torch.zeros(1, 1, SHORT, SHORT, requires_grad=True))


def test_patch_dropout_keeps_prefix_order_and_count() -> None:
    torch.manual_seed(0)
    drop = PatchDropout(0.25, prefix=2)
    x = torch.arange(18.0).view(1, 18, 1).repeat(5, 1, 3)
    kept = drop(x)
    assert kept.shape == (5, 2 + 12, 3)
    assert torch.equal(kept[:, :2], x[:, :2])
    rows = kept[:, 2:, 0]
    assert (rows.diff(dim=1) > 0).all()
    assert len({tuple(row.tolist()) for row in rows}) > 1
    assert torch.equal(drop.eval()(x), x)
