"""Vision Transformer (arXiv:2010.11929): an image read as a sentence of patches.

    image ── stem ── patches ── embed ── blocks ── norm ── pool ── head
    B C H W           B N D     B N D    B N D     B N D   B D     B K

A hybrid has a ResNet for a stem; DeiT has a distillation token beside the class token.
Axes: B batch · C channels · H W image · N tokens · D width · h heads · d head width · K classes
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import Sides
from vitrail.layers.attention import RelativeDistances, SelfAttention
from vitrail.layers.drop import (
    DropPath,
    LayerScale,
    PatchDropout,
    linear_drop_rates,
    make_layer_scale,
)
from vitrail.layers.head import Head
from vitrail.layers.init import lecun_normal_, zero_
from vitrail.layers.mlp import MLP
from vitrail.layers.patch import NormedPatchEmbedding, PatchEmbedding
from vitrail.layers.position import LearnedPositions, LearnedPositions2d, make_positions
from vitrail.models.model import Model, tokens_to_map
from vitrail.models.resnet import Bottleneck, ResNet, ResNetConfig
from vitrail.models.variant import Variant
from vitrail.models.vit_config import ViTConfig as ViTConfig


def with_patch_size(config: ViTConfig, patch_size: int) -> ViTConfig:
    return replace(config, patch_size=patch_size)


def hybrid(config: ViTConfig, blocks: tuple[int, ...], patch_size: int = 1) -> ViTConfig:
    """The same transformer on the feature map of a ResNet."""
    return replace(config, stem=ResNetConfig(blocks=blocks), patch_size=patch_size)


TI = ViTConfig(dim=192, depth=12, heads=3, mlp_dim=768)
S = ViTConfig(dim=384, depth=12, heads=6, mlp_dim=1536)
M = ViTConfig(dim=512, depth=12, heads=8, mlp_dim=2048)
B = ViTConfig(dim=768, depth=12, heads=12, mlp_dim=3072)
L = ViTConfig(dim=1024, depth=24, heads=16, mlp_dim=4096)
H = ViTConfig(dim=1280, depth=32, heads=16, mlp_dim=5120)
GIANT = ViTConfig(dim=1408, depth=40, heads=16, mlp_dim=6144)
GIGANTIC = ViTConfig(dim=1664, depth=48, heads=16, mlp_dim=8192)

# Table 1 of the paper, its hybrids (tables 3 and 6), the sizes of arXiv:2106.04560 and 2106.10270.
# fmt: off
VARIANTS = {
    "vit_ti_8": Variant(with_patch_size(TI, 8), params=5_719_720, macs=7_035_764_736),
    "vit_ti_14": Variant(with_patch_size(TI, 14), params=5_694_376, macs=1_697_710_080),
    "vit_ti_16": Variant(TI, params=5_717_416, macs=1_253_683_200),
    "vit_ti_32": Variant(with_patch_size(TI, 32), params=6_131_560, macs=306_034_176),
    "vit_s_8": Variant(with_patch_size(S, 8), params=22_055_272, macs=22_405_742_592),
    "vit_s_14": Variant(with_patch_size(S, 14), params=22_004_584, macs=6_123_945_984),
    "vit_s_16": Variant(S, params=22_050_664, macs=4_598_882_304),
    "vit_s_32": Variant(with_patch_size(S, 32), params=22_878_952, macs=1_142_909_952),
    "vit_m_8": Variant(with_patch_size(M, 8), params=38_843_880, macs=37_282_512_896),
    "vit_m_14": Variant(with_patch_size(M, 14), params=38_776_296, macs=10_590_617_600),
    "vit_m_16": Variant(M, params=38_837_736, macs=7_990_968_320),
    "vit_m_32": Variant(with_patch_size(M, 32), params=39_942_120, macs=1_995_739_136),
    "vit_b_8": Variant(with_patch_size(B, 8), params=86_576_872, macs=78_148_337_664),
    "vit_b_14": Variant(with_patch_size(B, 14), params=86_475_496, macs=23_161_995_264),
    "vit_b_16": Variant(B, params=86_567_656, macs=17_563_828_224),
    "vit_b_32": Variant(with_patch_size(B, 32), params=88_224_232, macs=4_409_186_304),
    "vit_l_8": Variant(with_patch_size(L, 8), params=304_338_920, macs=267_505_917_952),
    "vit_l_14": Variant(with_patch_size(L, 14), params=304_203_752, macs=81_013_006_336),
    "vit_l_16": Variant(L, params=304_326_632, macs=61_554_712_576),
    "vit_l_32": Variant(with_patch_size(L, 32), params=306_535_400, macs=15_377_539_072),
    "vit_h_8": Variant(with_patch_size(H, 8), params=632_214_760, macs=544_554_403_840),
    "vit_h_14": Variant(with_patch_size(H, 14), params=632_045_800, macs=167_295_109_120),
    "vit_h_16": Variant(H, params=632_199_400, macs=127_314_872_320),
    "vit_h_32": Variant(with_patch_size(H, 32), params=634_960_360, macs=31_856_035_840),
    "vit_g_8": Variant(with_patch_size(GIANT, 8), params=1_012_797_288, macs=861_889_639_424),
    "vit_g_14": Variant(with_patch_size(GIANT, 14), params=1_012_611_432, macs=267_031_491_584),
    "vit_g_16": Variant(GIANT, params=1_012_780_392, macs=203_407_913_984),
    "vit_g_32": Variant(with_patch_size(GIANT, 32), params=1_015_817_448, macs=50_957_671_424),
    "vit_G_8": Variant(with_patch_size(GIGANTIC, 8), params=1_844_660_328, macs=1_543_287_329_792),
    "vit_G_14": Variant(with_patch_size(GIGANTIC, 14), params=1_844_440_680, macs=483_747_550_208),
    "vit_G_16": Variant(GIGANTIC, params=1_844_640_360, macs=368_981_070_848),
    "vit_G_32": Variant(with_patch_size(GIGANTIC, 32), params=1_848_229_608, macs=92_664_046_592),
    "vit_r_ti_16": Variant(hybrid(TI, (), patch_size=8), params=6_337_704, macs=433_681_920),
    "vit_r26_s_32": Variant(hybrid(S, (2, 2, 2, 2)), params=36_431_912, macs=3_463_851_008),
    "vit_r26_b_32": Variant(hybrid(B, (2, 2, 2, 2)), params=101_383_976, macs=6_710_859_776),
    "vit_r50_b_16": Variant(hybrid(B, (3, 4, 9)), params=98_659_112, macs=21_535_358_976),
    "vit_r50_b_32": Variant(hybrid(B, (3, 4, 6, 3)), params=110_945_832, macs=8_457_787_392),
    "vit_r50_l_16": Variant(hybrid(L, (3, 4, 9)), params=316_483_624, macs=65_539_088_384),
    "vit_r50_l_32": Variant(hybrid(L, (3, 4, 6, 3)), params=328_994_856, macs=19_413_295_104),
}
# fmt: on


class Block(nn.Module):
    """Eq. 2 and 3: norm first, then add."""

    norm_placement: ClassVar[Literal["pre", "post"]] = "pre"

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.attention = SelfAttention(
            config.layout,
            dim=config.dim,
            heads=config.heads,
            dim_head=config.dim_head or config.dim // config.heads,
            qkv_bias=config.qkv_bias,
            relative=config.positions == "relative",
        )
        self.scale1 = make_layer_scale(config.dim, config.layer_scale)
        self.norm2 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.mlp = MLP(
            config.dim, config.mlp_dim, activation=config.activation, dropout=config.dropout
        )
        self.scale2 = make_layer_scale(config.dim, config.layer_scale)
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Float[Tensor, "B N D"], queries: int | None = None
    ) -> Float[Tensor, "B n D"]:
        """What becomes of the first `queries` tokens (None: of all)."""
        attend = partial(self.attention_branch, queries=queries)
        x = self.drop_path(x, attend, lambda x: x if queries is None else x[:, :queries])
        return self.drop_path(x, self.mlp_branch)

    def attention_branch(
        self, x: Float[Tensor, "B N D"], queries: int | None = None
    ) -> Float[Tensor, "B n D"]:
        return self.scale1(self.dropout(self.attention(self.norm1(x), queries=queries)))

    def mlp_branch(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n D"]:
        return self.scale2(self.mlp(self.norm2(x)))


class PostNormBlock(Block):
    """Add first, then norm, as the first transformer had it (arXiv:1706.03762)."""

    norm_placement = "post"

    def forward(
        self, x: Float[Tensor, "B N D"], queries: int | None = None
    ) -> Float[Tensor, "B n D"]:
        attend = partial(self.attention_branch, queries=queries)
        x = self.drop_path(x, attend, lambda x: x if queries is None else x[:, :queries])
        x = self.norm1(x)
        return self.norm2(self.drop_path(x, self.mlp_branch))

    def attention_branch(
        self, x: Float[Tensor, "B N D"], queries: int | None = None
    ) -> Float[Tensor, "B n D"]:
        return self.scale1(self.dropout(self.attention(x, queries=queries)))

    def mlp_branch(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n D"]:
        return self.scale2(self.mlp(x))


class ViT(Model):
    """
    >>> config = replace(VARIANTS["vit_b_16"].config, depth=1, num_classes=10)
    >>> ViT(config)(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 10])
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = ResNet(config.stem, channels=config.channels) if config.stem else nn.Identity()
        self.patches = make_patches(config)
        self.cls = make_tokens(config, int(config.class_token))
        self.distillation = make_tokens(config, int(config.distilled))
        self.registers = make_tokens(config, config.registers)
        self.positions = make_positions(config.positions, config.slots, config.grid, config.dim)
        embed_dropout = config.dropout if config.embed_dropout is None else config.embed_dropout
        self.dropout = nn.Dropout(embed_dropout)
        self.patch_dropout = PatchDropout(config.patch_dropout, prefix=config.prefix)
        self.embed_norm = make_norm(config, wanted=config.embed_norm)
        (rates,) = linear_drop_rates(config.drop_path, [config.depth])
        block = PostNormBlock if config.norm_placement == "post" else Block
        self.blocks = nn.ModuleList(block(config, rate) for rate in rates)
        self.norm = make_norm(config, wanted=config.final_norm != "none")
        self.attach_head()
        self.init_weights()

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        return self.logits_of(self.encode(image))

    def features(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """What the head reads; for a distilled model the mean of what its two heads read."""
        return self.features_of(self.encode(image))

    def encode(
        self, image: Float[Tensor, "B C H W"], queries: int | None = None
    ) -> Float[Tensor, "B n D"]:
        """The tokens that leave the last block: the first `queries`, or all."""
        return self.forward_blocks(self.embed(image), queries)

    def logits_of(self, tokens: Float[Tensor, "B n D"]) -> Float[Tensor, "B K"]:
        if self.head_distilled is not None:
            return torch.stack(self.both_logits_of(tokens)).mean(dim=0)
        return self.head(self.features_of(tokens))

    def features_of(self, tokens: Float[Tensor, "B n D"]) -> Float[Tensor, "B D"]:
        x = self.pool(tokens)
        return self.norm(x) if self.config.final_norm == "pooled" else x

    def embed(
        self,
        image: Float[Tensor, "B C H W"],
        corrupt: Callable[[Float[Tensor, "B N D"]], Float[Tensor, "B N D"]] | None = None,
    ) -> Float[Tensor, "B M D"]:
        """Eq. 1: the prefix tokens, then the patches in reading order, plus where each one was.
        `corrupt` changes patches before positions are added, so that positions stay known."""
        patches = self.patches(self.stem(self.check(image)))
        if corrupt is not None:
            patches = corrupt(patches)
        prefix = (self.cls, self.distillation, self.registers)
        tokens = [token.expand(patches.shape[0], -1, -1) for token in prefix if token is not None]
        x = torch.cat([*tokens, patches], dim=1)
        if self.positions is not None:
            x = x + self.place(self.positions())
        return self.patch_dropout(self.dropout(x))

    def forward_blocks(
        self, x: Float[Tensor, "B N D"], queries: int | None = None
    ) -> Float[Tensor, "B n D"]:
        """What `embed` gives, or a part of its tokens, through every block; the last computes the
        first `queries` tokens alone (None: all)."""
        x = self.embed_norm(x)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x)
        x = last(x) if queries is None else last(x, queries)
        return self.norm(x) if self.config.final_norm == "tokens" else x

    def place(self, table: Float[Tensor, "1 M D"]) -> Float[Tensor, "1 N D"]:
        """Zeros for the prefix tokens that have no slot in the position table."""
        slots, free = self.config.slots, self.config.prefix - self.config.slots
        if not free:
            return table
        return torch.cat(
            [table[:, :slots], table.new_zeros(1, free, table.shape[2]), table[:, slots:]], dim=1
        )

    def pool(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        patches = x[:, self.config.prefix :]
        match self.config.pool:
            case "cls" if self.config.distilled:
                return x[:, :2].mean(dim=1)
            case "cls":
                return x[:, 0]
            case "mean":
                return patches.mean(dim=1)
            case "all":
                return x.mean(dim=1)
            case "cls+mean":
                return torch.cat([x[:, 0], patches.mean(dim=1)], dim=1)
            case _ as never:
                assert_never(never)

    def both_heads(
        self, image: Float[Tensor, "B C H W"]
    ) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        """What the class head and the distillation head say; DeiT trains them apart."""
        if self.head_distilled is None:
            raise UserError("this model has one head: create it with distilled=True to have two")
        return self.both_logits_of(self.encode(image))

    def both_logits_of(
        self, tokens: Float[Tensor, "B n D"]
    ) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        assert self.head_distilled is not None
        x = tokens[:, :2]
        x = self.norm(x) if self.config.final_norm == "pooled" else x
        return self.head(x[:, 0]), self.head_distilled(x[:, 1])

    def attach_head(self) -> None:
        """Heads that know nothing yet: whatever the features, every class gets the same logit."""
        self.head = make_head(self.config)
        self.head_distilled = make_head(self.config) if self.config.distilled else None

    def blocks_by_depth(self) -> dict[str, nn.Module]:
        return {f"blocks.{i}": block for i, block in enumerate(self.blocks)}

    def map_shape(self, block: str) -> tuple[int, Sides]:
        return self.config.dim, self.config.stride

    def to_map(self, output: Float[Tensor, "B N D"]) -> Float[Tensor, "B D rows columns"]:
        return tokens_to_map(output, self.config.layout)

    @torch.no_grad()
    def init_weights(self) -> None:
        """As the paper's code does (DeiT's and DINOv2's where the paper has no such part).

        | what | how |
        |---|---|
        | linear layers; q, k and v each for itself | Xavier uniform |
        | MLP biases | N(0, 1e-6) |
        | every other bias | 0 |
        | patch, stem and hidden head layers | truncated N(0, 1/fan_in), cut at two deviations |
        | last layer of a head | 0 |
        | class token | 0 |
        | positions, distances, distillation token | N(0, 0.02) |
        | registers | N(0, 1e-6) |
        | norms | 1 and 0; the last of each ResNet block 0 and 0 |
        | LayerScale | its initial value |
        """
        for module in self.modules():
            match module:
                case nn.Linear():
                    nn.init.xavier_uniform_(module.weight)
                    zero_(module.bias)
                case nn.Conv2d():
                    lecun_normal_(module.weight)
                    zero_(module.bias)
                case nn.LayerNorm() | nn.GroupNorm():
                    nn.init.ones_(module.weight)
                    zero_(module.bias)
                case LayerScale():
                    nn.init.constant_(module.factor, module.initial)
                case LearnedPositions() | LearnedPositions2d() | RelativeDistances():
                    for table in module.parameters():
                        nn.init.normal_(table, std=0.02)
        for module in self.modules():  # where a part differs from its kind
            match module:
                case SelfAttention():
                    for part in module.qkv.weight.chunk(3):
                        nn.init.xavier_uniform_(part)
                    zero_(module.qv_bias)
                case MLP():
                    nn.init.normal_(module.fc1.bias, std=1e-6)
                    nn.init.normal_(module.fc2.bias, std=1e-6)
                case Bottleneck():
                    zero_(module.norm3.weight)
                case Head():
                    module.init_weights()
        zero_(self.cls)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=1e-6)
        if self.distillation is not None:
            nn.init.normal_(self.distillation, std=0.02)


def make_patches(config: ViTConfig) -> PatchEmbedding | NormedPatchEmbedding:
    channels = config.stem.channels if config.stem else config.channels
    if config.patch_norm:
        return NormedPatchEmbedding(
            channels, config.dim, config.patch_size, bias=config.patch_bias, eps=config.norm_eps
        )
    return PatchEmbedding(channels, config.dim, config.patch_size, bias=config.patch_bias)


def make_tokens(config: ViTConfig, count: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(1, count, config.dim)) if count else None


def make_norm(config: ViTConfig, *, wanted: bool) -> nn.Module:
    return nn.LayerNorm(config.dim, eps=config.norm_eps) if wanted else nn.Identity()


def make_head(config: ViTConfig) -> Head:
    hidden = config.dim if config.head == "pretrain" else None
    return Head(config.features, config.num_classes, hidden=hidden, bias=config.head_bias)
