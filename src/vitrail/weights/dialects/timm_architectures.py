"""The architectures of timm that our families compute, by the names in its config.json.

A name that is not here is refused: other architectures have the same tensors and compute something
else (post-norm blocks, rotary positions). What a name specifies beyond the tensors is here too.
"""

import re
from collections.abc import Iterable
from typing import Any

from vitrail.core.errors import UserError
from vitrail.models.catalogue import FAMILIES
from vitrail.weights.dialect import Foreign
from vitrail.weights.dialects.timm_config import section

# Heads by the name of a size; widths do not decide it (vit_little is 320 wide and has 5).
HEADS = {
    "tiny": 3, "wee": 4, "xsmall": 4, "little": 5, "small": 6, "medium": 8, "mediumd": 8,
    "betwixt": 10, "base": 12, "so150m2": 13, "so150m": 14, "large": 16, "so400m": 16, "huge": 16,
    "giant": 16, "giantopt": 16, "gigantic": 16,
}  # fmt: skip
EPS, EPS_CLIP = 1e-6, 1e-5  # of LayerNorm, in most and in those named after CLIP
QUICK, TANH = {"activation": "quick_gelu"}, {"activation": "gelu_tanh"}

# Patterns of vision_transformer.py, vision_transformer_hybrid.py and deit.py, the first that fits
# decides, and what else is true of it.
VIT: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"vit_base_patch16_gap_\d+", {"heads": 16}),
    (r"vit_base_patch\d+_plus_(clip_)?\d+", {"heads": 14}),
    (r"vit_giant_patch14_(reg\d_)?(dinov2|tipsv2)", {"heads": 24}),
    (r"vit_{size}_patch\d+_clip_quickgelu_\d+", QUICK),
    (r"vit_base_patch32_siglip_gap_\d+", TANH | {"heads": 12}),
    (r"vit_large_patch16_siglip_gap_512", TANH | {"heads": 16}),
    (r"vit_(so400m|giantopt)_patch16_siglip_gap_\d+", TANH | {"heads": 16}),
    (r"vit_{size}_patch\d+_((reg\d_)?gap_|siglip_gap_|clip_)?\d+", {}),
    (r"vit_{size}_patch\d+_(reg\d_)?(dinov2|tipsv2)", {}),
    (r"vit_base_patch16_224_miil", {"heads": 12}),
    (r"vit_small_patch16_36x1_\d+", {"heads": 6}),
    (r"vit_intern300m_patch14_\d+", {"heads": 16}),
    (r"vit_{size}_r(26|50)?_s(16|32)(_p8)?_\d+", {}),
    (r"(deit|deit3)_{size}_patch\d+_\d+", {}),
    (r"deit_{size}_distilled_patch\d+_\d+", {}),
    (r"flexivit_{size}", {}),
    (r"eva_large_patch14_\d+", {"heads": 16}),
    (r"test_vit2?", {"heads": 2}),
)
# Arguments of timm's VisionTransformer that tensors or the rest of config.json answer, or that
# decide nothing once a model is trained.
ARGUMENTS = {
    "img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads",
    "mlp_ratio", "qkv_bias", "proj_bias", "init_values", "class_token", "no_embed_class",
    "reg_tokens", "pre_norm", "final_norm", "fc_norm", "global_pool", "act_layer", "pos_embed",
    "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate",
    "drop_path_rate", "weight_init", "fix_init", "dynamic_img_size", "strict_img_size",
}  # fmt: skip


def vit_facts(name: str) -> dict[str, Any] | None:
    """What the name of a ViT specifies beyond its tensors; None where it is no ViT that we compute.

    >>> vit_facts("vit_little_patch16_reg4_gap_256")
    {'activation': 'gelu', 'norm_eps': 1e-06, 'heads': 5}
    """
    size = "(?P<size>" + "|".join(HEADS) + ")"
    for pattern, facts in VIT:
        if match := re.fullmatch(pattern.replace("{size}", size), name.partition(".")[0]):
            heads = HEADS.get(match.groupdict().get("size", ""))
            eps = EPS_CLIP if "_clip_" in name else EPS
            always = {"activation": "gelu", "norm_eps": eps}
            return always | ({"heads": heads} if heads else {}) | facts
    return None


def is_vit(name: str) -> bool:
    return vit_facts(name) is not None


def is_beit(name: str) -> bool:
    return re.fullmatch(r"beit(v2)?_(base|large)_patch16_\d+", name.partition(".")[0]) is not None


def is_row_of(*families: str) -> Any:
    """Whether a name is one of timm's for a variant of these families, or ours for it."""

    def known(name: str) -> bool:
        bare = name.partition(".")[0]
        return any(bare in {**FAMILIES[f].aliases, **FAMILIES[f].variants} for f in families)

    return known


def is_swin(name: str) -> bool:
    """Of S3, whose windows differ from stage to stage, one has the same ones in all."""
    return is_row_of("swin")(name) or name.partition(".")[0] == "swin_s3_small_224"


def refuse_other_layers(foreign: Foreign) -> None:
    """Of families whose layers we compute in one way only: the mean is pooled, activation and norm
    are those of the architecture."""
    config, arguments = foreign.sidecars.get("config.json", {}), section(foreign, "model_args")
    specified = {"global_pool": arguments.get("global_pool", config.get("global_pool"))}
    specified |= {name: arguments.get(name) for name in ("act_layer", "norm_layer")}
    for name, value in specified.items():
        if isinstance(value, str) and value and (name, value) != ("global_pool", "avg"):
            raise UserError(
                f"{foreign.source}: config.json specifies {name}={value!r}, "
                "which Vitrail does not compute"
            )


# Arguments of timm's convolutional networks that tensors answer, or that decide nothing once a
# model is trained.
PLAIN_ARGUMENTS = {
    "img_size", "in_chans", "num_classes", "global_pool", "drop_rate", "drop_path_rate",
    "zero_init_last",
}  # fmt: skip


def refuse_arguments(foreign: Foreign, known: Iterable[str]) -> None:
    """Arguments that no tensor shows and that we do not know may change what a convolutional
    network computes; `known` are those that its tensors answer too."""
    for name, value in section(foreign, "model_args").items():
        if value and name not in {*PLAIN_ARGUMENTS, *known}:
            raise UserError(
                f"{foreign.source}: config.json specifies {name}={value!r}, "
                "which Vitrail does not compute"
            )
