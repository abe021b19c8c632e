"""Swin Transformer V2 (arXiv:2111.09883): cosine attention, its bias computed from the offset, and
norms after the branches.

    image ── patches ── stage 1 ── stage 2 ── stage 3 ── stage 4 ── norm ── pool ── head
    B C H W   1/4, D     1/4, D     1/8, 2D   1/16, 4D   1/32, 8D            B 8D    B K

Axes: B batch · C channels · H W image · D width · W windows · n cells of one · h heads · d head
width · K classes · M offsets. Between attentions tokens lie on their grid: B rows columns D.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.attention import Attend, QkvLinear, split_qkv, without_key_bias
from vitrail.layers.computed import Computed
from vitrail.layers.drop import DropPath
from vitrail.layers.init import zero_
from vitrail.layers.linear import Linear
from vitrail.layers.mlp import MLP
from vitrail.layers.norm import scale_to
from vitrail.layers.relative import Offsets
from vitrail.layers.window import (
    Grid,
    ShiftMask,
    join_heads,
    merge_neighbours,
    window_of,
    window_partition,
    window_reverse,
)
from vitrail.models.config import Numerics
from vitrail.models.swin import Stage, Swin, SwinConfig
from vitrail.models.variant import Variant


@dataclass(frozen=True, kw_only=True)
class SwinV2Config(SwinConfig):
    """A Swin's fields and one more: the windows of each stage in training, a side or two each,
    where they were others (empty: they were these). Offsets are measured against them, so that the
    bias that was learned for small windows goes on into larger ones."""

    window_size: Numerics[int] = 8
    pretrained_windows: Numerics[tuple[int | Grid, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained_windows and len(self.pretrained_windows) != len(self.depths):
            raise UserError(
                f"pretrained_windows is {self.pretrained_windows}, expected one for each of "
                f"{len(self.depths)} stages"
            )
        sides = [side for window in self.pretrained_windows for side in both_sides(window)]
        if any(not 1 <= side <= 2**10 for side in sides):
            raise UserError(
                f"pretrained_windows is {self.pretrained_windows}, expected 1 to 1024 cells each"
            )

    def reference_window(self, stage: int) -> Grid:
        """The windows that offsets of a stage are measured against."""
        if self.pretrained_windows:
            return both_sides(self.pretrained_windows[stage])
        return window_of(self.layout(stage, 0))


def both_sides(window: int | Grid) -> Grid:
    return (window, window) if isinstance(window, int) else window


T = SwinV2Config(dim=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24), image_size=(256, 256))
S = replace(T, depths=(2, 2, 18, 2))
B = replace(S, dim=128, heads=(4, 8, 16, 32))
L = replace(S, dim=192, heads=(6, 12, 24, 48))


def with_window(config: SwinV2Config, window_size: int, side: int) -> SwinV2Config:
    return replace(config, window_size=window_size, image_size=(side, side))


def enlarge(config: SwinV2Config, window_size: int, side: int) -> SwinV2Config:
    """Pre-trained on 192 pixels with windows of 12, which are 6 in the last stage."""
    return replace(with_window(config, window_size, side), pretrained_windows=(12, 12, 12, 6))


# What the authors published; the largest was never trained with windows of 8.
# fmt: off
VARIANTS = {
    "swinv2_t": Variant(T, params=28_347_154, macs=5_939_690_496),
    "swinv2_t_w16": Variant(with_window(T, 16, 256), params=28_347_154, macs=6_660_619_264),
    "swinv2_s": Variant(S, params=49_728_418, macs=11_545_857_024),
    "swinv2_s_w16": Variant(with_window(S, 16, 256), params=49_728_418, macs=12_783_078_400),
    "swinv2_b": Variant(B, params=87_918_816, macs=20_325_134_336),
    "swinv2_b_w16": Variant(with_window(B, 16, 256), params=87_918_816, macs=21_969_235_968),
    "swinv2_b_w12": Variant(with_window(B, 12, 192), params=87_918_816, macs=11_856_261_120),
    "swinv2_b_w12to16": Variant(enlarge(B, 16, 256), params=87_918_816, macs=21_969_235_968),
    "swinv2_b_w12to24": Variant(enlarge(B, 24, 384), params=87_918_816, macs=55_148_310_528),
    "swinv2_l": Variant(with_window(L, 12, 192), params=196_739_932, macs=26_101_905_408),
    "swinv2_l_w12to16": Variant(enlarge(L, 16, 256), params=196_739_932, macs=47_740_303_360),
    "swinv2_l_w12to24": Variant(enlarge(L, 24, 384), params=196_739_932, macs=115_991_427_072),
}
# fmt: on

# timm's and torchvision's names
ALIASES = {
    "swinv2_tiny_window8_256": "swinv2_t",
    "swinv2_tiny_window16_256": "swinv2_t_w16",
    "swinv2_small_window8_256": "swinv2_s",
    "swinv2_small_window16_256": "swinv2_s_w16",
    "swinv2_base_window8_256": "swinv2_b",
    "swinv2_base_window16_256": "swinv2_b_w16",
    "swinv2_base_window12_192": "swinv2_b_w12",
    "swinv2_base_window12to16_192to256": "swinv2_b_w12to16",
    "swinv2_base_window12to24_192to384": "swinv2_b_w12to24",
    "swinv2_large_window12_192": "swinv2_l",
    "swinv2_large_window12to16_192to256": "swinv2_l_w12to16",
    "swinv2_large_window12to24_192to384": "swinv2_l_w12to24",
    "swin_v2_t": "swinv2_t",
    "swin_v2_s": "swinv2_s",
    "swin_v2_b": "swinv2_b",
}


class ContinuousBias(nn.Module):
    """Eq. 3 and 4: a small perceptron reads the offset between two cells, so that it knows windows
    of any size; what it says becomes a bias between 0 and 16 in each head."""

    def __init__(self, window: Grid, reference_window: Grid, heads: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 512)
        self.fc2 = nn.Linear(512, heads, bias=False)
        self.where = Computed(partial(log_offsets, window, reference_window))
        self.offsets = Offsets(window)

    def forward(self) -> Float[Tensor, "1 h n n"]:
        table: Float[Tensor, "M h"] = self.fc2(F.relu(self.fc1(self.where())))
        return self.offsets(16 * torch.sigmoid(table))


def log_offsets(window: Grid, reference_window: Grid) -> Float[Tensor, "M 2"]:
    """Down and across, brought to [-8, 8] within `reference_window`, then to
    log2(1 + |x|) / log2(8) with
    their sign. In float32, step by step as all published code does, whatever the precision of a
    model is: weights were trained on these very numbers.

    >>> log_offsets((2, 1), (2, 1))[:, 0]
    tensor([-1.0566,  0.0000,  1.0566])
    """
    sides = [
        torch.arange(1 - side, side, device="cpu").float() / max(most - 1, 1)
        for side, most in zip(window, reference_window, strict=True)
    ]
    pairs = torch.cartesian_prod(*sides) * 8
    return pairs.sign() * torch.log2(pairs.abs() + 1.0) / math.log2(8)


class CosineAttention(nn.Module):
    """Eq. 2: attention within windows by the angle between query and key, times a learned scale of
    at most 100 in each head. Queries and values have a bias, keys have none."""

    def __init__(
        self, layout: TokenLayout, *, dim: int, heads: int, reference_window: Grid
    ) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = QkvLinear(dim, 3 * dim)
        self.qv_bias = nn.Parameter(torch.empty(2, dim))
        self.logit_scale = nn.Parameter(torch.empty(heads, 1, 1))
        self.bias = ContinuousBias(window_of(layout), reference_window, heads)
        self.mask = ShiftMask(layout)
        self.attend = Attend(layout)
        self.out = Linear(dim, dim)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        qkv = self.qkv(window_partition(x, self.attend.layout), without_key_bias(self.qv_bias))
        q, k, v = split_qkv(qkv, self.heads)
        scale = self.logit_scale.clamp(max=math.log(100)).exp()
        q, k = scale_to(q, scale), scale_to(k, 1.0)
        y = self.attend(q, k, v, self.mask(self.bias()), scale=1.0)
        return window_reverse(self.out(join_heads(y)), self.attend.layout)


class Block(nn.Module):
    """Each branch is normed after it was computed, and then added."""

    def __init__(self, config: SwinV2Config, stage: int, block: int, drop_path: float) -> None:
        super().__init__()
        dim = config.width(stage)
        self.attention = CosineAttention(
            config.layout(stage, block),
            dim=dim,
            heads=config.heads[stage],
            reference_window=config.reference_window(stage),
        )
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = MLP(dim, config.mlp_dim(stage), activation="gelu", dropout=config.dropout)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        return self.drop_path(self.drop_path(x, self.attention_branch), self.mlp_branch)

    def attention_branch(
        self, x: Float[Tensor, "B rows columns D"]
    ) -> Float[Tensor, "B rows columns D"]:
        return self.norm1(self.dropout(self.attention(x)))

    def mlp_branch(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        return self.norm2(self.mlp(x))


class PatchMerging(nn.Module):
    """Two by two cells become one of twice the width, normed afterwards."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.reduction = Linear(4 * dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(2 * dim, eps=eps)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B r c twoD"]:
        return self.norm(self.reduction(merge_neighbours(x)))


class SwinV2(Swin):
    """The way from image to logits is the one of Swin; its stages are other ones.

    >>> config = replace(VARIANTS["swinv2_t"].config, num_classes=10)
    >>> SwinV2(config)(torch.zeros(1, 3, 256, 256)).shape
    torch.Size([1, 10])
    """

    no_decay = ("*.attention.bias.fc*",)

    def make_stage(self, stage: int, rates: list[float]) -> Stage:
        config = self.config
        merge = PatchMerging(config.width(stage - 1), config.norm_eps) if stage else None
        return Stage(merge, [Block(config, stage, block, rate) for block, rate in enumerate(rates)])

    @torch.no_grad()
    def init_weights(self) -> None:
        """As the paper's code does.

        | what | how |
        |---|---|
        | linear layers | truncated N(0, 0.02) |
        | every bias of theirs | 0 |
        | logit scales | ln 10 |
        | patch kernels and their biases | uniform, at most 1/√fan_in |
        | norms | 1 and 0; those after a branch 0 and 0, so that blocks begin as nothing |
        | head | 0 |
        """
        for module in self.modules():
            match module:
                case nn.Linear():
                    nn.init.trunc_normal_(module.weight, std=0.02)
                    zero_(module.bias)
                case nn.Conv2d() | nn.LayerNorm():
                    module.reset_parameters()
                case CosineAttention():
                    zero_(module.qv_bias)
                    nn.init.constant_(module.logit_scale, math.log(10))
        for module in self.modules():  # after all norms were reset
            if isinstance(module, Block):
                zero_(module.norm1.weight)
                zero_(module.norm2.weight)
        self.head.init_weights()
