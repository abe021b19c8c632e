"""timm's CoAtNets, which share their names with MaxViT: `stages.0.blocks.0.conv1_1x1`."""

from dataclasses import fields, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import INCEPTION, Preprocessing
from vitrail.models.catalogue import FAMILIES, find
from vitrail.models.coatnet import EXPANSION, CoAtNetConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import timm_config
from vitrail.weights.dialects.timm_architectures import is_row_of
from vitrail.weights.families.family import Request
from vitrail.weights.rows import Facts, Op, Row, beside, drop, plain_op, reshape, same, supply

COUNTED = "counts the batches of training, and nothing is computed from it"
INDEX = "follows from the size of the grid"
THEIRS, OURS = "stages.{s}.blocks.{b}.", "stages.{s}.{b}."
TABLE, COMPUTED = "attn.rel_pos.relative_position_bias_table", "attn.rel_pos.mlp.fc2.weight"

# A 1x1 convolution is a linear layer.
FLAT = plain_op(lambda kernel: kernel.flatten(1), lambda weight: weight[:, :, None, None])


# timm has q, k and v of a head beside each other, we all heads' q, then k, then v.
def by_part(x: Tensor, dim_head: int) -> Tensor:
    return rearrange(x, "(h three d) ... -> (three h d) ...", three=3, d=dim_head)


def by_head(x: Tensor, config: CoAtNetConfig) -> Tensor:
    return rearrange(x, "(three h d) ... -> (h three d) ...", three=3, d=config.dim_head)


QKV_BIAS = Op(lambda x, hints: by_part(x, hints.get("dim_head", 1)), by_head)
QKV = Op(
    lambda x, hints: QKV_BIAS.read(x.flatten(1), hints),
    lambda x, config: by_head(x, config)[:, :, None, None],
)


def batch_norm(theirs: str, ours: str) -> tuple[Row, ...]:
    """In a block with attention norms of the same name are LayerNorms, which measure nothing."""
    counter = f"{theirs}.num_batches_tracked"
    return (
        beside(f"{theirs}.running_mean", same(f"{theirs}.{{n}}", f"{ours}.{{n}}")),
        supply(counter, lambda _: torch.tensor(0), why=COUNTED, like=f"{ours}.running_mean"),
    )


CONV = (
    *batch_norm("stem.norm1", "stem.norm"),
    *batch_norm(f"{THEIRS}pre_norm", f"{OURS}branch.norm"),
    *batch_norm(f"{THEIRS}norm1", f"{OURS}branch.norm1"),
    *batch_norm(f"{THEIRS}norm2", f"{OURS}branch.norm2"),
    same("stem.conv{c}.weight", "stem.conv{c}.weight"),
    same(f"{THEIRS}conv1_1x1.weight", f"{OURS}branch.expand.weight"),
    same(f"{THEIRS}conv2_kxk.weight", f"{OURS}branch.depthwise.weight"),
    same(
        f"{THEIRS}se_early.fc{{c}}.{{p}}", f"{OURS}branch.squeeze.fc{{c}}.{{p}}", early_squeeze=True
    ),
    same(f"{THEIRS}se.fc{{c}}.{{p}}", f"{OURS}branch.squeeze.fc{{c}}.{{p}}", early_squeeze=False),
    same(f"{THEIRS}conv3_1x1.{{p}}", f"{OURS}branch.project.{{p}}"),
    same(f"{THEIRS}shortcut.expand.{{p}}", f"{OURS}shortcut.project.{{p}}"),
)
TRANSFORMER = (
    # norm and pool are one thing in timm, where there is a pool
    same("stages.{s}.blocks.0.norm1.norm.{p}", "stages.{s}.0.norm1.{p}"),
    same(f"{THEIRS}norm1.{{p}}", f"{OURS}norm1.{{p}}"),
    reshape(f"{THEIRS}attn.qkv.weight", f"{OURS}attention.qkv.weight", QKV),
    reshape(f"{THEIRS}attn.qkv.bias", f"{OURS}attention.qkv.bias", QKV_BIAS),
    same(f"{THEIRS}{TABLE}", f"{OURS}attention.bias.table"),
    same(f"{THEIRS}attn.rel_pos.mlp.fc{{c}}.{{p}}", f"{OURS}attention.bias.fc{{c}}.{{p}}"),
    reshape(f"{THEIRS}attn.proj.weight", f"{OURS}attention.out.weight", FLAT),
    same(f"{THEIRS}attn.proj.bias", f"{OURS}attention.out.bias"),
    same(f"{THEIRS}ls{{c}}.gamma", f"{OURS}scale{{c}}.factor"),
    same(f"{THEIRS}norm2.{{p}}", f"{OURS}norm2.{{p}}"),
    reshape(f"{THEIRS}mlp.fc{{c}}.weight", f"{OURS}mlp.fc{{c}}.weight", FLAT),
    same(f"{THEIRS}mlp.fc{{c}}.bias", f"{OURS}mlp.fc{{c}}.bias"),
)
ROWS = (
    *CONV,
    *TRANSFORMER,
    same("head.norm.{p}", "norm.{p}", final_norm="pooled"),
    same("norm.{p}", "norm.{p}", final_norm="cells"),
    beside("head.fc.weight", same("head.pre_logits.fc.{p}", "head.hidden.{p}")),
    same("head.fc.{p}", "head.classes.{p}"),
    drop("head.pre_logits.*", why="without classes nothing reads it"),
    drop("*.num_batches_tracked", why=COUNTED),
    drop("*.rel_pos.relative_position_index", why=INDEX),
    drop("*.rel_pos.rel_coords_log", why=INDEX),
)
# What no tensor shows: the fields, the arguments of timm for them, and their values there and here.
POOLS = {"mean": "avg2", "max": "max"}
ARGUMENTS: dict[str, tuple[str, dict[Any, Any]]] = {
    "downsampling": ("conv_stride_mode", {"dw": "convolution", "pool": "pool"}),
    "activation": ("conv_act_layer", {"gelu": "gelu", "silu": "silu"}),
    "preactivation": ("conv_pre_norm_act", {True: True, False: False}),
    "squeeze_activation": ("conv_attn_act_layer", {"silu": "silu", "relu": "relu"}),
    "pooling": ("transformer_pool_type", {there: here for here, there in POOLS.items()}),
}


def hints(foreign: Foreign, _: Request) -> Facts:
    """The width of a head, by which queries, keys and values are separated."""
    for name in foreign.tensors:
        block, found, _after = name.partition("attn.qkv.weight")
        if found:
            computed = f"{block}{COMPUTED}" in foreign.tensors
            if computed:
                heads = foreign.shape(f"{block}{COMPUTED}", 2)[0]
            else:
                heads = foreign.shape(f"{block}{TABLE}", 2)[1]
            return {"dim_head": max(next(iter(foreign.shape(name)), 0) // 3 // heads, 1)}
    return {}


def sidecar_facts(foreign: Foreign, _: Facts) -> Facts:
    """What config.json specifies: an architecture of timm, and its arguments."""
    config = foreign.sidecars.get("config.json", {})
    arguments, entry = timm_config.section(foreign, "model_args"), config.get("architecture")
    facts: Facts = {"norm_eps": arguments.get("transformer_norm_eps", 1e-6)}
    if "head.pre_logits.fc.weight" in foreign.tensors:
        facts["head"] = "pretrain"  # even where no classes need it
    size = timm_config.config_arguments(foreign).get("image_size")
    if size is not None:
        facts["image_size"] = tuple(size) if isinstance(size, list) else size
    if isinstance(entry, str) and entry in FAMILIES["coatnet"].aliases:
        facts |= {name: getattr(find(entry), name) for name in ARGUMENTS}
    for name, (theirs, values) in ARGUMENTS.items():
        if theirs in arguments:
            if arguments[theirs] not in list(values):  # a list is no key
                known = ", ".join(map(str, values))
                raise UserError(
                    f"{foreign.source}: {theirs} must be one of {known}, got {arguments[theirs]!r}"
                )
            facts[name] = values[arguments[theirs]]
    return facts


def preprocessing(foreign: Foreign, config: CoAtNetConfig) -> Preprocessing:
    """As pretrained_cfg specifies; otherwise as timm evaluates this kind of model."""
    crop = 0.9 if config.depths == (3, 4, 6, 3) else 0.95
    before = timm_config.evaluated(foreign, config, mean=INCEPTION, std=INCEPTION, crop=crop)
    pretrained = timm_config.section(foreign, "pretrained_cfg")
    if "crop_mode" not in pretrained and max(config.image_size) >= 384:  # squeezed, not cropped
        return replace(before, resize=None)
    return before


def arguments(config: CoAtNetConfig) -> dict[str, Any]:
    """Arguments for all that decides what is computed, whatever the entry point."""
    early = config.widening == "early"
    written: dict[str, Any] = {
        "img_size": list(config.image_size),
        "in_chans": config.channels,
        "global_pool": "avg",
        "stem_width": list(config.stem),
        "embed_dim": list(config.dims),
        "depths": list(config.depths),
        "block_type": list(config.kinds),
        "head_hidden_size": config.features if config.head == "pretrain" else None,
        "conv_expand_output": early,
        "conv_output_bias": config.conv_bias,
        "conv_attn_early": config.early_squeeze,
        "conv_attn_ratio": (EXPANSION if early else 1) / config.squeeze,
        "conv_pool_type": POOLS[config.pooling],
        "transformer_dim_head": config.dim_head,
        "transformer_expand_first": early,
        "transformer_shortcut_bias": config.shortcut_bias,
        "transformer_init_values": config.layer_scale,
        "transformer_norm_eps": config.norm_eps,
        "transformer_rel_pos_type": "bias" if config.bias_hidden is None else "mlp",
        "transformer_rel_pos_dim": config.bias_hidden or 512,
    }
    for name, (theirs, values) in ARGUMENTS.items():
        ours = {here: there for there, here in values.items()}
        written[theirs] = ours[getattr(config, name)]
    return written


def why_unsupported(config: CoAtNetConfig) -> str | None:
    if set(config.steps) != {2}:
        return "halves the sides of the map in every stage"
    if (config.head == "pretrain") != (config.final_norm == "pooled"):
        return "norms after pooling if its head has a hidden layer, and before if not"
    if config.head == "pretrain" and not config.num_classes:
        return "keeps the hidden layer of a head that has no classes, and here is none"
    return None


TIMM_COATNET = Dialect(
    name="timm-coatnet",
    about="pytorch-image-models: CoAtNet, the paper's sizes and its own",
    family="coatnet",
    rows=ROWS,
    values={"n": ("weight", "bias", "running_mean", "running_var")},
    hints=hints,
    accepts=lambda foreign: "stem.conv2.weight" in foreign.tensors,
    sidecar_facts=sidecar_facts,
    preprocessing=preprocessing,
    supports={field.name: ANY for field in fields(CoAtNetConfig)},
    why_unsupported=why_unsupported,
    **timm_config.in_common(lambda _: "coatnet_0_224", arguments, is_row_of("coatnet")),
)
