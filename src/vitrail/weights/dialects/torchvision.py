"""torchvision: `encoder.layers.encoder_layer_0.self_attention.in_proj_weight`."""

import math

from vitrail.core.errors import UserError
from vitrail.core.passport import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    INCEPTION,
    Interpolation,
    Preprocessing,
)
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import Dialect, Facts, Foreign, plain_blocks
from vitrail.weights.rows import Row, expand, same

BLOCK = [
    same("{b}.ln_1.{p}", "{b}.norm1.{p}"),
    same("{b}.self_attention.in_proj_{p}", "{b}.attention.qkv.{p}"),
    same("{b}.self_attention.out_proj.{p}", "{b}.attention.out.{p}"),
    same("{b}.ln_2.{p}", "{b}.norm2.{p}"),
    same("{b}.mlp.0.{p}", "{b}.mlp.fc1.{p}"),
    same("{b}.mlp.3.{p}", "{b}.mlp.fc2.{p}"),
    # until torchvision 0.13
    same("{b}.mlp.linear_1.{p}", "{b}.mlp.fc1.{p}"),
    same("{b}.mlp.linear_2.{p}", "{b}.mlp.fc2.{p}"),
]
AROUND = [
    same("class_token", "cls"),
    same("encoder.pos_embedding", "positions.table"),
    same("conv_proj.{p}", "patches.projection.{p}"),
    same("encoder.ln.{p}", "norm.{p}"),
    same("heads.pre_logits.{p}", "head.hidden.{p}"),
    same("heads.head.{p}", "head.classes.{p}"),
]
FIRST = "encoder.layers.encoder_layer_0"
PARTS = ("weight", "bias")

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


def rows(config: ViTConfig) -> list[Row]:
    blocks = [(f"encoder.layers.encoder_layer_{i}", f"blocks.{i}") for i in range(config.depth)]
    return expand(AROUND + BLOCK, b=blocks, p=PARTS)


def claims(foreign: Foreign) -> bool:
    return all(name in foreign.tensors for name in ("class_token", f"{FIRST}.ln_1.weight"))


def infer(foreign: Foreign) -> Facts:
    tensors, shape = foreign.tensors, foreign.shape
    if any(name.startswith("conv_proj.conv_bn_relu_0.") for name in tensors):
        raise UserError(
            f"{foreign.source}: its patches come from a convolutional stem (conv_stem_configs), "
            "which is not read: only conv_proj as a single convolution is"
        )
    dim, channels, patch_size, _ = shape("conv_proj.weight", 4)
    hidden = "heads.pre_logits.weight" in tensors
    if hidden and shape("heads.pre_logits.weight", 2)[0] != dim:
        raise UserError(
            f"{foreign.source}: its hidden head layer (representation_size) is "
            f"{shape('heads.pre_logits.weight')[0]} wide, but ours is as wide as the model, {dim}"
        )
    table = shape("encoder.pos_embedding", 3)[1]
    side = math.isqrt(table - 1) * patch_size
    fc1 = "mlp.0.weight" if f"{FIRST}.mlp.0.weight" in tensors else "mlp.linear_1.weight"
    facts: Facts = {
        "dim": dim,
        "depth": foreign.count("encoder.layers.encoder_layer_{}.ln_1.weight"),
        "mlp_dim": shape(f"{FIRST}.{fc1}", 2)[0],
        "patch_size": patch_size,
        "channels": channels,
        "image_size": (side, side),
        "table": table,
        "head": "pretrain" if hidden else "linear",
        "num_classes": shape("heads.head.weight", 2)[0] if "heads.head.weight" in tensors else 0,
        "norm_eps": 1e-6,
    }
    if (dim, patch_size, side) in TWINS:
        facts["notes"] = [
            "pictures prepared as for the IMAGENET1K_V1 weights; the file does not tell the SWAG "
            "ones apart, which take the shorter side to 224 by bicubic interpolation"
        ]
    return facts


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """As published for weights of this shape; at another size in the proportion of 256 to 224."""
    side = config.image_size[0]
    usual: tuple[int, Interpolation] = (round(side * 256 / 224), "bilinear")
    cover, how = PREPARED.get((config.dim, config.patch_size, side), usual)
    colour = config.channels == 3
    return Preprocessing(
        size=config.image_size,
        resize=(cover, cover),
        interpolation=how,
        mean=IMAGENET_MEAN if colour else INCEPTION[:1] * config.channels,
        std=IMAGENET_STD if colour else INCEPTION[:1] * config.channels,
    )


TORCHVISION = Dialect(
    name="torchvision",
    about="torchvision.models: vit_b_16 and its sisters",
    claims=claims,
    infer=infer,
    rows=rows,
    preprocessing=preprocessing,
    resize="torchvision",
    holds={"head": ("linear", "pretrain")},
    square=True,
    clashes=plain_blocks,
)
