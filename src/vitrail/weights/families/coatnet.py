"""CoAtNet: its sizes by our names, the grid of its attention, and its bias on another grid."""

from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.catalogue import FAMILIES
from vitrail.models.coatnet import EXPANSION, CoAtNetConfig
from vitrail.weights.families.family import (
    FamilyWeights,
    NamedTensors,
    Request,
    one_size,
    pair,
    resolve_from_variants,
)
from vitrail.weights.offsets import Along, Grid, far_lines, linear, resize_offsets
from vitrail.weights.rows import Facts, Tensors

# No tensor shows what convolutions compute, ...
COMPUTED = ("downsampling", "activation", "preactivation", "squeeze_activation", "pooling")
# ... nor these, but whether there is a LayerScale, and mostly the size of an image.
NOT_IN_TENSORS = (
    *COMPUTED, "image_size", "strides", "final_norm", "early_squeeze", "layer_scale", "norm_eps",
    "dropout", "drop_path",
)  # fmt: skip
METHODS: dict[ResizeMethod, Along] = {"paper": linear, "timm": far_lines}  # the paper: A.1
TABLE = "stages.{}.0.attention.bias.table"


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a CoAtNet show."""
    known = tensors.tensors
    depths = _depths_of(tensors)
    kinds = "".join(_kind_of(tensors, stage, depth) for stage, depth in enumerate(depths))
    if "T" not in kinds:
        raise UserError(f"{tensors.source}: none of its {len(depths)} stages is a transformer's")
    first, channels = tensors.shape("stem.conv1.weight", 4)[:2]
    stem = (first, tensors.shape("stem.conv2.weight", 4)[0])
    last = {"C": ("branch.project.weight", 4), "T": ("mlp.fc2.weight", 2)}
    dims = tuple(
        tensors.shape(f"stages.{i}.0.{last[kind][0]}", last[kind][1])[0]
        for i, kind in enumerate(kinds)
    )
    return {
        "stem": stem,
        "dims": dims,
        "depths": depths,
        "kinds": kinds,
        "channels": channels,
        "num_classes": tensors.classes(),
        "head": "pretrain" if "head.hidden.weight" in known else "linear",
        "widening": _widening(tensors, kinds, (stem[1], *dims)),
        **_convolution(tensors, kinds),
        **_transformer(tensors, kinds),
    }


def _depths_of(tensors: NamedTensors) -> tuple[int, ...]:
    """Blocks of each stage, whether of convolution or of attention."""
    found = [0]
    while True:
        block = f"stages.{len(found) - 1}.{found[-1]}"
        names = (f"{block}.branch.norm2.weight", f"{block}.norm2.weight")
        if any(name in tensors.tensors for name in names):
            found[-1] += 1
        elif found[-1]:
            found.append(0)
        else:
            return tuple(found[:-1])


def _kind_of(tensors: NamedTensors, stage: int, depth: int) -> str:
    known = tensors.tensors
    convolves = {f"stages.{stage}.{block}.branch.expand.weight" in known for block in range(depth)}
    if len(convolves) > 1:
        raise UserError(
            f"{tensors.source}: stage {stage + 1} has blocks of convolution and of attention, "
            "and only stages of one kind are read"
        )
    return "C" if True in convolves else "T"


def _widening(tensors: NamedTensors, kinds: str, widths: tuple[int, ...]) -> str:
    for stage, (kind, before, after) in enumerate(zip(kinds, widths, widths[1:], strict=False)):
        if before != after:
            convolves = kind == "C"
            part, times = ("branch.expand", EXPANSION) if convolves else ("attention.qkv", 3)
            wide = tensors.shape(f"stages.{stage}.0.{part}.weight", 4 if convolves else 2)[0]
            return "early" if wide == times * after else "late"
    return "early"  # nothing widens


def _convolution(tensors: NamedTensors, kinds: str) -> Facts:
    if "C" not in kinds:
        return {}
    branch = f"stages.{kinds.index('C')}.0.branch"
    narrow, hidden = tensors.shape(f"{branch}.squeeze.fc1.weight", 4)[:2]
    return {"squeeze": hidden // narrow, "conv_bias": f"{branch}.project.bias" in tensors.tensors}


def _transformer(tensors: NamedTensors, kinds: str) -> Facts:
    known = tensors.tensors
    stages = [i for i, kind in enumerate(kinds) if kind == "T"]
    block = f"stages.{stages[0]}.0"
    hidden = f"{block}.attention.bias.fc1.weight"
    if hidden in known:
        heads = tensors.shape(f"{block}.attention.bias.fc2.weight", 2)[0]
    else:
        heads = tensors.shape(f"{block}.attention.bias.table", 2)[1]
    projected = [i for i in stages if f"stages.{i}.0.shortcut.project.weight" in known]
    facts: Facts = {
        "dim_head": tensors.shape(f"{block}.attention.qkv.weight", 2)[0] // 3 // heads,
        "bias_hidden": tensors.shape(hidden, 2)[0] if hidden in known else None,
        "shortcut_bias": all(f"stages.{i}.0.shortcut.project.bias" in known for i in projected),
    }
    return facts if f"{block}.scale1.factor" in known else facts | {"layer_scale": None}


def resolve_config(facts: Facts, tensors: NamedTensors, request: Request) -> tuple[Any, list[str]]:
    """The config of a CoAtNet's file as it is, and a sentence for each thing that was looked up."""
    facts, named = dict(facts), request.named
    if facts.get("layer_scale", 0) is not None:
        facts.setdefault("layer_scale", 1e-6)  # where timm's begin
    notes, given = list[str](), facts.get("image_size")
    sizes = sizes_of(tensors, facts["kinds"])
    if sizes and (given is None or pair(given, "image_size") not in sizes.values()):
        square = [size for size in sizes.values() if size[0] == size[1]]
        facts["image_size"] = square[0] if square else one_size(sizes, request)
        if given is not None:  # timm's config keeps the size of the published weights
            height, width = facts["image_size"]
            notes.append(f"image_size {height}x{width} by its relative bias, not {given}")
    if named is None and not any(name in facts for name in COMPUTED):
        computed, found = _find_computed(facts, request.source)
        facts, notes = facts | computed, notes + found
    config, more = resolve_from_variants("coatnet")(facts, tensors, request)
    return config, notes + more


def _find_computed(facts: Facts, where: str) -> tuple[Facts, list[str]]:
    """What convolutions compute, from the published model with all these facts."""
    shapes = facts.keys() - {"num_classes", "channels", "image_size"}
    late = facts["widening"] == "late"
    for name, variant in FAMILIES["coatnet"].variants.items():
        if all(getattr(variant.config, field) == facts[field] for field in shapes):
            note = f"activations and down-sampling as in {name}: the file does not specify them"
            values = {field: getattr(variant.config, field) for field in COMPUTED}
            return values, [note] if late else []
    if late:
        raise UserError(
            f"{where}: neither its tensors nor a config.json beside it specify the activations and "
            "down-sampling of its convolutions, and no published model has its shapes: put the "
            "config.json of timm beside it, with its architecture and model_args"
        )
    return {}, []


def sizes_of(tensors: NamedTensors, kinds: str) -> dict[Grid, Grid]:
    """The images that tables of bias are for, by the grid of the first attention: (2 rows - 1)
    (2 columns - 1) offsets each, where every stage halves the map. Tables of two stages leave
    open only which way an oblong image lies."""
    stages = [i for i in range(len(kinds)) if TABLE.format(i) in tensors.tensors]
    if not stages:
        return {}
    tables = {2 * 2 ** (i + 1): tensors.shape(TABLE.format(i), 2)[0] for i in stages}
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
    return sizes


def resize_state(
    state: Tensors, old: CoAtNetConfig, new: CoAtNetConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """The tables of every stage that has any; biases that are computed need nothing."""
    state, done = dict(state), []
    for stage, (before, after) in enumerate(zip(old.layouts, new.layouts, strict=True)):
        names = [f"stages.{stage}.{i}.attention.bias.table" for i in range(old.depths[stage])]
        tables = [name for name in names if name in state]
        if not tables or before.grid == after.grid:
            continue
        if method not in METHODS:
            known = " or ".join(METHODS)
            raise UserError(f"method must be {known} for a relative bias, got {method!r}")
        for name in tables:
            state[name] = resize_offsets(state[name], before.grid, after.grid, METHODS[method])
        sizes = "{}x{} to {}x{}".format(*before.grid, *after.grid)
        done.append(f"relative bias of stage {stage + 1} resized from {sizes} ({method})")
    return state, done


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_config,
    resize_state=resize_state,
    kernel=lambda _: "stem.conv1.weight",
)
