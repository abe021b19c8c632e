"""The structure of a hand-written file: which tensors make one layer, and which part is repeated.

A state dict has the order in which modules were defined. Tensors that differ in one number alone
(`blocks.0.…`, `blocks.1.…`) and have the same shapes are the blocks of a transformer; their names
become templates (`blocks.{i}.…`), those that rows use.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,4})(?![0-9])")
MAX_PERIOD = 4  # entries of a flat list that make one block
MAX_LIST = 1000  # entries of a list

# Names of a weight and its bias, where a parameter is not called weight or bias.
PAIRS = {"gamma": "beta", "g": "b", "scale": "shift", "alpha": "bias", "a_2": "b_2", "a": "b"}


@dataclass(frozen=True)
class Layer:
    """Tensors that belong together: a linear layer, a norm, a token, a table. It has several names
    where each attention head has a layer of its own; `shape` is that of all weights together.
    `raw`: a parameter by itself, not the weight of a torch layer. `place` is its place in the
    file."""

    weight: tuple[str, ...]
    bias: tuple[str, ...]
    shape: Shape
    place: int
    raw: bool

    @property
    def path(self) -> str:
        """Its name without weight or bias."""
        name = self.weight[0]
        return name if self.raw else name.removesuffix("weight").rstrip("._")

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Structure:
    """The layers of one block as templates, the layers outside, and where the blocks begin."""

    depth: int
    block: tuple[Layer, ...]
    others: tuple[Layer, ...]
    first: int

    def is_before(self, layer: Layer) -> bool:
        """Whether a layer was defined before the blocks."""
        return layer.place < self.first


@dataclass(frozen=True)
class Run:
    """Entries of one list that repeat: `count` times `period` of them, from number `start`."""

    prefix: str
    start: int
    period: int
    count: int
    size: int  # values in it

    def template(self, name: str) -> tuple[str, int] | None:
        """The name with a placeholder for the block, and the number of the block."""
        if not name.startswith(self.prefix):
            return None
        found = NUMBER.match(name, len(self.prefix))
        if found is None:
            return None
        block, place = divmod(int(found[0]) - self.start, self.period)
        if not 0 <= block < self.count:
            return None
        factor = f"{self.period}*" if self.period > 1 else ""
        offset = f"+{self.start + place}" if self.start + place else ""
        return f"{self.prefix}{{{factor}i{offset}}}{name[found.end() :]}", block


def structures(shapes: Shapes) -> Iterator[Structure]:
    """Every way to see blocks in a file, the one that covers most of it first."""
    runs = sorted(
        find_runs(shapes), key=lambda run: (run.count < 2, -run.size, run.period, len(run.prefix))
    )
    for run in runs:
        yield build_structure(shapes, [run])
    for count in sorted({run.count for run in runs if run.count > 1}):
        together = outermost(run for run in runs if run.count == count and run.period == 1)
        if len(together) > 1:  # a list for each kind of layer
            yield build_structure(shapes, together)


def outermost(runs: Iterable[Run]) -> list[Run]:
    """Those that are in no other."""
    kept: list[Run] = []
    for run in sorted(runs, key=lambda run: len(run.prefix)):
        if not any(run.prefix.startswith(other.prefix) for other in kept):
            kept.append(run)
    return kept


def find_runs(shapes: Shapes) -> Iterator[Run]:
    """Every run of equal entries in every list."""
    lists: dict[str, dict[int, list[tuple[str, Shape]]]] = {}
    for name, shape in shapes.items():
        for found in NUMBER.finditer(name):
            entries = lists.setdefault(name[: found.start()], {})
            entries.setdefault(int(found[0]), []).append((name[found.end() :], shape))
    for prefix, entries in lists.items():
        low, high = min(entries), max(entries)
        if high - low > MAX_LIST:
            continue
        contents = [entries.get(number, []) for number in range(low, high + 1)]
        for period in range(1, MAX_PERIOD + 1):
            for start in range(len(contents) - period + 1):
                unit = contents[start : start + period]
                if not unit[0] or not unit[-1]:
                    continue
                count = 1
                while contents[start + count * period : start + (count + 1) * period] == unit:
                    count += 1
                size = count * sum(math.prod(shape) for entry in unit for _, shape in entry)
                yield Run(prefix, low + start, period, count, size)


def build_structure(shapes: Shapes, runs: list[Run]) -> Structure:
    block: dict[str, tuple[Shape, int]] = {}
    others: dict[str, tuple[Shape, int]] = {}
    for place, (name, shape) in enumerate(shapes.items()):
        found = next((found for run in runs if (found := run.template(name))), None)
        if found is None:
            others[name] = shape, place
        elif found[1] == 0:
            block[found[0]] = shape, place
    first = min(place for _, place in block.values())
    return Structure(runs[0].count, merge_heads(layers_of(block)), layers_of(others), first)


def layers_of(named: Mapping[str, tuple[Shape, int]]) -> tuple[Layer, ...]:
    """Tensors in layers: a weight with the bias of the same layer."""
    biases: dict[str, str] = {}  # of a weight
    for name in named:
        bias = bias_name(name)
        if bias is not None and bias in named and len(named[bias][0]) <= 1:
            biases[name] = bias
    taken = set(biases.values())
    return tuple(
        Layer((name,), (biases[name],) if name in biases else (), shape, place, is_raw(name))
        for name, (shape, place) in named.items()
        if name not in taken
    )


def is_raw(name: str) -> bool:
    return not name.endswith("weight")


def bias_name(name: str) -> str | None:
    """The name that the bias of a weight would have.

    >>> bias_name("attn.in_proj_weight"), bias_name("attn.W_q"), bias_name("ln.gamma")
    ('attn.in_proj_bias', 'attn.b_q', 'ln.beta')
    """
    parent, dot, leaf = name.rpartition(".")
    if leaf.endswith("weight"):
        return f"{parent}{dot}{leaf.removesuffix('weight')}bias"
    if leaf in PAIRS:
        return f"{parent}{dot}{PAIRS[leaf]}"
    if found := re.fullmatch(r"([wW])(_?\w{1,3})", leaf):
        return f"{parent}{dot}b{found[2]}"
    return None


def merge_heads(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers of one block, where a list with a small layer for each head is one layer."""
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        found = list(NUMBER.finditer(without_placeholders(layer.weight[0])))
        for number in found:
            name = layer.weight[0]
            key = f"{name[: number.start()]}#{name[number.end() :]}"
            groups.setdefault(key, []).append(layer)
    merged: dict[int, Layer] = {}
    gone: set[int] = set()
    for group in groups.values():
        if len(group) > 1 and are_heads(group) and not gone & {one.place for one in group}:
            merged[group[0].place] = merge(group)
            gone |= {one.place for one in group[1:]}
    return tuple(merged.get(one.place, one) for one in layers if one.place not in gone)


def without_placeholders(name: str) -> str:
    """The name with letters of the same length instead of placeholders, so that no number in them
    is found."""
    return re.sub(r"{[^}]*}", lambda found: "x" * len(found[0]), name)


def are_heads(group: list[Layer]) -> bool:
    """Whether layers of one list are those of heads: equal, and narrower than what they read."""
    shape = group[0].shape
    if len(shape) != 2 or any(one.shape != shape or one.raw for one in group):
        return False
    return shape[0] < shape[1] and shape[0] * len(group) <= 2 * shape[1]


def merge(group: list[Layer]) -> Layer:
    rows, columns = group[0].shape
    return replace(
        group[0],
        weight=tuple(name for one in group for name in one.weight),
        bias=tuple(name for one in group for name in one.bias),
        shape=(rows * len(group), columns),
    )
