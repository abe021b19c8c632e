"""Attention: one parameter-free `Attend` that every family calls, and self-attention around it."""

from collections.abc import Callable
from typing import Literal, Self

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.layout import TokenLayout
from vitrail.layers.linear import Linear, linear

QkvBias = Literal["qkv", "qv", "none"]

SHORT = 128  # tokens up to which plain products are quicker than the fused kernel, on a CPU


class Attend(nn.Module):
    """softmax(q kᵀ · scale + bias) v. It owns no parameters, so that one hook here sees every
    attention of every family; the layout says where its tokens lie in the image. Attention
    within windows has them as an axis of its own, before the heads."""

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__()
        self.layout = layout

    def forward(
        self,
        q: Float[Tensor, "B *W h n d"],
        k: Float[Tensor, "B *W h N d"],
        v: Float[Tensor, "B *W h N d"],
        bias: Float[Tensor, "*#B #h n N"] | None = None,
        scale: float | None = None,
    ) -> Float[Tensor, "B *W h n d"]:
        if bias is not None and torch.compiler.is_exporting():
            return attend_exported(q, k, v, bias, scale)
        if unfused_is_faster(q, bias):
            return attend_unfused(q, k, v, bias, scale)
        return attend_fused(q, k, v, bias, scale)

    def extra_repr(self) -> str:
        return f"{self.layout.prefix} + {self.layout.grid[0]}x{self.layout.grid[1]} tokens"


def unfused_is_faster(q: Float[Tensor, "B *W h N d"], bias: Tensor | None) -> bool:
    """Where gradients are wanted on a CPU: the fused kernel's way back is slow for few tokens, and
    it has none to a bias. Below float32 it is the one that keeps its sums exact."""
    if q.device.type != "cpu" or q.dtype.itemsize < 4 or torch.compiler.is_compiling():
        return False
    if bias is not None:
        return bias.requires_grad
    return q.requires_grad and q.shape[-2] <= SHORT


def attend_fused(
    q: Float[Tensor, "B *W h n d"],
    k: Float[Tensor, "B *W h N d"],
    v: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h n N"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B *W h n d"]:
    """The fused kernels know rank 4 alone."""
    shape = (*q.shape[:-1], v.shape[-1])
    q, k, v, bias = to_rank_4(q, k, v, bias)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    return y if len(shape) == 4 else y.reshape(shape)


def to_rank_4(
    q: Float[Tensor, "B *W h n d"],
    k: Float[Tensor, "B *W h N d"],
    v: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h n N"] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Windows that share one bias are so many more samples, windows with a bias each are so many
    more heads, and no bias is ever copied."""
    if q.ndim == 4:
        return q, k, v, bias
    first = 0 if bias is None or bias.shape[0] == 1 else 1
    q, k, v = (part.flatten(first, first + 1) for part in (q, k, v))
    return q, k, v, bias.flatten(0, 1)[None] if bias is not None and first else bias


def attend_unfused(
    q: Float[Tensor, "B *W h n d"],
    k: Float[Tensor, "B *W h N d"],
    v: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h n N"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B *W h n d"]:
    """The definition, one product after the other; the first takes the scale along."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    each = q.shape[:-2]
    q, k, v = (part.flatten(0, -3) for part in (q, k, v))
    scores = torch.baddbmm(q.new_empty(1), q, k.mT, beta=0, alpha=scale)
    if bias is not None:
        scores = (scores.unflatten(0, each) + bias).flatten(0, -3)
    return (scores.softmax(dim=-1) @ v).unflatten(0, each)


def attend_exported(
    q: Float[Tensor, "B *W h n d"],
    k: Float[Tensor, "B *W h N d"],
    v: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h n N"],
    scale: float | None = None,
) -> Float[Tensor, "B *W h n d"]:
    """The definition in operators that every format has. The fused kernel would be taken apart
    later, and with a bias what comes of that has other strides than the graph was traced with.
    Engines that fuse these operators again know rank 4 alone, too."""
    shape = (*q.shape[:-1], v.shape[-1])
    q, k, v, mask = to_rank_4(q, k, v, bias)
    y = exported_weights(q, k, mask, scale) @ v
    return y if len(shape) == 4 else y.reshape(shape)


def exported_weights(
    q: Float[Tensor, "B *W h n d"],
    k: Float[Tensor, "B *W h N d"],
    bias: Float[Tensor, "*#B #h n N"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B *W h n N"]:
    """softmax(q kᵀ · scale + bias)."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    return (scores if bias is None else scores + bias).softmax(dim=-1)


def split_qkv(
    qkv: Float[Tensor, "B W n D"], heads: int
) -> tuple[Float[Tensor, "B W h n d"], Float[Tensor, "B W h n d"], Float[Tensor, "B W h n d"]]:
    """Queries, keys and values of windows or folds, by one permutation; five axes at most, which is
    what phones know."""
    flat = rearrange(qkv.flatten(0, 1), "b n (three h d) -> three b h n d", three=3, h=heads)
    q, k, v = (part.unflatten(0, qkv.shape[:2]) for part in flat)
    return q, k, v


class SeparableAttend(nn.Module):
    """Attention with one query for all tokens (arXiv:2206.02680): each token has a score, and a
    softmax over these makes one context of the keys. It owns no parameters and is captured like
    `Attend`."""

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__()
        self.layout = layout

    def forward(
        self, scores: Float[Tensor, "B 1 P N"], keys: Float[Tensor, "B D P N"]
    ) -> Float[Tensor, "B D P 1"]:
        return (keys * scores.softmax(dim=-1)).sum(dim=-1, keepdim=True)

    def extra_repr(self) -> str:
        return f"{self.layout.grid[0]}x{self.layout.grid[1]} tokens"


class SelfAttention(nn.Module):
    """Multi-head self-attention, its logits plus the bias that a caller gives; `relative` adds the
    logits of an extra attention to learned distances.

    `qkv_bias`: "qkv" all three have one, "qv" all but the keys (BEiT), "none".
    """

    def __init__(
        self,
        layout: TokenLayout,
        *,
        dim: int,
        heads: int,
        dim_head: int,
        qkv_bias: QkvBias = "qkv",
        relative: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = make_qkv(dim, 3 * heads * dim_head, qkv_bias)
        self.qv_bias = nn.Parameter(torch.empty(2, heads * dim_head)) if qkv_bias == "qv" else None
        self.distances = RelativeDistances(layout.tokens, dim_head) if relative else None
        self.attend = Attend(layout)
        self.out = Linear(heads * dim_head, dim)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        bias: Float[Tensor, "#B #h N N"] | None = None,
        queries: int | None = None,
    ) -> Float[Tensor, "B n D"]:
        """What becomes of the first `queries` tokens (None: of all); every token is a key."""
        q, k, v = (
            rearrange(part, "B N (h d) -> B h N d", h=self.heads)
            for part in self.project(x, queries)
        )
        if bias is not None and queries is not None:
            bias = bias[:, :, :queries]
        if self.distances is not None:
            by_distance = self.distances(q)
            bias = by_distance if bias is None else by_distance + bias
        return self.out(rearrange(self.attend(q, k, v, bias), "B h N d -> B N (h d)"))

    @property
    def can_split_queries(self) -> bool:
        """Whether queries can be projected apart from keys and values: not where an adapter stands
        in the place of the projection."""
        return type(self.qkv) in (Linear, QkvLinear)

    def project(
        self, x: Float[Tensor, "B N D"], queries: int | None = None
    ) -> tuple[Float[Tensor, "B n E"], Float[Tensor, "B N E"], Float[Tensor, "B N E"]]:
        if queries is None:
            q, k, v = self.project_all(x).chunk(3, dim=-1)
            return q, k, v
        inner, weight, bias = self.out.in_features, self.qkv.weight, self.projection_bias()
        of_queries, of_rest = (None, None) if bias is None else (bias[:inner], bias[inner:])
        k, v = linear(x, weight[inner:], of_rest).chunk(2, dim=-1)
        return linear(x[:, :queries], weight[:inner], of_queries), k, v

    def project_all(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N threeE"]:
        if self.qv_bias is None:
            return self.qkv(x)
        return self.qkv(x, self.projection_bias())

    def projection_bias(self) -> Float[Tensor, "threeE"] | None:
        if self.qv_bias is None:
            bias: Tensor | None = self.qkv.bias
            return bias
        return without_key_bias(self.qv_bias)


class QkvLinear(nn.Linear):
    """A projection to queries, keys and values that is given its bias at each call, so that hooks
    on it and adapters around it see all of it."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__(dim, width, bias=False)

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "*B D"], bias: Float[Tensor, "E"]
    ) -> Float[Tensor, "*B E"]:
        return linear(x, self.weight, bias)


def make_qkv(dim: int, width: int, bias: QkvBias) -> nn.Linear:
    return QkvLinear(dim, width) if bias == "qv" else Linear(dim, width, bias=bias == "qkv")


def without_key_bias(qv_bias: Float[Tensor, "2 E"]) -> Float[Tensor, "threeE"]:
    """The bias of all three where keys have none."""
    q, v = qv_bias
    return torch.cat([q, torch.zeros_like(q), v])


class RelativeDistances(nn.Module):
    """1-D relative attention (arXiv:2010.11929, appendix D.4): the query, not the key, meets an
    embedding of the distance between the two tokens in reading order; the logits become a bias."""

    index: Tensor

    def __init__(self, tokens: int, dim_head: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * tokens - 1, dim_head))
        self.tokens = tokens
        self.register_buffer("index", self.make_index(), persistent=False)

    def make_index(self) -> Int[Tensor, "N N"]:
        # on the CPU even under torch.device("meta"): no checkpoint brings the index back
        place = torch.arange(self.tokens, device="cpu")
        return place[:, None] - place + self.tokens - 1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moved to another device, the index is made anew: `to_empty` would leave it without
        values."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.index = self.make_index().to(self.index.device)
        return self

    def forward(self, q: Float[Tensor, "B h n d"]) -> Float[Tensor, "B h n N"]:
        """For the first n tokens as queries."""
        q = q * q.shape[-1] ** -0.5
        every_distance = q @ self.table.mT
        index = self.index[: q.shape[2]].expand(*q.shape[:2], -1, -1)
        return every_distance.gather(-1, index)
