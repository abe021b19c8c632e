"""timm's CoAtNets, which share their names with MaxViT: `stages.0.blocks.0.conv1_1x1`."""

from collections.abc import Iterator
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import INCEPTION, Passport, Preprocessing
from vitrail.models.catalogue import FAMILIES, find
from vitrail.models.coatnet import EXPANSION, CoAtNetConfig
from vitrail.weights.dialects import timm
from vitrail.weights.dialects.timm_architectures import is_row_of
from vitrail.weights.old_dialect import ANY, AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Op, Row, drop, expand, reshape, same, supply

COUNTED = "counts the batches of training, and nothing is computed from it"
INDEX = "follows from the size of the grid"
PARTS = ("weight", "bias")
STATISTICS = (*PARTS, "running_mean", "running_var")

# A 1x1 convolution is a linear layer.
flat = Op(lambda kernel: kernel.flatten(1), lambda weight: weight[:, :, None, None])


def by_part(dim_head: int) -> Op:
    """timm has q, k and v of a head beside each other, we all heads' q, then k, then v."""

    def read(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 3, dim_head)).transpose(0, 1).flatten(0, 2)

    def write(x: Tensor) -> Tensor:
        return x.unflatten(0, (3, -1, dim_head)).transpose(0, 1).flatten(0, 2)

    return Op(read, write)


def then(first: Op, second: Op) -> Op:
    return Op(lambda x: second.read(first.read(x)), lambda x: first.write(second.write(x)))


AROUND = [
    same("stem.conv{c}.weight", "stem.conv{c}.weight"),
    same("stem.norm1.{s}", "stem.norm.{s}"),
    same("{norm}.{p}", "norm.{p}"),
    same("head.pre_logits.fc.{p}", "head.hidden.{p}"),
    same("head.fc.{p}", "head.classes.{p}"),
]
CONV = [
    same("{b}.shortcut.expand.{p}", "{o}.shortcut.project.{p}"),
    same("{b}.pre_norm.{s}", "{o}.branch.norm.{s}"),
    same("{b}.conv1_1x1.weight", "{o}.branch.expand.weight"),
    same("{b}.norm1.{s}", "{o}.branch.norm1.{s}"),
    same("{b}.conv2_kxk.weight", "{o}.branch.depthwise.weight"),
    same("{b}.norm2.{s}", "{o}.branch.norm2.{s}"),
    same("{b}.{se}.fc{c}.{p}", "{o}.branch.squeeze.fc{c}.{p}"),
    same("{b}.conv3_1x1.{p}", "{o}.branch.project.{p}"),
]
TRANSFORMER = [
    same("{b}.shortcut.expand.{p}", "{o}.shortcut.project.{p}"),
    same("{b}.{norm1}.{p}", "{o}.norm1.{p}"),
    same("{b}.attn.rel_pos.relative_position_bias_table", "{o}.attention.bias.table"),
    same("{b}.attn.rel_pos.mlp.fc{c}.{p}", "{o}.attention.bias.fc{c}.{p}"),
    reshape("{b}.attn.proj.weight", "{o}.attention.out.weight", flat),
    same("{b}.attn.proj.bias", "{o}.attention.out.bias"),
    same("{b}.ls{c}.gamma", "{o}.scale{c}.factor"),
    same("{b}.norm2.{p}", "{o}.norm2.{p}"),
    reshape("{b}.mlp.fc{c}.weight", "{o}.mlp.fc{c}.weight", flat),
    same("{b}.mlp.fc{c}.bias", "{o}.mlp.fc{c}.bias"),
]


def rows(config: CoAtNetConfig) -> list[Row]:
    norm = "head.norm" if config.final_norm == "pooled" else "norm"
    found = expand(AROUND, c=(1, 2), p=PARTS, s=STATISTICS, norm=[norm])
    found.append(counter("stem.norm1"))
    for stage, (kind, depth) in enumerate(zip(config.kinds, config.depths, strict=True)):
        for block in range(depth):
            theirs, ours = f"stages.{stage}.blocks.{block}", f"stages.{stage}.{block}"
            axes: dict[str, Any] = {"b": [theirs], "o": [ours], "c": (1, 2), "p": PARTS}
            if kind == "C":
                squeeze = "se_early" if config.early_squeeze else "se"
                found += expand(CONV, **axes, s=STATISTICS, se=[squeeze])
                found += [counter(f"{theirs}.{name}") for name in ("pre_norm", "norm1", "norm2")]
            else:
                # norm and pool are one thing in timm, where there is a pool
                found += expand(TRANSFORMER, **axes, norm1=["norm1" if block else "norm1.norm"])
                found += queries(f"{theirs}.attn.qkv", f"{ours}.attention.qkv", config.dim_head)
    if not config.num_classes:
        found.append(drop("head.pre_logits.*", why="without classes nothing reads it"))
    return [
        *found,
        drop("*.num_batches_tracked", why=COUNTED),
        drop("*.rel_pos.relative_position_index", why=INDEX),
        drop("*.rel_pos.rel_coords_log", why=INDEX),
    ]


def counter(norm: str) -> Row:
    return supply(f"{norm}.num_batches_tracked", lambda: torch.tensor(0), why=COUNTED)


def queries(theirs: str, ours: str, dim_head: int) -> Iterator[Row]:
    by = by_part(dim_head)
    yield reshape(f"{theirs}.weight", f"{ours}.weight", then(flat, by))
    yield reshape(f"{theirs}.bias", f"{ours}.bias", by)


def claims(foreign: Foreign) -> bool:
    first = ("conv1_1x1.weight", "attn.rel_pos.*")
    return "stem.conv2.weight" in foreign.tensors and any(
        fnmatchcase(name, f"stages.0.blocks.0.{part}") for part in first for name in foreign.tensors
    )


def infer(foreign: Foreign) -> Facts:
    tensors, shape = foreign.tensors, foreign.shape
    depths = infer_depths(foreign)
    kinds = "".join(kind_of(foreign, stage, depth) for stage, depth in enumerate(depths))
    if "T" not in kinds:
        raise UserError(f"{foreign.source}: none of its {len(depths)} stages is a transformer's")
    last = {"C": "conv3_1x1.weight", "T": "mlp.fc2.weight"}
    stem = (shape("stem.conv1.weight", 4)[0], shape("stem.conv2.weight", 4)[0])
    dims = tuple(outputs(foreign, f"stages.{i}.blocks.0.{last[k]}") for i, k in enumerate(kinds))
    facts: Facts = {
        "stem": stem,
        "dims": dims,
        "depths": depths,
        "kinds": kinds,
        "channels": shape("stem.conv1.weight", 4)[1],
        "num_classes": shape("head.fc.weight", 2)[0] if "head.fc.weight" in tensors else 0,
        "head": "pretrain" if "head.pre_logits.fc.weight" in tensors else "linear",
        "final_norm": "pooled" if "head.norm.weight" in tensors else "cells",
        "norm_eps": arguments_of(foreign).get("transformer_norm_eps", 1e-6),
        **infer_transformer(foreign, kinds),
        **infer_convolution(foreign, kinds),
    }
    facts["widening"] = infer_widening(foreign, kinds, (stem[1], *dims))
    facts |= infer_size(foreign, kinds)
    return facts | flavour(foreign, facts)


def outputs(foreign: Foreign, name: str) -> int:
    """Of a layer that is a 1x1 convolution, or was written as the linear layer that it is."""
    axes = foreign.tensors[name].ndim if name in foreign.tensors else 4
    return foreign.shape(name, 2 if axes == 2 else 4)[0]


def infer_depths(foreign: Foreign) -> tuple[int, ...]:
    stages = foreign.count("stages.{}.blocks.0.norm2.weight")
    return tuple(foreign.count(f"stages.{i}.blocks.{{}}.norm2.weight") for i in range(stages))


def kind_of(foreign: Foreign, stage: int, depth: int) -> str:
    convolves = {
        f"stages.{stage}.blocks.{block}.conv1_1x1.weight" in foreign.tensors
        for block in range(depth)
    }
    if len(convolves) > 1:
        raise UserError(
            f"{foreign.source}: stage {stage + 1} has blocks of convolution and of attention, "
            "and only stages of one kind are read"
        )
    return "C" if True in convolves else "T"


def infer_convolution(foreign: Foreign, kinds: str) -> Facts:
    if "C" not in kinds:
        return {}
    block = f"stages.{kinds.index('C')}.blocks.0"
    early = f"{block}.se_early.fc1.weight" in foreign.tensors
    narrow, hidden = foreign.shape(f"{block}.{'se_early' if early else 'se'}.fc1.weight", 4)[:2]
    return {
        "squeeze": hidden // narrow,
        "early_squeeze": early,
        "conv_bias": f"{block}.conv3_1x1.bias" in foreign.tensors,
    }


def infer_transformer(foreign: Foreign, kinds: str) -> Facts:
    stages = [i for i, kind in enumerate(kinds) if kind == "T"]
    block, tensors = f"stages.{stages[0]}.blocks.0", foreign.tensors
    hidden = f"{block}.attn.rel_pos.mlp.fc1.weight"
    if hidden in tensors:
        heads = foreign.shape(f"{block}.attn.rel_pos.mlp.fc2.weight", 2)[0]
    else:
        heads = foreign.shape(f"{block}.attn.rel_pos.relative_position_bias_table", 2)[1]
    projected = [i for i in stages if f"stages.{i}.blocks.0.shortcut.expand.weight" in tensors]
    return {
        "dim_head": outputs(foreign, f"{block}.attn.qkv.weight") // 3 // heads,
        "bias_hidden": foreign.shape(hidden, 2)[0] if hidden in tensors else None,
        "layer_scale": 1e-6 if f"{block}.ls1.gamma" in tensors else None,
        "shortcut_bias": all(
            f"stages.{i}.blocks.0.shortcut.expand.bias" in tensors for i in projected
        ),
    }


def infer_widening(foreign: Foreign, kinds: str, widths: tuple[int, ...]) -> str:
    for stage, (kind, before, after) in enumerate(zip(kinds, widths, widths[1:], strict=False)):
        if before != after:
            part, times = ("conv1_1x1", EXPANSION) if kind == "C" else ("attn.qkv", 3)
            wide = outputs(foreign, f"stages.{stage}.blocks.0.{part}.weight")
            return "early" if wide == times * after else "late"
    return "early"  # nothing widens


def infer_size(foreign: Foreign, kinds: str) -> Facts:
    """From config.json, or from the tables of attention's bias: (2 rows - 1)(2 columns - 1) offsets
    each. Tables of two stages leave open only which way an oblong picture lies."""
    size = timm.told(foreign).get("image_size")
    if size is not None:
        return {"image_size": tuple(size) if isinstance(size, list) else size}
    name = "stages.{}.blocks.0.attn.rel_pos.relative_position_bias_table"
    tables = {
        2 * 2 ** (i + 1): foreign.shape(name.format(i), 2)[0]
        for i in range(len(kinds))
        if name.format(i) in foreign.tensors
    }
    if not tables:
        return {}
    first, whole = min(tables), 2 * 2 ** len(kinds)  # pixels for a cell
    sizes = {}
    for rows in range(1, (tables[first] + 1) // 2 + 1):
        columns = (tables[first] // (2 * rows - 1) + 1) // 2
        height, width = rows * first, columns * first
        fits = (
            (2 * height // pixels - 1) * (2 * width // pixels - 1) == offsets
            for pixels, offsets in tables.items()
        )
        if height % whole == width % whole == 0 and all(fits):
            sizes[rows, columns] = (height, width)
    square = [size for size in sizes.values() if size[0] == size[1]]
    return {"image_size": square[0]} if square else {"sizes": sizes}


def arguments_of(foreign: Foreign) -> dict[str, Any]:
    """What timm's config.json says the model was made with."""
    return timm.as_dict(foreign.sidecars.get("config.json", {}).get("model_args"))


# What no tensor tells: the fields, the arguments of timm that do, and their values there and here.
POOLS = {"mean": "avg2", "max": "max"}
ARGUMENTS: dict[str, tuple[str, dict[Any, Any]]] = {
    "downsampling": ("conv_stride_mode", {"dw": "convolution", "pool": "pool"}),
    "activation": ("conv_act_layer", {"gelu": "gelu", "silu": "silu"}),
    "preactivation": ("conv_pre_norm_act", {True: True, False: False}),
    "squeeze_activation": ("conv_attn_act_layer", {"silu": "silu", "relu": "relu"}),
    "pooling": ("transformer_pool_type", {there: here for here, there in POOLS.items()}),
}


def flavour(foreign: Foreign, facts: Facts) -> Facts:
    """The rest from config.json, or from the published model that is all that the file tells."""
    arguments = arguments_of(foreign)
    told: Facts = {}
    entry = foreign.sidecars.get("config.json", {}).get("architecture")
    if isinstance(entry, str) and entry in FAMILIES["coatnet"].aliases:
        told |= {name: getattr(find(entry), name) for name in ARGUMENTS}
    for name, (theirs, values) in ARGUMENTS.items():
        if theirs in arguments:
            if arguments[theirs] not in list(values):  # a list is no key
                known = ", ".join(map(str, values))
                raise UserError(
                    f"{foreign.source}: {theirs} is {arguments[theirs]!r}, but only {known} is read"
                )
            told[name] = values[arguments[theirs]]
    if told:
        return told
    shapes = {field.name for field in fields(CoAtNetConfig)} & facts.keys()
    shapes -= {"num_classes", "channels", "image_size"}
    for name, variant in FAMILIES["coatnet"].variants.items():
        if all(getattr(variant.config, field) == facts[field] for field in shapes):
            note = f"activations and down-sampling as in {name}, because the file does not tell"
            return {field: getattr(variant.config, field) for field in ARGUMENTS} | {
                "notes": [note] if facts["widening"] == "late" else []
            }
    if facts["widening"] == "late":
        raise UserError(
            f"{foreign.source}: neither its tensors nor a config.json beside it tell the "
            "activations and down-sampling of its convolutions, and no published model has its "
            "shapes: put the config.json of timm beside it, with its architecture and model_args"
        )
    return {}


def preprocessing(foreign: Foreign, config: CoAtNetConfig) -> Preprocessing:
    """As pretrained_cfg says; otherwise as timm evaluates this kind of model."""
    crop = 0.9 if config.depths == (3, 4, 6, 3) else 0.95
    before = timm.evaluated(foreign, config, mean=INCEPTION, std=INCEPTION, crop=crop)
    told = timm.as_dict(foreign.sidecars.get("config.json", {}).get("pretrained_cfg"))
    if "crop_mode" not in told and max(config.image_size) >= 384:  # squeezed, not cropped
        return replace(before, resize=None)
    return before


def sidecars(passport: Passport, config: CoAtNetConfig) -> dict[str, dict[str, Any]]:
    """A config.json with which timm builds this very model: one of its entry points, and arguments
    for all that decides what is computed."""
    early = config.widening == "early"
    arguments: dict[str, Any] = {
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
        arguments[theirs] = ours[getattr(config, name)]
    return {"config.json": timm.config_json(passport, config, "coatnet_0_224", arguments)}


def clashes(config: CoAtNetConfig) -> str | None:
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
    claims=claims,
    infer=infer,
    rows=rows,
    preprocessing=preprocessing,
    resize="timm",
    holds={field.name: ANY for field in fields(CoAtNetConfig)},
    clashes=clashes,
    sidecars=sidecars,
    labels=partial(timm.labels, head="head.fc"),
    licence=timm.licence,
    computes=AllowList("timm", is_row_of("coatnet")),
)
