"""Roles: which layer of a hand-written ViT does what, by shapes first, then by words and order."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations

from vitrail.weights.adopt.structure import Layer, Shapes, Structure, structures
from vitrail.weights.adopt.words import (
    CLASS,
    HEAD,
    OTHER_TOKENS,
    PATCH,
    POSITIONS,
    REGISTERS,
    own_words,
    score_words,
    words_of,
)

Assigned = dict[str, Layer]
# Which matrices a block may have; an attention of one head may do without its last projection.
SCHEMES = (
    ("qkv", "out", "fc1", "fc2"),
    ("q", "k", "v", "out", "fc1", "fc2"),
    ("q", "kv", "out", "fc1", "fc2"),
    ("qkv", "fc1", "fc2"),
    ("q", "k", "v", "fc1", "fc2"),
    ("qkv", "out", "gate", "fc1", "fc2"),
    ("q", "k", "v", "out", "gate", "fc1", "fc2"),
    ("q", "kv", "out", "gate", "fc1", "fc2"),
)
SHARES = {"qkv": 3, "kv": 2, "q": 1, "k": 1, "v": 1}  # of the width of all heads


@dataclass(frozen=True)
class Roles:
    """Every layer by what it does: those of a block as templates, and what was left over."""

    dim: int
    inner: int  # width of all heads together
    depth: int
    block: Mapping[str, Layer]
    outside: Mapping[str, Layer]
    left: tuple[Layer, ...] = ()
    unused: tuple[Layer, ...] = ()  # tensors that the forward pass does not use, and says so
    norm_in_head: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Layer]:
        return {**self.outside, **self.block}


def find_roles(shapes: Shapes) -> Roles | None:
    """What each layer does, in the first structure that makes sense; None where it is no ViT."""
    partial = None
    for structure in structures(shapes):
        dim = width_of(structure)
        found = block_roles(structure.block, dim) if dim else None
        if found is None:
            continue
        block, inner, left = found
        roles = with_outside(structure, dim, inner, block, left)
        if not roles.left and "patch" in roles.outside:
            return roles
        partial = partial or roles
    return partial


def width_of(structure: Structure) -> int:
    """The width of the model: that of the norms in a block, or else the commonest side."""
    norms = Counter(one.shape[0] for one in structure.block if len(one.shape) == 1 and not one.raw)
    sides = Counter(side for one in structure.block if len(one.shape) == 2 for side in one.shape)
    found = norms or Counter(one.shape[0] for one in structure.block if len(one.shape) == 1)
    return (found or sides).most_common(1)[0][0] if found or sides else 0


def block_roles(
    layers: Sequence[Layer], dim: int
) -> tuple[Assigned, int, tuple[Layer, ...]] | None:
    """The roles of the layers of one block, the width of its heads, and the layers without one."""
    matrices = [one for one in layers if is_matrix(one)]
    best: tuple[float, Assigned, int] | None = None
    for scheme in SCHEMES:
        if len(scheme) != len(matrices):
            continue
        for order in assignments(matrices, scheme, dim):
            found = dict(zip(scheme, order, strict=True))
            inner = width_of_heads(found, dim)
            if inner is None:
                continue
            score = sum(score_words(one.path, role) for role, one in found.items())
            score += sum(1.0 for a, b in pairwise(order) if a.place < b.place)
            if best is None or score > best[0]:
                best = score, found, inner
    if best is None:
        return None
    vectors = [one for one in layers if not is_matrix(one)]
    norms, left = vector_roles(vectors, dim)
    return {**norms, **best[1]}, best[2], left


def assignments(
    matrices: list[Layer], scheme: tuple[str, ...], dim: int
) -> Iterator[tuple[Layer, ...]]:
    """Orders in which every matrix reads or gives the width of the model."""
    for order in permutations(matrices):
        pairs = zip(scheme, order, strict=True)
        if all(dim == (sides(one)[0] if role in ("out", "fc2") else sides(one)[1])
               or (one.raw and dim in one.shape) for role, one in pairs):  # fmt: skip
            yield order


def is_matrix(layer: Layer) -> bool:
    """Two sides, or those of a convolution that reads one place alone."""
    return len(layer.shape) >= 2 and all(side == 1 for side in layer.shape[2:])


def sides(layer: Layer) -> tuple[int, int]:
    return layer.shape[0], layer.shape[1]


def given_by(layer: Layer, dim: int) -> int:
    """How many values a layer that reads `dim` gives."""
    rows, columns = sides(layer)
    return columns if layer.raw and rows == dim else rows


def read_by(layer: Layer, dim: int) -> int:
    """How many values a layer that gives `dim` reads."""
    rows, columns = sides(layer)
    return rows if layer.raw and columns == dim else columns


def width_of_heads(found: Assigned, dim: int) -> int | None:
    """The width of all heads together, where the shapes of the layers agree on it."""
    widths = set()
    for role, share in SHARES.items():
        if role in found:
            given = given_by(found[role], dim)
            if given % share:
                return None
            widths.add(given // share)
    widths.add(read_by(found["out"], dim) if "out" in found else dim)
    hidden = [given_by(found[role], dim) for role in ("gate", "fc1") if role in found]
    if set(hidden) != {read_by(found["fc2"], dim)}:
        return None
    return widths.pop() if len(widths) == 1 else None


def vector_roles(vectors: list[Layer], dim: int) -> tuple[Assigned, tuple[Layer, ...]]:
    """The two norms of a block, its two layer scales, and what is neither."""
    flat = [one for one in vectors if one.shape == (dim,)]
    scales = [one for one in flat if is_scale(one)]
    norms = [one for one in flat if one not in scales]
    found: Assigned = {}
    if len(norms) == 2:
        first, second = norms
        straight = score_words(first.path, "norm1") + score_words(second.path, "norm2")
        crossed = score_words(first.path, "norm2") + score_words(second.path, "norm1")
        found |= dict(zip(("norm1", "norm2"), norms if straight >= crossed else norms[::-1],
                          strict=True))  # fmt: skip
    if len(scales) == 2:
        found |= dict(zip(("scale1", "scale2"), scales, strict=True))
    return found, tuple(one for one in vectors if one not in found.values())


def is_scale(layer: Layer) -> bool:
    """A vector without a bias that is no torch layer: LayerScale."""
    words = set(words_of(layer.path))
    return layer.raw and not layer.bias and not words & {"norm", "ln", "layernorm"}


def with_outside(
    structure: Structure, dim: int, inner: int, block: Assigned, left: tuple[Layer, ...]
) -> Roles:
    """The roles of the layers outside the blocks."""
    rest = list(structure.others)
    outside: Assigned = {}

    def assign(role: str, layer: Layer | None) -> None:
        if layer is not None and role not in outside:
            outside[role] = layer
            rest.remove(layer)

    templates = template_layers(structure, rest)
    rest = [one for one in rest if one not in templates]
    assign("positions", best(rest, POSITIONS, lambda one: is_table(one, dim, structure)))
    for one in [one for one in rest if is_token(one, dim)]:
        assign(token_role(one), one)
    registers = [one for one in rest if set(words_of(one.path)) & REGISTERS]
    assign("registers", next((one for one in registers if one.shape[-1] == dim), None))
    assign("patch", best(rest, PATCH, lambda one: is_patch(one, dim, structure)))
    for one in [one for one in rest if len(one.shape) == 1]:
        role = norm_role(one, dim, outside, structure)
        if role == "embed_norm" and role in outside:
            role = "norm"  # defined before the blocks, used after them
        if role:
            assign(role, one)
    if "pixel_norm" in outside and "embed_norm" in outside and "patch_norm" not in outside:
        outside["patch_norm"] = outside.pop("embed_norm")
    head_roles(rest, dim, assign)
    return Roles(
        dim, inner, structure.depth, block, outside, (*left, *rest), tuple(templates),
        norm_in_head=is_norm_in_head(outside),
    )  # fmt: skip


def template_layers(structure: Structure, rest: list[Layer]) -> list[Layer]:
    """A block that was registered beside the blocks, as the layer that nn.TransformerEncoder
    copies: its names end like those of a block."""
    wanted = {(tail(one.weight[0]), one.shape) for one in structure.block}
    prefixes = {one.weight[0].split(".")[0] for one in rest}
    for prefix in prefixes:
        under = [one for one in rest if one.weight[0].startswith(f"{prefix}.")]
        found = {(one.weight[0].removeprefix(f"{prefix}."), one.shape) for one in under}
        if found and found == wanted:
            return under
    return []


def tail(template: str) -> str:
    """What follows the block's number in a name."""
    return template.partition("}")[2].removeprefix(".")


def best(layers: list[Layer], words: set[str], fits: Callable[[Layer], bool]) -> Layer | None:
    """The fitting layer that has such a word in its name, or else the first."""
    fitting = [one for one in layers if fits(one)]
    named = [one for one in fitting if set(words_of(one.path)) & words]
    return next(iter(named or fitting), None)


def is_table(layer: Layer, dim: int, structure: Structure) -> bool:
    """A row of width `dim` for each of several places."""
    named = bool(set(words_of(layer.path)) & POSITIONS)
    if layer.bias or layer.size <= dim or layer.size % dim:
        return False
    if layer.shape[-1] == dim and (layer.shape[:-2] == (1,) or len(layer.shape) in (2, 4)):
        plain = layer.raw or named or (structure.is_before(layer) and len(layer.shape) == 2)
        return plain and not set(words_of(layer.path)) & REGISTERS
    return named and len(layer.shape) == 4 and layer.shape[1] == dim


def is_token(layer: Layer, dim: int) -> bool:
    """One row of width `dim`, by itself."""
    if layer.bias or layer.size != dim or layer.shape[-1] != dim:
        return False
    return layer.raw or len(layer.shape) > 1 or bool(set(own_words(layer.path)) & CLASS)


def token_role(layer: Layer) -> str:
    words = set(words_of(layer.path))
    return next((role for word, role in OTHER_TOKENS.items() if word in words), "cls")


def is_patch(layer: Layer, dim: int, structure: Structure) -> bool:
    """A convolution to `dim` channels, or a linear layer from the values of a patch."""
    if len(layer.shape) == 4:
        return layer.shape[0] == dim
    if len(layer.shape) != 2 or dim not in layer.shape:
        return False
    gives = layer.shape[0] == dim or (layer.raw and layer.shape[1] == dim)
    return gives and (structure.is_before(layer) or layer.shape[1] != dim)


def norm_role(layer: Layer, dim: int, found: Assigned, structure: Structure) -> str | None:
    patch = found.get("patch")
    reads = read_by(patch, dim) if patch is not None and len(patch.shape) == 2 else None
    if patch is not None and layer.shape[0] == reads:
        before = structure.is_before(layer) and layer.place < patch.place
        if reads != dim or before:
            return "pixel_norm"
    if layer.shape[0] != dim or (layer.raw and not layer.bias):
        return None
    if structure.is_before(layer):
        return "embed_norm" if not set(words_of(layer.path)) & HEAD else "norm"
    return "norm"


def head_roles(rest: list[Layer], dim: int, assign: Callable[[str, Layer | None], None]) -> None:
    """The classifier, and the hidden layer before it if there is one."""
    linear = [one for one in rest if len(one.shape) == 2 and dim in one.shape]
    linear = [one for one in linear if one.shape[1] == dim or one.raw]
    if len(linear) == 2 and linear[0].shape == (dim, dim):
        assign("hidden", linear[0])
        assign("head", linear[1])
    elif linear:
        assign("head", best(linear, HEAD, lambda _: True))


def is_norm_in_head(found: Assigned) -> bool:
    """Whether the last norm stands in one list with the classifier, and so after pooling."""
    if "norm" not in found or "head" not in found:
        return False
    (norm, _, first), (head, _, second) = (
        found[role].path.rpartition(".") for role in ("norm", "head")
    )
    return norm == head and bool(norm) and first.isdecimal() and second.isdecimal()
