"""big_vision: `params/…/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel`.

Blocks lie one by one or stacked. Positions are those of the patches; files from before 2022 hold
one for the class token too, which its loader finds by the size of the table, as we do. Without a
table they are sines and cosines.
"""

from vitrail.core.passport import Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import vit_jax
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.rows import Facts, refuse, same, stack, within

# The newest name first: it is the one that is written.
POSITIONS = ("pos_embedding", "Transformer/pos_embedding", vit_jax.POSITIONS)
# Its trainer writes params/, its loader takes all of these.
TREES = ("params/", "", "opt/target/", "params/img/", "img/")
POOLED = (
    "it pools by attention (MAPHead), which this family does not: "
    "use a checkpoint that pools its class token (tok) or the mean of its patches (gap)"
)


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    notes = vit_jax.notes(foreign)
    if facts["positions"] == "learned":
        return {"notes": notes}
    notes.append("no position table: sines and cosines, as its code then has")
    return {"positions": "sincos2d", "notes": notes}


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """As its configs evaluate: the centre of an image 8/7 as large, 7/6 from 384 pixels on.

    The image tower of a pair sees the whole image.
    """
    part, whole = (7, 8) if max(config.image_size) < 384 else (6, 7)
    height, width = (side * whole // part for side in config.image_size)
    return prepared(
        config,
        resize=None if vit_jax.tree_of(foreign).endswith("img/") else (height, width),
        interpolation="bilinear",  # the nearest to TensorFlow's "area"
    )


BIG_VISION = Dialect(
    name="big_vision",
    about="google-research/big_vision: ViT, FlexiViT, image towers of LiT, .npz",
    rows=vit_jax.rows(
        *(same(name, "positions.table") for name in POSITIONS),
        *within("Transformer/encoderblock_{i}/", vit_jax.BLOCK),
        *map(stack, within("Transformer/encoderblock/", vit_jax.BLOCK)),
        *(refuse(name, why=POOLED) for name in ("MAPHead_*", "probe*")),
    ),
    values={
        "tree": TREES,
        "n": vit_jax.NORMS,
        # the second numbers are those of files older than flax's linen
        **{"attention": ("0", "1"), "norm": ("1", "2"), "mlp": ("0", "3")},
    },
    constants={"activation": "gelu_tanh", "norm_eps": 1e-6},
    hints=vit_jax.hints,
    sidecar_facts=sidecar_facts,
    preprocessing=preprocessing,
    resize="paper",
    supports={
        "pool": ("cls", "mean"),
        "class_token": ANY,
        "head": ("linear", "pretrain"),
        "positions": ("learned", "sincos2d"),
    },
    square=True,
    why_unsupported=vit_jax.why_not_parts,
    suffix=".npz",
)
