"""Which choices of the reference a traced module makes: tried step by step on its own values.

Each step starts from what the module computed, so one mistake does not hide the next, and two
mistakes are found as one is. Where several choices explain a step, all are followed until a later
step tells them apart (a norm before a branch and a norm on the stream read the same at first).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, get_args

from torch import Tensor, nn

from vitrail.explanation.check.assembly import build_choices, build_weights, split_norms_after
from vitrail.explanation.check.attention_search import as_maps, find_attention
from vitrail.explanation.check.embedding import as_norm, read_embedding
from vitrail.explanation.check.layers import BlockLayers, ViTLayers
from vitrail.explanation.check.reference import (
    Activation,
    AttentionChoices,
    Choices,
    NamedPool,
    Output,
    Pool,
    Weights,
    activate,
    add_positions,
    attention_steps,
    give_output,
    pool_tokens,
)
from vitrail.explanation.check.trace import Event, NormFormula, Trace
from vitrail.explanation.check.values import Rows, apart, arrange, match_rows, same

USUAL_EPS = (1e-6, 1e-5, 1e-12, 1e-8, 1e-3, 0.0)


@dataclass(frozen=True)
class Path:
    """One explanation of all steps so far: the residual stream, and what was chosen."""

    stream: Tensor
    choices: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, Tensor] = field(default_factory=dict)

    def go(self, stream: Tensor, choices: Mapping[str, Any], steps: Mapping[str, Tensor]) -> "Path":
        return Path(stream, {**self.choices, **choices}, {**self.steps, **steps})


@dataclass(frozen=True)
class Diagnosis:
    """`steps`: the module's own values by the names that the reference has; `unknown`: steps that
    no choice explains."""

    layers: ViTLayers
    weights: Weights
    choices: Choices
    steps: Mapping[str, Tensor]
    lines: Mapping[str, int | None]
    unknown: tuple[str, ...]


def diagnose(layers: ViTLayers, traced: Trace, module: nn.Module, images: Tensor) -> Diagnosis:
    return Reader(layers, traced, module, images).read()


class Reader:
    """Reads the steps of a trace one after the other."""

    def __init__(self, layers: ViTLayers, traced: Trace, module: nn.Module, images: Tensor) -> None:
        self.layers, self.traced = layers, traced
        named = (*module.named_parameters(), *module.named_buffers())
        self.embedding = read_embedding(layers, images, dict(named))
        self.steps: dict[str, Tensor] = dict(self.embedding.steps)
        self.lines: dict[str, int | None] = dict(self.embedding.lines)
        self.unknown: list[str] = list(self.embedding.unknown)
        self.batch = len(images)
        self.last_attention = AttentionChoices()
        self.given: dict[str, Tensor] = dict(self.embedding.given)

    def read(self) -> Diagnosis:
        paths = [Path(self.read_tokens())]
        for number, block in enumerate(self.layers.blocks):
            paths = self.read_attention(number, block, paths)
            paths = self.read_mlp(number, block, paths)
        path = self.read_end(paths)
        self.read_residual_lines(path)
        choices = build_choices(self.layers, self.embedding, path.choices)
        weights = build_weights(self.layers, self.embedding, choices, self.given)
        steps = {**self.steps, **path.steps}
        return Diagnosis(
            self.layers, weights, choices, steps, self.lines, tuple(dict.fromkeys(self.unknown))
        )

    def read_tokens(self) -> Tensor:
        """The sequence before the first block."""
        found = self.embedding
        x = self.steps.get("class token", self.steps["projection"])
        table, chosen = found.weights.get("used_positions"), found.choices
        if table is not None and len(table) <= x.shape[1]:
            place = Choices((), class_token=chosen["class_token"])
            x = self.steps["positions"] = add_positions(x, table, place)
        if found.unknown:
            x = self.recover(
                self.layers.blocks[0].norms_before, self.layers.blocks[0].projections[0]
            )
            self.given["embedding"] = x
        return x

    def recover(self, norms: Sequence[Event], layer: Event) -> Tensor:
        """The stream as the module has it, from what reads it next."""
        event = norms[0] if norms else layer
        width = self.layers.dim
        return arrange(event.data[0].reshape(-1, width), self.batch, "images first")

    def norm_options(
        self, x: Tensor, norms: Sequence[Event]
    ) -> Iterator[tuple[Tensor, Tensor, str]]:
        """What a branch may read after norms, the stream after them, and the place of the last."""
        for event in norms[:-1]:
            normed = self.normed(x, event)
            if normed is None:
                return
            x = normed
        if not norms:
            yield x, x, "missing"
            return
        normed = self.normed(x, norms[-1])
        if normed is not None:
            yield normed, x, "branch"
            yield normed, normed, "stream"

    def normed(self, x: Tensor, event: Event) -> Tensor | None:
        """What a norm made of x, if it read that."""
        output = event.output.reshape(-1, x.shape[-1])
        if event.operation == "by_hand":
            rows = match_formula(event, x)
        else:
            rows = match_rows(event.data[0].reshape(-1, event.data[0].shape[-1]), x)
        return None if rows is None else arrange(output, self.batch, rows)

    def enter(
        self, paths: Iterable[Path], norms: Sequence[Event], layer: Event, names: tuple[str, str]
    ) -> tuple[list[Path], Tensor, Rows]:
        """The paths on which a layer reads the stream through these norms."""
        step, key = names
        kept: list[Path] = []
        found: tuple[Tensor, Rows] | None = None
        for path in paths:
            for branch, stream, place in self.norm_options(path.stream, norms):
                rows = match_rows(layer.data[0], branch)
                if rows is not None:
                    found = found or (branch, rows)
                    steps = {step: branch} if place != "missing" else {}
                    kept.append(path.go(stream, {key: place}, steps))
        if kept and found is not None:
            if norms:
                self.lines[step] = norms[-1].line
            return kept, *found
        self.unknown.append(step)
        first = next(iter(paths))
        x = self.recover(norms, layer)
        branch = arrange(layer.data[0], self.batch, "images first")
        return [first.go(x, {key: "branch"}, {step: branch})], branch, "images first"

    def read_attention(self, number: int, block: BlockLayers, paths: list[Path]) -> list[Path]:
        name = f"block {number}"
        names = (f"{name} norm 1", f"{number} norm1")
        paths, _, rows = self.enter(paths, block.norms_before, block.projections[0], names)
        outputs = tuple(arrange(one.output, self.batch, rows) for one in block.projections)
        chosen, out_rows = self.choose_attention(name, block, outputs)
        self.read_attention_values(name, block, outputs, chosen)
        if block.out is not None:
            merged = arrange(block.out.data[0], self.batch, out_rows or rows)
            self.set_step(f"{name} merged heads", merged, block.out)
            self.lines[f"{name} merged heads"] = block.out.made_line
            self.locate_unknown(name, attention_steps(outputs, self.layers.heads, chosen))
            out = arrange(block.out.output, self.batch, out_rows or rows)
        else:
            out = attention_steps(outputs, self.layers.heads, chosen)["merged heads"]
        out = out if block.out_scale is None else out * block.out_scale.weight.flatten()
        self.set_step(f"{name} output projection", out, block.out or block.attention[-1])
        choices = {f"{number} attention": chosen}
        return self.add_branch(paths, out, (f"{name} residual 1", f"{number} residual1"), choices)

    def add_branch(
        self, paths: Iterable[Path], out: Tensor, names: tuple[str, str], choices: Mapping[str, Any]
    ) -> list[Path]:
        """A branch is added to the stream, or takes its place."""
        step, key = names
        return [
            path.go(stream, {**choices, key: added}, {step: stream})
            for added in (True, False)
            for path in paths
            for stream in [path.stream + out if added else out]
        ]

    def choose_attention(
        self, name: str, block: BlockLayers, outputs: tuple[Tensor, ...]
    ) -> tuple[AttentionChoices, Rows | None]:
        if block.out is None:
            return AttentionChoices(), None
        found = find_attention(block, outputs, self.layers.heads, self.last_attention)
        if found is None:
            self.unknown.append(f"{name} attention")
            self.lines[f"{name} attention"] = block.attention[0].line
            return self.last_attention, None
        self.last_attention = found[0]
        return found

    def read_attention_values(
        self, name: str, block: BlockLayers, outputs: tuple[Tensor, ...], chosen: AttentionChoices
    ) -> None:
        """q, k and v as the module splits them; scores and softmax where they can be seen."""
        ours = attention_steps(outputs, self.layers.heads, chosen)
        for part in ("q", "k", "v"):
            self.steps[f"{name} {part}"] = ours[part]
            place = min(chosen.roles["qkv".index(part)], len(block.projections) - 1)
            self.lines[f"{name} {part}"] = block.projections[place].line
        self.lines[f"{name} scores"] = block.attention[0].line
        self.lines[f"{name} weighted sum"] = block.attention[-1].line
        softmax = [event for event in block.attention if event.kind == "softmax"]
        seen = softmax if len(softmax) == block.products else []
        self.lines[f"{name} softmax"] = (seen or block.attention)[0].line
        sums = [event for event in block.attention if event.kind in ("product", "fused")]
        each = len(sums) // block.products
        values = {
            "scores": [event.data[0] for event in seen],
            "softmax": [event.output for event in seen],
            "weighted sum": [event.output for event in sums[each - 1 :: each]],
        }
        for step, parts in values.items():
            if parts:
                self.steps[f"{name} {step}"] = as_maps(parts, ours[step])

    def locate_unknown(self, name: str, ours: Mapping[str, Tensor]) -> None:
        """The line of an attention that nothing explains: of the first step that differs."""
        if f"{name} attention" not in self.unknown:
            return
        for step in ("scores", "softmax", "weighted sum", "merged heads"):
            theirs = self.steps.get(f"{name} {step}")
            if theirs is not None and not same(theirs, ours[step]):
                self.lines[f"{name} attention"] = self.lines[f"{name} {step}"]
                return

    def read_mlp(self, number: int, block: BlockLayers, paths: list[Path]) -> list[Path]:
        name = f"block {number}"
        names = (f"{name} norm 2", f"{number} norm2")
        paths, _, rows = self.enter(paths, block.norms_between, block.hidden, names)
        hidden = arrange(block.hidden.output, self.batch, rows)
        active = arrange(block.mlp_out.data[0], self.batch, rows)
        kinds: tuple[Activation, ...] = get_args(Activation)
        kind = next((one for one in kinds if same(active, activate(hidden, one))), None)
        if kind is None:
            self.unknown.append(f"{name} activation")
        self.set_step(f"{name} MLP hidden", hidden, block.hidden)
        self.set_step(f"{name} activation", active, block.mlp_out)
        out = arrange(block.mlp_out.output, self.batch, rows)
        out = out if block.mlp_scale is None else out * block.mlp_scale.weight.flatten()
        self.set_step(f"{name} MLP output", out, block.mlp_out)
        choices = {f"{number} activation": kind or "gelu"}
        return self.add_branch(paths, out, (f"{name} residual 2", f"{number} residual2"), choices)

    def read_end(self, paths: list[Path]) -> Path:
        """Final norms, pooling, head and output."""
        head, output = self.layers.head, self.traced.output
        tokens, pooled = split_norms_after(self.layers)
        found = next(self.end_options(paths, tokens, pooled), None)
        if found is None:
            self.unknown.append("pooling")
            found = paths[0].go(paths[0].stream, {"pool": "first"}, {})
        logits = self.steps["head"] = found.steps.get("head", head[-1].output)
        self.lines["head"] = self.lines["output"] = head[-1].line
        self.lines["pooling"] = head[0].line
        self.lines["final norm"] = (
            self.layers.norms_after[-1].line if self.layers.norms_after else head[0].line
        )
        kinds: tuple[Output, ...] = get_args(Output)
        kind = next((one for one in kinds if same(output, give_output(logits, one))), None)
        if kind is None:
            self.unknown.append("output")
        self.steps["output"] = output
        return found.go(found.stream, {"output": kind or "logits"}, {})

    def end_options(
        self, paths: Iterable[Path], tokens: Sequence[Event], pooled: Sequence[Event]
    ) -> Iterator[Path]:
        pools: list[Pool] = [*get_args(NamedPool), *range(1, self.layers.tokens - 1)]
        place = self.embedding.choices["class_token"]
        for path in paths:
            x: Tensor | None = path.stream
            for event in tokens:
                x = None if x is None else self.normed(x, event)
            if x is None:
                continue
            for pool in pools:
                y = pool_tokens(x, Choices((), pool=pool, class_token=place))
                steps = {"final norm": x} if tokens else {}
                steps["pooling"] = y
                for event in pooled:
                    if not same(event.data[0].reshape(y.shape), y):
                        break
                    y = steps["final norm"] = event.output.reshape(y.shape)
                else:
                    if same(self.layers.head[0].data[0], y):
                        yield path.go(path.stream, {"pool": pool}, steps)
                    elif (logits := self.pooled_logits(x, pool)) is not None and not pooled:
                        yield path.go(path.stream, {"pool": pool}, {**steps, "head": logits})

    def pooled_logits(self, x: Tensor, pool: Pool) -> Tensor | None:
        """The logits of a head that reads every token, where they are pooled in this way."""
        rows = match_rows(self.layers.head[0].data[0], x)
        if rows is None:
            return None
        every = arrange(self.layers.head[-1].output, self.batch, rows)
        place = self.embedding.choices["class_token"]
        logits = pool_tokens(every, Choices((), pool=pool, class_token=place))
        kinds: tuple[Output, ...] = get_args(Output)
        fits = any(same(self.traced.output, give_output(logits, kind)) for kind in kinds)
        return logits if fits else None

    def read_residual_lines(self, path: Path) -> None:
        """Where the branches are added; of one that is not, where it ends."""
        sums = [one for one in self.traced.events if one.kind == "residual"]
        for number, block in enumerate(self.layers.blocks):
            for step, end in (("residual 1", block.out), ("residual 2", block.mlp_out)):
                name = f"block {number} {step}"
                stream = path.steps.get(name)
                added = (one.line for one in sums if stream is not None and is_sum(one, stream))
                self.lines[name] = next(added, None if end is None else end.line)

    def set_step(self, name: str, value: Tensor, event: Event) -> None:
        self.steps[name], self.lines[name] = value, event.line


def match_formula(event: Event, x: Tensor) -> Rows | None:
    """The formula and eps with which a norm that is written by hand comes nearest to its output;
    the event remembers them."""
    output = event.output.reshape(-1, x.shape[-1])
    formulas: tuple[NormFormula, ...] = get_args(NormFormula)
    found: list[tuple[float, NormFormula, float, Rows]] = []
    for formula, eps in product(formulas, USUAL_EPS):
        ours = replace(as_norm(event), formula=formula, eps=eps)(x)
        rows = match_rows(output, ours)
        if rows is not None:
            found.append((apart(arrange(output, len(x), rows), ours), formula, eps, rows))
    if not found:
        return None
    _, event.formula, event.eps, rows = min(found)
    return rows


def is_sum(event: Event, stream: Tensor) -> bool:
    rows = event.output.reshape(-1, event.output.shape[-1])
    return match_rows(rows, stream) is not None
