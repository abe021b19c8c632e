"""big_vision: `params/…/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel`.

Blocks lie one by one or stacked. Positions are those of the patches; files from before 2022 hold
one for the class token too, which its loader tells by the size of the table, as we do. Without a
table they are sines and cosines.
"""

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialects import vit_jax
from vitrail.weights.old_dialect import ANY, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, expand, same, stack

# The newest name first: it is the one that is written.
POSITIONS = ("pos_embedding", "Transformer/pos_embedding", vit_jax.POSITIONS)
# Its trainer writes params/, its loader takes all of these.
TREES = ("params/", "", "opt/target/", "params/img/", "img/")
STACKED = "Transformer/encoderblock"


def rows(config: ViTConfig) -> list[Row]:
    table = [
        *vit_jax.EMBEDDING,
        *(same("{tree}" + name, "positions.table") for name in POSITIONS),
        *vit_jax.block("{tree}" + STACKED + "_{i}", config.heads),
        *(stack(row) for row in vit_jax.block("{tree}" + STACKED, config.heads)),
        *vit_jax.HEAD,
        *vit_jax.DROPPED,
    ]
    # the second numbers are those of files older than flax's linen
    numbers = {"attention": (0, 1), "norm": (1, 2), "mlp": (0, 3)}
    return expand(table, tree=TREES, i=range(config.depth), **numbers, **vit_jax.AXES)


def claims(foreign: Foreign) -> bool:
    """Whatever has these blocks and is not vit_jax's own, which is asked first."""
    tree = vit_jax.tree_of(foreign)
    blocks = (f"{tree}{STACKED}/LayerNorm_0/scale", f"{tree}{STACKED}_0/LayerNorm_0/scale")
    return f"{tree}embedding/kernel" in foreign.tensors and any(
        name in foreign.tensors for name in blocks
    )


def infer(foreign: Foreign) -> Facts:
    tensors, tree = foreign.tensors, vit_jax.tree_of(foreign)
    if any(name.startswith((f"{tree}MAPHead_", f"{tree}probe")) for name in tensors):
        raise UserError(
            f"{foreign.source}: it pools by attention (MAPHead), which this family does not: "
            "use a checkpoint that pools its class token (tok) or the mean of its patches (gap)"
        )
    norm = f"{tree}{STACKED}/LayerNorm_0/scale"
    at = f"{tree}{STACKED}" if norm in tensors else f"{tree}{STACKED}_0"
    facts = vit_jax.infer_encoder(foreign, tree, at)
    facts["depth"] = (
        foreign.shape(norm, 2)[0]
        if norm in tensors
        else foreign.count(f"{tree}{STACKED}_{{}}/LayerNorm_0/scale")
    )
    table = next((name for name in POSITIONS if f"{tree}{name}" in tensors), None)
    if table is None:
        facts["notes"] += ["no position table: sines and cosines, as its code then has"]
        return facts | {"positions": "sincos2d"}
    return facts | {"table": foreign.shape(f"{tree}{table}", 3)[1]}


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """As its configs evaluate: the centre of a picture 8/7 as large, 7/6 from 384 pixels on.

    The image tower of a pair sees the whole picture.
    """
    half = (0.5,) * config.channels
    part, whole = (7, 8) if max(config.image_size) < 384 else (6, 7)
    height, width = (side * whole // part for side in config.image_size)
    return Preprocessing(
        size=config.image_size,
        resize=None if vit_jax.tree_of(foreign).endswith("img/") else (height, width),
        interpolation="bilinear",  # the nearest to TensorFlow's "area"
        mean=half,
        std=half,
    )


BIG_VISION = Dialect(
    name="big_vision",
    about="google-research/big_vision: ViT, FlexiViT, image towers of LiT, .npz",
    claims=claims,
    infer=infer,
    rows=rows,
    preprocessing=preprocessing,
    resize="paper",
    holds={
        "pool": ("cls", "mean"),
        "class_token": ANY,
        "head": ("linear", "pretrain"),
        "positions": ("learned", "sincos2d"),
    },
    square=True,
    clashes=vit_jax.clashing_parts,
    suffix=".npz",
)
