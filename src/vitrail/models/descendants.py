"""Models that are a ViT in all but a token, a norm or a recipe: DeiT, DeiT III, DINOv2, FlexiViT.

They need rows, not code: `models/vit.py` computes all of them.
"""

from dataclasses import replace

from vitrail.models.variant import Variant
from vitrail.models.vit import TI, B, H, L, M, S, ViTConfig


def with_distillation(config: ViTConfig) -> ViTConfig:
    """arXiv:2012.12877: a second token and head that learn from a teacher."""
    return replace(config, distilled=True)


def deit3(config: ViTConfig, patch_size: int) -> ViTConfig:
    """arXiv:2204.07118: LayerScale, and positions for the patches alone."""
    return replace(config, patch_size=patch_size, layer_scale=1e-6, prefix_positions=0)


def dinov2(config: ViTConfig, registers: int = 0) -> ViTConfig:
    """arXiv:2304.07193 and 2309.16588: LayerScale, 518 pixels, a backbone without a head."""
    return replace(
        config,
        patch_size=14,
        image_size=(518, 518),
        layer_scale=1e-5,
        registers=registers,
        num_classes=0,
    )


def flexivit(config: ViTConfig) -> ViTConfig:
    """arXiv:2212.08013: 240 pixels, which patches of 8 to 48 divide."""
    return replace(config, image_size=(240, 240), prefix_positions=0)


GIANT = ViTConfig(dim=1536, depth=40, heads=24, mlp_dim=4096, activation="swiglu")

# fmt: off
VARIANTS = {
    "deit_ti_16": Variant(TI, params=5_717_416, macs=1_253_683_200),
    "deit_s_16": Variant(S, params=22_050_664, macs=4_598_882_304),
    "deit_b_16": Variant(B, params=86_567_656, macs=17_563_828_224),
    "deit_ti_16_distilled": Variant(with_distillation(TI), params=5_910_800, macs=1_261_003_776),
    "deit_s_16_distilled": Variant(with_distillation(S), params=22_436_432, macs=4_624_140_288),
    "deit_b_16_distilled": Variant(with_distillation(B), params=87_338_192, macs=17_656_811_520),
    "deit3_s_16": Variant(deit3(S, 16), params=22_059_496, macs=4_598_882_304),
    "deit3_m_16": Variant(deit3(M, 16), params=38_849_512, macs=7_990_968_320),
    "deit3_b_16": Variant(deit3(B, 16), params=86_585_320, macs=17_563_828_224),
    "deit3_l_16": Variant(deit3(L, 16), params=304_374_760, macs=61_554_712_576),
    "deit3_h_14": Variant(deit3(H, 14), params=632_126_440, macs=167_295_109_120),
    "dinov2_s_14": Variant(dinov2(S), params=22_056_192, macs=46_696_739_328),
    "dinov2_b_14": Variant(dinov2(B), params=86_579_712, macs=151_573_718_016),
    "dinov2_l_14": Variant(dinov2(L), params=304_367_616, macs=506_803_826_688),
    "dinov2_g_14": Variant(dinov2(GIANT), params=1_136_479_232, macs=1_783_342_958_592),
    "dinov2_s_14_reg": Variant(dinov2(S, 4), params=22_057_728, macs=46_882_828_800),
    "dinov2_b_14_reg": Variant(dinov2(B, 4), params=86_582_784, macs=152_115_766_272),
    "dinov2_l_14_reg": Variant(dinov2(L, 4), params=304_371_712, macs=508_551_278_592),
    "dinov2_g_14_reg": Variant(dinov2(GIANT, 4), params=1_136_485_376, macs=1_789_221_537_792),
    "flexivit_s_16": Variant(flexivit(S), params=22_061_416, macs=5_336_263_680),
    "flexivit_b_16": Variant(flexivit(B), params=86_589_160, macs=20_270_143_488),
    "flexivit_l_16": Variant(flexivit(L), params=304_355_304, macs=70_938_173_440),
}
# fmt: on
