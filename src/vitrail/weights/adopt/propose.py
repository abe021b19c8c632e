"""A proposal: rows and a config for the roles that were found, with what is still open.

What neither names nor shapes decide has several values. They are tried where the module is at hand;
otherwise the first is taken, and reported as assumed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.layout import simplify_sides
from vitrail.weights.adopt.roles import Roles, given_by, read_by
from vitrail.weights.adopt.rows_file import Entry, RowsFile, pair_of
from vitrail.weights.adopt.structure import Layer
from vitrail.weights.adopt.words import ROLES, own_words

PIXELS = ("p q c", "c p q", "q p c", "c q p")
LAYOUTS = ("{} h d", "h {} d", "h d {}", "{} d h", "d h {}", "d {} h")
SEPARATE = ("qkv", "kqv", "qvk", "vkq", "kvq", "vqk")  # which role of theirs is really which
FUSED = tuple(layout.format(order) for order in SEPARATE for layout in LAYOUTS)
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "quick_gelu")
EPS = (1e-5, 1e-6, 1e-12)
TORCH_LAYER = {"self_attn", "linear1", "linear2", "norm1", "norm2"}  # of nn.TransformerEncoderLayer
# Settings that decide rows; every other one is a field of the config.
ROW_SETTINGS = (
    "pixels", "patch_order", "qkv", "split", "merge", "class_token_place", "transposed", "gated",
)  # fmt: skip


@dataclass(frozen=True)
class Proposal:
    """`settings` has a value for everything, `open` the values that could be, most likely first;
    `how` says where a value is from."""

    roles: Roles
    settings: Mapping[str, Any]
    open: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    how: Mapping[str, str] = field(default_factory=dict)

    def choose(self, values: Mapping[str, Any], how: str = "") -> "Proposal":
        """The proposal with these values decided."""
        ways = {**self.how, **dict.fromkeys(values, how)} if how else self.how
        left = {name: those for name, those in self.open.items() if name not in values or not how}
        return replace(self, settings={**self.settings, **values}, open=left, how=ways)

    def rows(self) -> RowsFile:
        config = {name: value for name, value in self.settings.items() if name not in ROW_SETTINGS}
        settings = {**dict.fromkeys(ROW_SETTINGS), **self.settings}
        if settings["patch_order"] == "columns":
            config |= kernel_sides(self.roles)  # which columns_first needs to know the grid
        entries = [*outside_rows(self.roles, settings), *block_rows(self.roles, settings)]
        return RowsFile({k: v for k, v in config.items() if v is not None}, tuple(entries))


def propose(roles: Roles, given: Mapping[str, Any], source: str) -> Proposal:
    """The proposal for a bare file; `given` are config fields from a person or from a module."""
    settings: dict[str, Any] = {}
    choices: dict[str, tuple[Any, ...]] = {}
    patch = roles.outside.get("patch")
    if patch is not None and len(patch.shape) == 2:
        settings |= patch_sides(read_by(patch, roles.dim), given, source)
        choices["pixels"] = PIXELS
    if "qkv" in roles.block and not roles.block["qkv"].path.endswith("in_proj"):
        choices["qkv"] = FUSED  # the order in nn.MultiheadAttention is known
    elif "q" in roles.block and "k" in roles.block and not is_told(roles):
        choices["qkv"] = SEPARATE
    heads = len(roles.block["q"].weight) if "q" in roles.block else 1
    if heads > 1:
        settings["heads"] = heads
        if given.get("heads", heads) != heads:
            raise UserError(
                f"{source}: a block has layers for {heads} heads, but heads is {given['heads']}: "
                "leave it out"
            )
    elif "k" in roles.block:
        choices["split"] = ("h d", "d h")
    if any(one.raw and square(one) for one in roles.block.values()):
        choices["transposed"] = (True, False)
    choices["merge"] = ("h d", "d h")
    post = "norm" not in roles.outside and "norm1" in roles.block
    torch_layer = {word for one in roles.block.values() for word in one.path.split(".")}
    relu = post and torch_layer >= TORCH_LAYER
    choices["norm_placement"] = ("post", "pre") if post else ("pre", "post")
    choices["activation"] = ("relu", *ACTIVATIONS[:2]) if relu else ACTIVATIONS
    if "gate" in roles.block:
        choices |= {"activation": ("swiglu",), "gated": gates(roles, given, source)}
    choices["norm_eps"] = EPS
    has_class = "cls" in roles.outside
    choices["pool"] = ("cls", "all", "mean") if has_class else ("mean",)
    if "norm" in roles.outside:
        pooled = roles.norm_in_head and given.get("pool", choices["pool"][0]) != "cls"
        choices["final_norm"] = ("pooled", "tokens") if pooled else ("tokens", "pooled")
    if has_class and "positions" in roles.outside:
        choices["class_token_place"] = ("first", "last")
    if "positions" not in roles.outside or len(roles.outside["positions"].shape) < 4:
        choices["patch_order"] = ("rows", "columns")
    if "positions" not in roles.outside:
        choices["positions"] = ("none", "sincos2d", "sincos1d")
    how = dict.fromkeys(settings, "file")
    for name, values in choices.items():
        if name in given:
            continue
        settings[name] = values[0]
        how[name] = "assumed"
    if "gate" in roles.block and is_gate(roles.block["gate"]):
        how["gated"] = "file"
    settings |= given
    how |= {name: "file" if how.get(name) == "file" else "given" for name in given}
    left = {name: values for name, values in choices.items() if name not in given}
    return Proposal(roles, settings, left, how)


def gates(roles: Roles, given: Mapping[str, Any], source: str) -> tuple[str, str]:
    """Which of the two layers of a gated MLP silu may be applied to, most likely first."""
    activation = given.get("activation", "swiglu")
    if activation != "swiglu":
        raise UserError(
            f"{source}: its MLP has three matrices and the activation {activation}, but Vitrail's "
            "ViT has a gate with silu alone (SwiGLU)"
        )
    gate, other = sorted(
        (roles.block["gate"], roles.block["fc1"]), key=lambda one: (not is_gate(one), one.place)
    )
    return gate.path, other.path


def is_gate(layer: Layer) -> bool:
    return bool(set(own_words(layer.path)) & ROLES["gate"])


def is_told(roles: Roles) -> bool:
    """Whether the names of three layers say which are queries, keys and values."""
    return all(set(own_words(roles.block[role].path)) & ROLES[role] for role in ("q", "k", "v"))


def square(layer: Layer) -> bool:
    return len(layer.shape) == 2 and layer.shape[0] == layer.shape[1]


def patch_sides(values: int, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Channels and sides of a patch from how many values it has."""
    height, width = pair_of(given.get("patch_size"))
    if height and width and not values % (height * width):
        return {"patch_size": given["patch_size"], "channels": values // (height * width)}
    for channels in (given.get("channels"), 3, 1):
        if isinstance(channels, int) and channels > 0 and not values % channels:
            side = math.isqrt(values // channels)
            if side * side * channels == values:
                return {"patch_size": side, "channels": channels}
    raise UserError(
        f"{source}: its patches have {values} values, which make no square patch of 3 channels or "
        "1: give channels=N, or patch_size=(height, width)"
    )


def kernel_sides(roles: Roles) -> dict[str, Any]:
    """The sides of a patch, where a convolution embeds it."""
    patch = roles.outside.get("patch")
    if patch is None or len(patch.shape) != 4:
        return {}
    return {"patch_size": simplify_sides((patch.shape[2], patch.shape[3]))}


def named(layer: Layer, *, bias: bool) -> str | list[str]:
    names = layer.bias if bias else layer.weight
    return names[0] if len(names) == 1 else list(names)


def pair_rows(layer: Layer, ours: str, op: str | None = None, bias_op: str | None = None,
              *, same_op: bool = False) -> list[Entry]:  # fmt: skip
    """The rows of a weight and its bias: one for both where the same is done to them."""
    both = named(layer, bias=False), named(layer, bias=True) if layer.bias else None
    if layer.bias and (op == bias_op) and (op is None or same_op):
        joined = joint_names(layer)
        if joined is not None:
            return [entry(joined, f"{ours}.{{p}}", op)]
    found = [entry(both[0], f"{ours}.weight", op)]
    if both[1] is not None:
        found.append(entry(both[1], f"{ours}.bias", bias_op))
    return found


def joint_names(layer: Layer) -> str | list[str] | None:
    """Names with {p} for weight and bias, where they differ in nothing else."""
    names = []
    for weight, bias in zip(layer.weight, layer.bias, strict=True):
        if not (weight.endswith("weight") and bias == weight.removesuffix("weight") + "bias"):
            return None
        names.append(weight.removesuffix("weight") + "{p}")
    return names[0] if len(names) == 1 else names


def entry(theirs: str | list[str], ours: str, op: str | None = None) -> Entry:
    return {"theirs": theirs, "ours": ours, **({"op": op} if op else {})}


def filled(ours: str, like: str, value: str, why: str) -> Entry:
    return {"ours": ours, "fill": value, "like": like, "why": why}


def outside_rows(roles: Roles, settings: Mapping[str, Any]) -> list[Entry]:
    """Rows of everything outside the blocks."""
    found: list[Entry] = []
    outside, pixels = roles.outside, settings["pixels"] or PIXELS[0]
    if "patch" in outside:
        patch = outside["patch"]
        op = None
        if len(patch.shape) == 2:
            raw = patch.raw and patch.shape[1] == roles.dim
            op = f"({pixels}) d -> d c p q" if raw else f"d ({pixels}) -> d c p q"
        found += pair_rows(patch, "patches.projection", op)
    if "pixel_norm" in outside:
        op = f"({pixels}) -> (c p q)"
        found += pair_rows(outside["pixel_norm"], "patches.pixel_norm", op, op, same_op=True)
    for role, ours in (("patch_norm", "patches.norm"), ("embed_norm", "embed_norm")):
        if role in outside:
            found += pair_rows(outside[role], ours)
    for role, ours in (
        ("cls", "cls"),
        ("distillation", "distillation"),
        ("registers", "registers"),
    ):
        if role in outside:
            found.append(entry(named(outside[role], bias=False), ours, token_op(outside[role])))
    if "positions" in outside:
        row = entry(named(outside["positions"], bias=False), "positions.table",
                    table_op(outside["positions"], roles.dim))  # fmt: skip
        last = settings["class_token_place"] == "last"
        columns = settings["patch_order"] == "columns"
        found.append(
            row
            | ({"last_first": True} if last else {})
            | ({"columns_first": True} if columns else {})
        )
    if "norm" in outside:
        found += norm_rows(outside["norm"], "norm", "norm.weight")
    for role, ours in (("hidden", "head.hidden"), ("head", "head.classes")):
        if role in outside:
            layer = outside[role]
            raw = layer.raw and layer.shape[1] != roles.dim
            found += pair_rows(layer, ours, "i o -> o i" if raw else None)
    for layer in (*roles.unused, *([outside["mask"]] if "mask" in outside else [])):
        found += [{"theirs": name, "drop": UNUSED} for name in (*layer.weight, *layer.bias)]
    return found


UNUSED = "the forward pass does not use it"


def token_op(layer: Layer) -> str | None:
    axes = {1: "d -> 1 1 d", 2: "n d -> 1 n d"}
    return axes.get(len(layer.shape))


def table_op(layer: Layer, dim: int) -> str | None:
    if len(layer.shape) == 2:
        return "n d -> 1 n d"
    if len(layer.shape) == 4:
        last = layer.shape[-1] == dim
        their = "1 rows columns d" if last else "1 d rows columns"
        return f"{their} -> 1 (rows columns) d"
    return None


def norm_rows(layer: Layer, ours: str, like: str) -> list[Entry]:
    rows = pair_rows(layer, ours)
    if not layer.bias:
        rows.append(filled(f"{ours}.bias", like, "zeros", "their norm has no bias"))
    return rows


def block_rows(roles: Roles, settings: Mapping[str, Any]) -> list[Entry]:
    """Rows of one block, for all of them."""
    block, ours = roles.block, "blocks.{i}."
    fc2 = f"{ours}mlp.fc2.weight"
    found: list[Entry] = []
    for role in ("norm1", "norm2"):
        if role in block:
            found += norm_rows(block[role], ours + role, f"{ours}{role}.weight")
        else:
            why = "their norm has no weights"
            found += [filled(f"{ours}{role}.weight", fc2, "ones", why),
                      filled(f"{ours}{role}.bias", fc2, "zeros", why)]  # fmt: skip
    found += qkv_rows(roles, settings)
    if "gate" in block:
        found += gated_rows(roles, settings, f"{ours}mlp.fc1")
    for role, name in (("out", "attention.out"), ("fc1", "mlp.fc1"), ("fc2", "mlp.fc2")):
        if role == "fc1" and "gate" in roles.block:
            continue
        if role in block:
            merge = settings["merge"] if role == "out" else None
            op = matrix_op(block[role], roles, role, settings, merge or "")
            found += pair_rows(block[role], ours + name, op)
            if not block[role].bias:
                like = f"{ours}{name}.weight"
                found.append(filled(f"{ours}{name}.bias", like, "zeros", "their layer has no bias"))
        else:
            why = "their attention has no last projection"
            found += [filled(f"{ours}{name}.weight", fc2, "eye", why),
                      filled(f"{ours}{name}.bias", fc2, "zeros", why)]  # fmt: skip
    for role in ("scale1", "scale2"):
        if role in block:
            found.append(entry(named(block[role], bias=False), f"{ours}{role}.factor"))
    return found


def is_transposed(layer: Layer, roles: Roles, role: str, settings: Mapping[str, Any]) -> bool:
    """Whether a parameter is used as x @ w, so that torch's layers have it the other way round."""
    if not layer.raw:
        return False
    if square(layer):
        return settings["transposed"] is not False
    rows = roles.dim if role in ("out", "fc2") else given_by(layer, roles.dim)
    return layer.shape[0] != rows


def matrix_op(
    layer: Layer, roles: Roles, role: str, settings: Mapping[str, Any], merge: str
) -> str | None:
    """The op of a layer of a block; `merge` is how the heads lie in what it reads."""
    transposed = is_transposed(layer, roles, role, settings)
    reads, becomes = ("(d h)", "(h d)") if merge == "d h" else ("i", "i")
    ones = " 1" * (len(layer.shape) - 2)
    theirs = f"{reads} o" if transposed else f"o {reads}{ones}"
    op = f"{theirs} -> o {becomes}"
    return None if op == "o i -> o i" else op


def qkv_rows(roles: Roles, settings: Mapping[str, Any]) -> list[Entry]:
    """Queries, keys and values as one of ours."""
    block, target, order = roles.block, "blocks.{i}.attention.qkv", settings["qkv"]
    if "qkv" in block:
        layer = block["qkv"]
        transposed = is_transposed(layer, roles, "qkv", settings)
        plain = order in (None, "qkv h d")
        ones = " 1" * (len(layer.shape) - 2)
        if transposed:
            weight: str | None = f"i ({order or 'qkv h d'}) -> (qkv h d) i"
        elif ones:
            weight = f"({order or 'qkv h d'}) i{ones} -> (qkv h d) i"
        else:
            weight = None if plain else f"({order}) ... -> (qkv h d) ..."
        bias = None if plain else f"({order}) ... -> (qkv h d) ..."
        return pair_rows(layer, target, weight, bias, same_op=True)
    if "kv" in block:
        layers = [block["q"], block["kv"]]
        shares: dict[str, Any] = {"shares": [1, 2]}
    else:
        layers = [block[one] for one in order or "qkv"]
        shares = {}
    return separate_rows(layers, roles, settings, target, shares)


def separate_rows(
    layers: list[Layer],
    roles: Roles,
    settings: Mapping[str, Any],
    target: str,
    shares: dict[str, Any],
) -> list[Entry]:
    """Rows of layers that come one after the other in ours."""
    weight = matrix_op(layers[0], roles, "q", settings, "")
    turned = settings["split"] == "d h"  # how the heads lie in what each of them gives
    bias = "(d h) ... -> (h d) ..." if turned else None
    if turned:
        weight = weight.replace("o", "(d h)", 1).replace("-> o", "-> (h d)") if weight else bias
    joined = [joint_names(one) for one in layers if one.bias]
    if weight == bias and len(joined) == len(layers) and all(joined):
        names = [name for one in joined for name in ([one] if isinstance(one, str) else one or [])]
        return [entry(names, f"{target}.{{p}}", weight) | shares]
    weights = [name for one in layers for name in one.weight]
    biases = [name for one in layers for name in one.bias]
    found = [entry(weights, f"{target}.weight", weight) | shares]
    if all(one.bias for one in layers):
        found.append(entry(biases, f"{target}.bias", bias) | shares)
    elif biases and len(layers) == 3 and not layers[1].bias and len(biases) == 2:
        op = "(d h) -> 1 (h d)" if turned else "e -> 1 e"
        found.append(entry(biases, "blocks.{i}.attention.qv_bias", op))
    return found


def gated_rows(roles: Roles, settings: Mapping[str, Any], target: str) -> list[Entry]:
    """The gate of an MLP and its values as one layer of ours, the gate first."""
    pair = [roles.block["gate"], roles.block["fc1"]]
    if settings["gated"] == pair[1].path:
        pair.reverse()
    found = separate_rows(pair, roles, {**settings, "split": None}, target, {})
    if not all(one.bias for one in pair):
        why = "their layers have no bias"
        found.append(filled(f"{target}.bias", f"{target}.weight", "zeros", why))
    return found
