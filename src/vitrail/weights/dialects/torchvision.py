"""torchvision: `encoder.layers.encoder_layer_0.self_attention.in_proj_weight`."""

import math

from vitrail.core.errors import UserError
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import Dialect, Foreign, plain_blocks
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.rows import Facts, refuse, same, within

ROWS = (
    same("class_token", "cls"),
    same("encoder.pos_embedding", "positions.table"),
    same("conv_proj.{p}", "patches.projection.{p}"),
    *within(
        "encoder.layers.encoder_layer_{i}.",
        (
            same("ln_1.{p}", "blocks.{i}.norm1.{p}"),
            same("self_attention.in_proj_{p}", "blocks.{i}.attention.qkv.{p}"),
            same("self_attention.out_proj.{p}", "blocks.{i}.attention.out.{p}"),
            same("ln_2.{p}", "blocks.{i}.norm2.{p}"),
            same("mlp.0.{p}", "blocks.{i}.mlp.fc1.{p}"),
            same("mlp.3.{p}", "blocks.{i}.mlp.fc2.{p}"),
            # until torchvision 0.13
            same("mlp.linear_{n}.{p}", "blocks.{i}.mlp.fc{n}.{p}"),
        ),
    ),
    same("encoder.ln.{p}", "norm.{p}"),
    same("heads.pre_logits.{p}", "head.hidden.{p}"),
    same("heads.head.{p}", "head.classes.{p}"),
    refuse(
        "conv_proj.conv_bn_relu_*",
        why="its patches come from a convolutional stem (conv_stem_configs), which is not read: "
        "only conv_proj as a single convolution is",
    ),
)

# How torchvision prepares the weights it publishes, by width, patch and side, where that is not
# the bilinear 256 -> 224 of the others: shorter side, interpolation.
PREPARED: dict[tuple[int, int, int], tuple[int, Interpolation]] = {
    (1024, 16, 224): (242, "bilinear"),
    (768, 16, 384): (384, "bicubic"),  # SWAG, fine-tuned whole
    (1024, 16, 512): (512, "bicubic"),
    (1280, 14, 518): (518, "bicubic"),
    (1280, 14, 224): (224, "bicubic"),  # H/14 was published with SWAG weights alone
}
# What has a SWAG twin of the same shapes: trunk frozen, classes learnt at 224.
TWINS = ((768, 16, 224), (1024, 16, 224))


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    dim = facts["dim"]
    if facts["head"] == "pretrain" and foreign.shape("heads.pre_logits.weight", 2)[0] != dim:
        raise UserError(
            f"{foreign.source}: its hidden head layer (representation_size) is "
            f"{foreign.shape('heads.pre_logits.weight')[0]} wide, but ours is as wide as the "
            f"model, {dim}"
        )
    side = math.isqrt(foreign.shape("encoder.pos_embedding", 3)[1] - 1) * facts["patch_size"]
    if (dim, facts["patch_size"], side) not in TWINS:
        return {"image_size": (side, side)}
    return {
        "image_size": (side, side),
        "notes": [
            "images prepared as for the IMAGENET1K_V1 weights; the SWAG weights "
            "have the same tensors, and take the shorter side to 224 by bicubic interpolation"
        ],
    }


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """As published for weights of this shape; at another size in the proportion of 256 to 224."""
    side = config.image_size[0]
    usual: tuple[int, Interpolation] = (round(side * 256 / 224), "bilinear")
    cover, how = PREPARED.get((config.dim, config.patch_sides[0], side), usual)
    return prepared(
        config,
        resize=(cover, cover),
        interpolation=how,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


TORCHVISION = Dialect(
    name="torchvision",
    about="torchvision.models: vit_b_16 and its variants",
    rows=ROWS,
    constants={"norm_eps": 1e-6},
    sidecar_facts=sidecar_facts,
    preprocessing=preprocessing,
    resize="torchvision",
    supports={"head": ("linear", "pretrain")},
    square=True,
    why_unsupported=plain_blocks,
)
