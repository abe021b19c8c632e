"""vit_jax, the paper's code: `…/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel`.

Its published files number the parts of a block through, from 0 to 3; its code since flax's linen
counts each kind of part for itself, and renumbers what it loads. Both are read. The published form
is written, which this code, big_vision and timm all understand.
"""

from vitrail.core.passport import Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.families.family import Request
from vitrail.weights.rows import Facts, Row, axes, drop, fuse, plain_op, reshape, same, within

DENSE = axes("D K", "K D")
KERNEL = axes("p q C D", "D C p q")
# attention keeps its heads apart
INTO, BIAS = axes("D h d", "(h d) D", h="heads"), axes("h d", "(h d)", h="heads")
BACK = axes("h d D", "D (h d)", h="heads")
# a GroupNorm of flax before 0.3.6 holds (1, 1, 1, C)
SQUEEZED = plain_op(lambda x: x.squeeze(), lambda x: x)
QKV = ("query", "key", "value")
POSITIONS = "Transformer/posembed_input/pos_embedding"
ATTENTION = "MultiHeadDotProductAttention_{attention}/"

EMBEDDING = (
    same("cls", "cls"),
    reshape("embedding/kernel", "patches.projection.weight", KERNEL),
    same("embedding/bias", "patches.projection.bias"),
)
BLOCK = (
    same("LayerNorm_0/{n}", "blocks.{i}.norm1.{n}"),
    fuse([f"{ATTENTION}{x}/kernel" for x in QKV], "blocks.{i}.attention.qkv.weight", INTO),
    fuse([f"{ATTENTION}{x}/bias" for x in QKV], "blocks.{i}.attention.qkv.bias", BIAS),
    reshape(f"{ATTENTION}out/kernel", "blocks.{i}.attention.out.weight", BACK),
    same(f"{ATTENTION}out/bias", "blocks.{i}.attention.out.bias"),
    same("LayerNorm_{norm}/{n}", "blocks.{i}.norm2.{n}"),
    reshape("MlpBlock_{mlp}/Dense_{f-1}/kernel", "blocks.{i}.mlp.fc{f}.weight", DENSE),
    same("MlpBlock_{mlp}/Dense_{f-1}/bias", "blocks.{i}.mlp.fc{f}.bias"),
)
UNIT = (
    reshape("conv{c}/kernel", "stem.stages.{s}.{u}.conv{c}.weight", KERNEL),
    reshape("gn{c}/{n}", "stem.stages.{s}.{u}.norm{c}.{n}", SQUEEZED),
    reshape("conv_proj/kernel", "stem.stages.{s}.{u}.shortcut.0.weight", KERNEL),
    reshape("gn_proj/{n}", "stem.stages.{s}.{u}.shortcut.1.{n}", SQUEEZED),
)
STEM = (
    reshape("conv_root/kernel", "stem.root.conv.weight", KERNEL),
    reshape("gn_root/{n}", "stem.root.norm.{n}", SQUEEZED),
    *within("block{s+1}/unit{u+1}/", UNIT),
)
HEAD = (
    same("Transformer/encoder_norm/{n}", "norm.{n}"),
    reshape("pre_logits/kernel", "head.hidden.weight", DENSE),
    same("pre_logits/bias", "head.hidden.bias"),
    reshape("head/kernel", "head.classes.weight", DENSE),
    same("head/bias", "head.classes.bias"),
)
STATE = "the optimiser's state is not the model's"
TEXT = "an image tower does not read the text tower beside it"
SCALE = "the temperature and bias of a contrastive loss are not the model's"
DROPPED = (
    drop("opt/state/*", why=STATE),
    drop("opt/[0-9]*", why=STATE),
    drop("chrono/*", why="the clock of the training run is not the model's"),
    *(drop(tree + "txt/*", why=TEXT) for tree in ("", "params/")),
    *(drop(tree + "[tb]", why=SCALE) for tree in ("", "params/")),
)
# Where in a file the parameters may lie; the last two are the image tower of a pair.
TREES = ("", "params/", "opt/target/", "params/img/", "img/")
NORMS = (("scale", "weight"), "bias")


def rows(*parts: Row) -> tuple[Row, ...]:
    """The rows of a dialect in JAX, wherever its parameters lie."""
    return (*within("{tree}", (*EMBEDDING, *parts, *HEAD)), *DROPPED)


def why_unsupported(config: ViTConfig) -> str | None:
    """Files that this code would take for something else."""
    if config.slots != config.class_token:
        return "has a position for the class token, and these weights have none"
    if config.stem and config.stem.groups != 32:
        return f"norms in 32 groups, and this stem in {config.stem.groups}"
    return why_not_parts(config)


def why_not_parts(config: ViTConfig) -> str | None:
    if config.activation == "swiglu":
        return "has no gated MLP"
    if config.class_token and config.pool != "cls":
        return f'reads the class token where there is one, and this model pools "{config.pool}"'
    return None


def tree_of(foreign: Foreign) -> str:
    """Where the parameters lie."""
    return next((tree for tree in TREES if f"{tree}embedding/kernel" in foreign.tensors), "")


def query_of(foreign: Foreign) -> str | None:
    """The name of a query kernel of the first block, or of all of them stacked."""
    first = "encoderblock_0/MultiHead", "encoderblock/MultiHead"
    found = (n for n in foreign.tensors if any(f in n for f in first) and "query/kernel" in n)
    return next((name for name in found if name.startswith(tree_of(foreign))), None)


def hints(foreign: Foreign, request: Request) -> Facts:
    """Queries of all blocks have as many heads as those of the first."""
    query = query_of(foreign)
    stacked = query is not None and "encoderblock/" in query
    return {} if query is None else {"heads": foreign.shape(query, 3 + stacked)[-2]}


def accepts(foreign: Foreign) -> bool:
    """Not big_vision's, which has positions elsewhere, or none and parts that are numbered so."""
    tensors, tree = foreign.tensors, tree_of(foreign)
    elsewhere = (f"{tree}pos_embedding", f"{tree}Transformer/pos_embedding")
    numbered = f"{tree}Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    return f"{tree}{POSITIONS}" in tensors or (
        numbered in tensors and not any(name in tensors for name in elsewhere)
    )


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    foreign.shape(f"{tree_of(foreign)}{POSITIONS}", 3)
    return {"prefix_positions": int(facts["class_token"]), "notes": notes(foreign)}


def notes(foreign: Foreign) -> list[str]:
    classes = foreign.tensors.get(f"{tree_of(foreign)}head/kernel")
    if classes is not None and not classes.any():
        return [
            "the classifier is all zero, as in the paper's ImageNet-21k files: it has no opinion"
        ]
    return []


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """The whole image squeezed into a square, values from -1 to 1."""
    return prepared(config, interpolation="bilinear")


VIT_JAX = Dialect(
    name="vit_jax",
    about="google-research/vision_transformer, the paper's code and AugReg: ViT and hybrids, .npz",
    rows=rows(
        same(POSITIONS, "positions.table"),
        *STEM,
        *within("Transformer/encoderblock_{i}/", BLOCK),
    ),
    values={
        "tree": TREES,
        "n": NORMS,
        # the second numbers are those of its code since flax's linen
        **{"attention": ("1", "0"), "norm": ("2", "1"), "mlp": ("3", "0")},
    },
    constants={"activation": "gelu_tanh", "norm_eps": 1e-6},  # flax's default
    hints=hints,
    sidecar_facts=sidecar_facts,
    accepts=accepts,
    preprocessing=preprocessing,
    resize="paper",
    supports={
        "pool": ("cls", "mean"),
        "class_token": ANY,
        "head": ("linear", "pretrain"),
        "stem": ANY,
    },
    square=True,
    why_unsupported=why_unsupported,
    suffix=".npz",
)
