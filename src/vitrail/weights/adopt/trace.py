"""What a model computes on the way, point by point, so that two of them can be compared."""

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.models.vit import ViTConfig
from vitrail.weights.adopt.roles import Roles
from vitrail.weights.adopt.structure import Layer
from vitrail.weights.patterns import THEIRS, Pattern, pairs_of

NEAR = 1e-9  # of the largest value
Trace = dict[str, list[Tensor]]  # by point; several where any of them may be it

# Points of a block in the order of computation, and what they are in words.
BLOCK_POINTS = {
    "input": "its input",
    "attention": "the attention (heads, scale, softmax, or the order of q, k and v)",
    "attention output": "the attention output",
    "sum": "the sum with the attention output, or where its norm stands",
    "activation": "the activation of the MLP, or the norm before it",
    "mlp output": "the MLP output",
}
LAST_POINTS = {
    "tokens": "what the last block gives",
    "head input": "what the head reads (pooling, or the last norm)",
    "logits": "the vector of logits",
}


@dataclass(frozen=True)
class Difference:
    """The first point where two models part; `share` of the largest value there."""

    where: str  # embedding, blocks.N or head
    what: str
    share: float

    def __str__(self) -> str:
        apart = f"{self.share:.1e} of its largest value"
        if math.isinf(self.share):
            apart = "its shape is another"
        return f"{self.where}: {self.what} differs first ({apart})"


def points(depth: int) -> Iterator[tuple[str, str, str]]:
    """The key, the place and the words of every point, in order."""
    for i in range(depth):
        for point, words in BLOCK_POINTS.items():
            first = i == 0 and point == "input"
            where = "embedding" if first else f"blocks.{i}"
            text = "what enters the first block" if first else words
            yield f"blocks.{i} {point}", where, text
    for point, words in LAST_POINTS.items():
        yield point, "head", words


def first_difference(
    ours: Trace, theirs: Trace, depth: int, *, last: bool
) -> tuple[int, Difference | None]:
    """How many points agree before the first that does not, and that one; the points after the
    last block count if `last`."""
    agreeing = 0
    for key, where, words in points(depth):
        if key in LAST_POINTS and not last:
            break
        if not ours.get(key) or not theirs.get(key):
            continue
        shares = [
            distance(mine, other)
            for mine in ours[key]
            for other in theirs[key]
            if key != "tokens" or mine.ndim == other.ndim  # a norm may come before or after pooling
        ]
        if not shares:
            continue
        share = min(shares)
        if not share <= NEAR:
            return agreeing, Difference(where, words, share)
        agreeing += 1
    return agreeing, None


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference as a share of the largest value."""
    if ours.shape != theirs.shape:
        return float("inf")
    apart, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    if apart != apart or largest != largest:
        return float("inf")
    return apart / largest if largest else apart


@contextmanager
def exact() -> Iterator[None]:
    """float64 for what a module makes on the way, and no fused encoder, which calls no layer."""
    dtype, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    torch.set_default_dtype(torch.float64)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.backends.mha.set_fastpath_enabled(fast)


def exact_copy(module: nn.Module) -> nn.Module:
    """A copy in float64 that computes as the module does when it is evaluated."""
    try:
        return copy.deepcopy(module).to("cpu", torch.float64).eval()
    except Exception as error:  # whatever it raises
        first = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{type(module).__name__} cannot be copied ({first}): give its state dict instead"
        ) from None


def trace_theirs(module: nn.Module, roles: Roles, images: Tensor) -> Trace:
    """The points of a hand-written module in float64, by hooks on the layers that have roles."""
    trace: Trace = {}
    batch = len(images)

    def keep(key: str, value: Any, part: nn.Module) -> None:
        value = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(value, Tensor) and value.is_floating_point():
            value = value.detach().clone()  # x += y may overwrite it later
            value = value.mT if isinstance(part, nn.Conv1d) else value
            trace.setdefault(key, []).append(as_tokens(value, batch))

    with watching(their_parts(module, roles), keep):
        output = run_exactly(module, images)
    again = run_exactly(module, images)
    if not torch.allclose(output, again, rtol=NEAR, atol=NEAR, equal_nan=True):
        raise UserError(
            f"{type(module).__name__} gives another result each time: in eval mode nothing may be "
            "random, so use nn.Dropout, or F.dropout with training=self.training"
        )
    if not output.isfinite().all():
        raise UserError(
            f"{type(module).__name__} gives logits that are NaN or infinite, which equal nothing: "
            "take weights of a training run that did not diverge"
        )
    trace["logits"] = [output]
    return trace


def run_exactly(module: nn.Module, images: Tensor) -> Tensor:
    """What somebody's own code computes of images, in float64; it prints to standard error."""
    try:
        with exact(), torch.no_grad(), redirect_stdout(sys.stderr):
            output = output_of(module(images.clone()))  # which it may change in place
    except (Exception, SystemExit) as error:  # whatever it raises
        first = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{type(module).__name__} cannot compute images of {images.shape[2]}x{images.shape[3]} "
            f"with {images.shape[1]} channels ({type(error).__name__}: {first}): give image_size=N"
        ) from None
    if output is None or not output.is_floating_point():
        raise UserError(
            f"{type(module).__name__} must return a tensor of logits: return them from forward"
        )
    return output.detach()


@contextmanager
def watching(
    parts: Iterable[tuple[str, nn.Module, str]], keep: Callable[[str, Any, nn.Module], None]
) -> Iterator[None]:
    """Keep the first argument of layers, before they run, or what they give."""

    def watch(key: str, part: nn.Module, side: str) -> RemovableHandle:
        def before(part: nn.Module, inputs: Any, named: Mapping[str, Any]) -> None:
            keep(key, next(iter((*inputs, *named.values())), None), part)

        def after(part: nn.Module, inputs: Any, output: Any) -> None:
            keep(key, output, part)

        if side == "output":
            return part.register_forward_hook(after)
        return part.register_forward_pre_hook(before, with_kwargs=True)

    hooks = [watch(*one) for one in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def their_parts(module: nn.Module, roles: Roles) -> Iterator[tuple[str, nn.Module, str]]:
    """Which of their modules to watch for which point."""
    for i in range(roles.depth):
        block = f"blocks.{i}"
        for role, point, side in (
            ("norm1", "input", "input"),
            ("qkv", "input", "input"),
            ("q", "input", "input"),
            ("out", "attention", "input"),
            ("out", "attention output", "output"),
            ("norm1", "sum", "input"),
            ("norm2", "sum", "input"),
            ("fc2", "activation", "input"),
            ("fc2", "mlp output", "output"),
        ):
            layer = roles.block.get(role)
            part = None if layer is None else part_of(module, layer, i, side)
            if part is not None:
                yield f"{block} {point}", part, side
    for role, point in (("norm", "tokens"), ("head", "head input")):
        layer = roles.outside.get(role)
        part = None if layer is None else part_of(module, layer, 0, "input")
        if part is not None:
            yield point, part, "input"


def part_of(module: nn.Module, layer: Layer, block: int, side: str) -> nn.Module | None:
    """The module that a layer is, if torch calls it: nn.MultiheadAttention does not call its
    projections, but is called itself."""
    path = Pattern(layer.path, THEIRS, pairs_of({})).format({"i": block})
    parts = dict(module.named_modules())
    if path is None:
        return None
    above = parts.get(path.rpartition(".")[0])
    if isinstance(above, nn.MultiheadAttention):
        inner = path.endswith("out_proj")
        return above if inner == (side == "output") else None
    if path in parts:
        return parts[path]
    # parameters of its own: their module is the layer, if it has no others
    own = {name for name, _ in above.named_parameters()} if above is not None else set()
    return above if own and len(own) <= 1 + len(layer.bias) else None


def as_tokens(value: Tensor, batch: int) -> Tensor:
    """Batch first, whatever the layer had: sequence first, or all tokens in one axis."""
    if value.ndim == 3 and value.shape[0] != batch and value.shape[1] == batch:
        return value.transpose(0, 1)
    if value.ndim == 4:
        return value.flatten(2).mT
    if value.ndim == 2 and value.shape[0] != batch and value.shape[0] % batch == 0:
        return value.unflatten(0, (batch, -1))
    return value


def output_of(answer: Any) -> Tensor | None:
    """Logits, whatever a forward pass wraps them in."""
    if isinstance(answer, Mapping):
        answer = answer.get("logits", next(iter(answer.values()), None))
    if isinstance(answer, tuple | list) and answer:
        answer = answer[0]
    answer = getattr(answer, "logits", answer)
    return answer if isinstance(answer, Tensor) else None


@dataclass(frozen=True)
class Arrangement:
    """How their tokens and heads lie where both compute the same, but not in our order."""

    class_last: bool = False
    columns_first: bool = False  # patches column by column
    heads_last: bool = False  # the heads are joined as (d h)

    def apply(self, key: str, value: Tensor, config: ViTConfig) -> Tensor:
        """Tokens (B, N, D) of ours in their order."""
        if value.ndim != 3:
            return value
        if self.heads_last and key.endswith(" attention"):
            value = rearrange(value, "b n (h d) -> b n (d h)", h=config.heads)
        if self.columns_first:
            first = value.shape[1] - prod(config.grid)
            prefix, patches = value[:, :first], value[:, first:]
            turned = rearrange(patches, "b (r c) d -> b (c r) d", r=config.grid[0])
            value = torch.cat([prefix, turned], dim=1)
        return value.roll(-1, dims=1) if self.class_last else value


@torch.no_grad()
def trace_ours(model: Model, images: Tensor, arrangement: Arrangement) -> Trace:
    """The same points of one of our ViTs, in the order of theirs."""
    trace: Trace = {}
    config = model.config
    assert isinstance(config, ViTConfig)

    def keep(key: str, value: Any, _: nn.Module) -> None:
        value = value[0] if isinstance(value, tuple) else value
        trace.setdefault(key, []).append(arrangement.apply(key, value, config))

    with watching(our_parts(model), keep):
        logits = model(images)
    if not isinstance(logits, Tensor):
        raise TypeError
    trace["logits"] = [logits]
    return trace


def our_parts(model: Model) -> Iterator[tuple[str, nn.Module, str]]:
    parts = dict(model.named_modules())
    placement = getattr(model.config, "norm_placement", "pre")
    for name, block in model.blocks_by_depth().items():
        yield f"{name} input", block, "input"
        yield f"{name} input", parts[f"{name}.attention.qkv"], "input"
        yield f"{name} attention", parts[f"{name}.attention.out"], "input"
        yield f"{name} attention output", parts[f"{name}.attention.out"], "output"
        yield f"{name} sum", parts[f"{name}.norm{2 if placement == 'pre' else 1}"], "input"
        yield f"{name} activation", parts[f"{name}.mlp.fc2"], "input"
        yield f"{name} mlp output", parts[f"{name}.mlp.fc2"], "output"
    yield "tokens", parts["norm"], "input"
    if "head.classes" in parts:
        yield "head input", parts["head.classes"], "input"
