"""timm's own CoAtNets, the only ones with public weights: other choices, no other code.

They were trained before anything was known of the paper's code ("rw" are their author's initials).
"rmlp" computes the bias of attention by a perceptron.
"""

from dataclasses import replace

from vitrail.models.coatnet import CoAtNetConfig
from vitrail.models.variant import Variant


def rw(
    stem: tuple[int, int], dims: tuple[int, ...], depths: tuple[int, ...], *, squeeze_first: bool
) -> CoAtNetConfig:
    """An activation more in front of convolutions, their width from what comes in, no biases."""
    return CoAtNetConfig(
        stem=stem,
        dims=dims,
        depths=depths,
        head="linear",
        final_norm="cells",
        widening="late",
        activation="silu",
        preactivation=True,
        squeeze=4,
        squeeze_activation="relu",
        early_squeeze=squeeze_first,
        conv_bias=False,
        shortcut_bias=not squeeze_first,
    )


def small(depths: tuple[int, ...]) -> CoAtNetConfig:
    """The later ones, which learnt from MaxViT."""
    plain = rw((32, 64), (64, 128, 256, 512), depths, squeeze_first=False)
    return replace(plain, preactivation=False, squeeze_activation="silu", conv_bias=True)


PICO = small((2, 3, 5, 2))
NANO = replace(small((3, 4, 6, 3)), downsampling="pool")
DEEP0 = rw((32, 64), (96, 192, 384, 768), (2, 3, 7, 2), squeeze_first=True)
DEEP1 = replace(DEEP0, depths=(2, 6, 14, 2))
RW0 = replace(DEEP0, downsampling="pool")
RW2 = replace(
    rw((64, 128), (128, 256, 512, 1024), (2, 6, 14, 2), squeeze_first=False),
    squeeze_activation="silu",
)
RW3 = replace(RW2, stem=(96, 192), dims=(192, 384, 768, 1536), layer_scale=1e-6)
RMLP_NANO = replace(NANO, downsampling="convolution", bias_hidden=384)
RMLP0 = replace(DEEP0, early_squeeze=False, shortcut_bias=True, bias_hidden=512)
RMLP1 = replace(DEEP1, downsampling="pool", pooling="max", bias_hidden=384)
RMLP1_2 = replace(RMLP0, depths=(2, 6, 14, 2))
RMLP2 = replace(RW2, bias_hidden=512, layer_scale=1e-6)
RMLP2_384 = replace(RMLP2, image_size=(384, 384))
RMLP3 = replace(RW3, bias_hidden=512)

# fmt: off
VARIANTS = {
    "coatnet_pico_rw": Variant(PICO, params=10_851_364, macs=2_028_459_520),
    "coatnet_nano_rw": Variant(NANO, params=15_141_244, macs=2_382_715_392),
    "coatnet_0_rw": Variant(RW0, params=27_435_562, macs=4_406_300_928),
    "coatnet_1_rw": Variant(DEEP1, params=41_721_502, macs=7_992_160_512),
    "coatnet_2_rw": Variant(RW2, params=73_868_400, macs=15_019_256_832),
    "coatnet_3_rw": Variant(RW3, params=165_173_428, macs=33_320_993_280),
    "coatnet_rmlp_nano_rw": Variant(RMLP_NANO, params=15_145_116, macs=2_594_052_864),
    "coatnet_rmlp_0_rw": Variant(RMLP0, params=27_446_074, macs=4_684_945_664),
    "coatnet_rmlp_1_rw": Variant(RMLP1, params=41_691_982, macs=7_807_099_392),
    "coatnet_rmlp_1_rw2": Variant(RMLP1_2, params=41_724_622, macs=8_066_538_752),
    "coatnet_rmlp_2_rw": Variant(RMLP2, params=73_881_264, macs=15_114_828_800),
    "coatnet_rmlp_2_rw_384": Variant(RMLP2_384, params=73_881_264, macs=47_488_266_240),
    "coatnet_rmlp_3_rw": Variant(RMLP3, params=165_152_788, macs=33_458_952_704),
}
# fmt: on
ALIASES = {f"{name}_224": name for name in VARIANTS if not name.endswith("_384")}
