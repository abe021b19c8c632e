"""vit_jax, the paper's code: `…/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel`.

Its published files number the parts of a block through, from 0 to 3; its code since flax's linen
counts each kind of part for itself, and renumbers what it loads. Both are read. The published form
is written, which this code, big_vision and timm all understand.
"""

from collections.abc import Callable
from itertools import count, takewhile

from einops import EinopsError, rearrange
from torch import Tensor

from vitrail.core.passport import Preprocessing
from vitrail.models.resnet import ResNetConfig
from vitrail.models.vit import ViTConfig
from vitrail.weights.old_dialect import ANY, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Op, Row, drop, expand, fuse, reshape, same


def turned(theirs: str, ours: str, **sizes: int) -> Op:
    """Their axes in our order, and back."""

    def move(old: str, new: str) -> Callable[[Tensor], Tensor]:
        def moved(x: Tensor) -> Tensor:
            try:
                return rearrange(x, f"{old} -> {new}", **sizes)
            except EinopsError:
                known = "".join(f" with {axis}={size}" for axis, size in sizes.items())
                raise ValueError(f"its axes should be ({old}){known}") from None

        return moved

    return Op(move(theirs, ours), move(ours, theirs))


DENSE = turned("D K", "K D")
KERNEL = turned("p q C D", "D C p q")
# a GroupNorm of flax before 0.3.6 holds (1, 1, 1, C)
SQUEEZED = Op(lambda x: x.squeeze(), lambda x: x)
QKV = ("query", "key", "value")

EMBEDDING = [
    same("{tree}cls", "cls"),
    reshape("{tree}embedding/kernel", "patches.projection.weight", KERNEL),
    same("{tree}embedding/bias", "patches.projection.bias"),
]
POSITIONS = "Transformer/posembed_input/pos_embedding"


def block(at: str, heads: int) -> list[Row]:
    """The rows of one block, whose tensors lie under `at`; attention keeps its heads apart."""
    attention = at + "/MultiHeadDotProductAttention_{attention}/"
    kernels = [attention + name + "/kernel" for name in QKV]
    biases = [attention + name + "/bias" for name in QKV]
    into = turned("D h d", "(h d) D", h=heads)
    back = turned("h d D", "D (h d)", h=heads)
    return [
        same(at + "/LayerNorm_0/{n}", "blocks.{i}.norm1.{n}"),
        fuse(kernels, "blocks.{i}.attention.qkv.weight", into),
        fuse(biases, "blocks.{i}.attention.qkv.bias", turned("h d", "(h d)", h=heads)),
        reshape(attention + "out/kernel", "blocks.{i}.attention.out.weight", back),
        same(attention + "out/bias", "blocks.{i}.attention.out.bias"),
        same(at + "/LayerNorm_{norm}/{n}", "blocks.{i}.norm2.{n}"),
        reshape(at + "/MlpBlock_{mlp}/Dense_{fc}/kernel", "blocks.{i}.mlp.fc{fc}.weight", DENSE),
        same(at + "/MlpBlock_{mlp}/Dense_{fc}/bias", "blocks.{i}.mlp.fc{fc}.bias"),
    ]


STEM = [
    reshape("{tree}conv_root/kernel", "stem.root.conv.weight", KERNEL),
    reshape("{tree}gn_root/{n}", "stem.root.norm.{n}", SQUEEZED),
    reshape("{tree}{unit}/conv{c}/kernel", "stem.{unit}.conv{c}.weight", KERNEL),
    reshape("{tree}{unit}/gn{c}/{n}", "stem.{unit}.norm{c}.{n}", SQUEEZED),
    reshape("{tree}{unit}/conv_proj/kernel", "stem.{unit}.shortcut.0.weight", KERNEL),
    reshape("{tree}{unit}/gn_proj/{n}", "stem.{unit}.shortcut.1.{n}", SQUEEZED),
]
HEAD = [
    same("{tree}Transformer/encoder_norm/{n}", "norm.{n}"),
    reshape("{tree}pre_logits/kernel", "head.hidden.weight", DENSE),
    same("{tree}pre_logits/bias", "head.hidden.bias"),
    reshape("{tree}head/kernel", "head.classes.weight", DENSE),
    same("{tree}head/bias", "head.classes.bias"),
]
STATE = "the optimiser's state is not the model's"
TEXT = "an image tower does not read the text tower beside it"
SCALE = "the temperature and bias of a contrastive loss are not the model's"
DROPPED = [
    drop("opt/state/*", why=STATE),
    drop("opt/[0-9]*", why=STATE),
    drop("chrono/*", why="the clock of the training run is not the model's"),
    *(drop(tree + "txt/*", why=TEXT) for tree in ("", "params/")),
    *(drop(tree + "[tb]", why=SCALE) for tree in ("", "params/")),
]

# Where in a file the parameters may lie; the last two are the image tower of a pair.
TREES = ("", "params/", "opt/target/", "params/img/", "img/")
# What every table above runs over, theirs and ours.
AXES = {"n": (("scale", "weight"), "bias"), "fc": ((0, 1), (1, 2)), "c": (1, 2, 3)}


def rows(config: ViTConfig) -> list[Row]:
    table = [
        *EMBEDDING,
        same("{tree}" + POSITIONS, "positions.table"),
        *STEM,
        *block("{tree}Transformer/encoderblock_{i}", config.heads),
        *HEAD,
        *DROPPED,
    ]
    numbers = {"attention": (1, 0), "norm": (2, 1), "mlp": (3, 0)}
    return expand(table, tree=TREES, i=range(config.depth), unit=units(config), **numbers, **AXES)


def units(config: ViTConfig) -> list[tuple[str, str]]:
    """The blocks of a hybrid's ResNet, theirs and ours."""
    return [
        (f"block{stage + 1}/unit{unit + 1}", f"stages.{stage}.{unit}")
        for stage, number in enumerate(config.stem.blocks if config.stem else ())
        for unit in range(number)
    ]


def clashes(config: ViTConfig) -> str | None:
    """Files that this code would take for something else."""
    if config.slots != config.class_token:
        return "has a position for the class token, and these weights have none"
    if config.stem and config.stem.groups != 32:
        return f"norms in 32 groups, and this stem in {config.stem.groups}"
    return clashing_parts(config)


def clashing_parts(config: ViTConfig) -> str | None:
    if config.activation == "swiglu":
        return "has no gated MLP"
    if config.class_token and config.pool != "cls":
        return f'reads the class token where there is one, and this model pools "{config.pool}"'
    return None


def tree_of(foreign: Foreign) -> str:
    """Where the parameters lie."""
    return next((tree for tree in TREES if f"{tree}embedding/kernel" in foreign.tensors), "")


def claims(foreign: Foreign) -> bool:
    tensors, tree = foreign.tensors, tree_of(foreign)
    if f"{tree}embedding/kernel" not in tensors:
        return False
    elsewhere = (f"{tree}pos_embedding", f"{tree}Transformer/pos_embedding")
    numbered = f"{tree}Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    return f"{tree}{POSITIONS}" in tensors or (
        numbered in tensors and not any(name in tensors for name in elsewhere)
    )


def infer(foreign: Foreign) -> Facts:
    tree = tree_of(foreign)
    facts = infer_encoder(foreign, tree, f"{tree}Transformer/encoderblock_0")
    stem = infer_stem(foreign, tree)
    if stem:
        facts |= {"stem": stem, "channels": foreign.shape(f"{tree}conv_root/kernel", 4)[2]}
    return facts | {
        "depth": foreign.count(f"{tree}Transformer/encoderblock_{{}}/LayerNorm_0/scale"),
        "table": foreign.shape(f"{tree}{POSITIONS}", 3)[1],
        "prefix_positions": int(facts["class_token"]),
    }


def infer_encoder(foreign: Foreign, tree: str, at: str) -> Facts:
    """What the JAX dialects have in common; `at` is the first block, or all of them stacked."""
    tensors = foreign.tensors
    numbered = f"{at}/MultiHeadDotProductAttention_1/query/kernel" in tensors
    attention, mlp = (1, 3) if numbered else (0, 0)
    stacked = 0 if at.endswith("_0") else 1
    query = f"{at}/MultiHeadDotProductAttention_{attention}/query/kernel"
    hidden = f"{at}/MlpBlock_{mlp}/Dense_0/kernel"
    patch_size, _, channels, dim = foreign.shape(f"{tree}embedding/kernel", 4)
    *_, heads, dim_head = foreign.shape(query, 3 + stacked)
    classes = f"{tree}head/kernel"
    return {
        "dim": dim,
        "heads": heads,
        "inner": heads * dim_head,
        "mlp_dim": foreign.shape(hidden, 2 + stacked)[-1],
        "patch_size": patch_size,
        "channels": channels,
        "class_token": f"{tree}cls" in tensors,
        "pool": "cls" if f"{tree}cls" in tensors else "mean",
        "head": "pretrain" if f"{tree}pre_logits/kernel" in tensors else "linear",
        "num_classes": foreign.shape(classes, 2)[1] if classes in tensors else 0,
        "activation": "gelu_tanh",  # flax's default
        "norm_eps": 1e-6,
        "notes": notes(foreign, classes),
    }


def notes(foreign: Foreign, classes: str) -> list[str]:
    if classes in foreign.tensors and not foreign.tensors[classes].any():
        return [
            "the classifier is all zero, as in the paper's ImageNet-21k files: it has no opinion"
        ]
    return []


def infer_stem(foreign: Foreign, tree: str) -> ResNetConfig | None:
    root = f"{tree}conv_root/kernel"
    if root not in foreign.tensors:
        return None

    def number(pattern: str) -> int:
        """How many there are, counted from 1."""
        there = takewhile(lambda n: pattern.format(n) in foreign.tensors, count(1))
        return len(list(there))

    stages = number(tree + "block{}/unit1/conv1/kernel")
    blocks = [number(f"{tree}block{stage + 1}/unit{{}}/conv1/kernel") for stage in range(stages)]
    width = foreign.shape(root, 4)[3]
    return ResNetConfig(blocks=tuple(blocks), width=width, standardize="jax", norm_eps=1e-6)


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """The whole picture squeezed into a square, values from -1 to 1."""
    half = (0.5,) * config.channels
    return Preprocessing(size=config.image_size, interpolation="bilinear", mean=half, std=half)


VIT_JAX = Dialect(
    name="vit_jax",
    about="google-research/vision_transformer, the paper's code and AugReg: ViT and hybrids, .npz",
    claims=claims,
    infer=infer,
    rows=rows,
    preprocessing=preprocessing,
    resize="paper",
    holds={
        "pool": ("cls", "mean"),
        "class_token": ANY,
        "head": ("linear", "pretrain"),
        "stem": ANY,
    },
    square=True,
    clashes=clashes,
    suffix=".npz",
)
