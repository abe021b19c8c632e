"""A trace of a module's forward pass: its layers and products in the order in which they ran.

Names play no part: what runs on data and a parameter is a layer, what runs on data and data is an
attention product. Each event remembers the line of the person's own file that it came from.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Kind: TypeAlias = Literal[
    "linear",
    "conv",
    "product",
    "fused",
    "softmax",
    "norm",
    "activation",
    "join",
    "add",
    "scale",
    "residual",
]
NormFormula: TypeAlias = Literal["layer_norm", "unbiased", "std_eps", "unbiased_std_eps", "rms"]
MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation")
FUSED_ATTENTION = "_scaled_dot_product"
ACTIVATIONS = ("gelu", "relu", "silu", "tanh", "leaky_relu", "elu", "hardswish", "mish")
NORMS = (
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "rms_norm",
    "_fused_rms_norm",
)


@dataclass(eq=False)
class Event:
    """One operation. `data`: what it read of the image's path, `constant`: what it read of the
    parameters, as it was used; `names`: the parameters that came from."""

    kind: Kind
    operation: str
    data: tuple[Tensor, ...]
    output: Tensor
    line: int | None
    constant: Tensor | None = None
    bias: Tensor | None = None
    names: tuple[str, ...] = ()
    eps: float | None = None
    formula: NormFormula = "layer_norm"  # of a norm that is written by hand
    first: bool = True  # of a join: the parameter comes before the data
    stride: tuple[int, ...] = ()
    learned: bool = False  # one of the names is a parameter, not a buffer
    made_line: int | None = None  # where what it read took its shape
    again_line: int | None = None  # of a norm: where it was called on the same values again

    @property
    def weight(self) -> Tensor:
        """Of a layer, as (output, input)."""
        assert self.constant is not None
        return self.constant


@dataclass(frozen=True)
class Trace:
    events: tuple[Event, ...]
    output: Tensor
    used: frozenset[str]
    dropout: bool  # something was dropped although the module was in eval mode


class Recorder(TorchDispatchMode):
    """Records events while a module runs."""

    def __init__(self, module: nn.Module, image: Tensor, file: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.file = file
        self.events: list[Event] = []
        self.names: dict[int, frozenset[str]] = {}  # of the parameters in a storage
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.names[place_of(tensor)] = frozenset([name])
        self.parameters = {name for name, _ in module.named_parameters()}
        self.data = {place_of(image)}  # storages that depend on the image
        self.kept: list[Any] = [image]  # so that no storage is used twice
        self.touched: dict[int, list[int | None]] = {}  # lines that made a storage or a view of it
        self.used: set[str] = set()
        self.dropout = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        before = [one.clone() if name.endswith("_") else one for one in tensors]
        depends = [place_of(one) in self.data for one in tensors]
        names = frozenset[str]().union(*(self.names_of(one) for one in tensors))
        out = self.run(func, name, args, kwargs or {})
        self.kept += [tensors, out]
        if any(depends):
            self.used |= names
        outputs = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        for one in outputs:
            if any(depends):
                self.data.add(place_of(one))
                self.touched.setdefault(place_of(one), []).append(self.line())
            elif names:
                self.names[place_of(one)] = self.names_of(one) | names
        if any(depends) and outputs:
            self.record(name.rstrip("_"), before, depends, outputs[0], (args, kwargs or {}))
        return out

    def run(self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The operation itself; dropout does nothing, as in eval mode."""
        if name == "native_dropout":
            self.dropout = True
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "bernoulli_":
            self.dropout = True
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)
        return func(*args, **kwargs)

    def names_of(self, tensor: Tensor) -> frozenset[str]:
        return self.names.get(place_of(tensor), frozenset())

    def record(
        self, name: str, tensors: list[Tensor], depends: list[bool], output: Tensor, call: Any
    ) -> None:
        data = [one for one, is_data in zip(tensors, depends, strict=True) if is_data]
        constants = [one for one, is_data in zip(tensors, depends, strict=True) if not is_data]
        constant = constants[-1] if constants else None
        kind = kind_of(name, data, constant)
        if kind is None:
            return
        event = Event(
            kind,
            name,
            tuple(one.clone() for one in data),
            output.clone(),
            self.line(),
            names=tuple(sorted(frozenset().union(*(self.names_of(one) for one in constants)))),
        )
        event.learned = not self.parameters.isdisjoint(event.names)
        if kind in ("linear", "conv", "norm"):
            lines = self.touched.get(place_of(data[0]), [])
            others = [line for line in lines if line not in (None, event.line)]
            event.made_line = others[-1] if others else event.line
            fill_layer(event, name, tensors, depends, call)
        elif kind in ("join", "add", "scale"):
            event.constant = None if constant is None else constant.clone()
            event.first = not depends[0]
        if kind == "add" and self.takes_bias(event):
            return
        self.events.append(event)

    def takes_bias(self, event: Event) -> bool:
        """Whether an addition is the bias of the layer before it, or of the one before a residual:
        x + y @ w + b."""
        if event.constant is None or not self.events:
            return False
        summed = [one for one in self.events[-1:] if one.kind == "residual"]
        layers = self.events[-1 - len(summed) :][:1]
        before, rows = layers[0], event.constant.squeeze()
        layer = before.kind == "linear" and before.bias is None
        if not layer or rows.ndim != 1 or before.output.shape[-1] != len(rows):
            return False
        read = (summed or layers)[0].output
        if read.numel() != event.data[0].numel():
            return False
        if not torch.equal(read.flatten(), event.data[0].flatten()):
            return False
        before.bias, before.names = rows.clone(), (*before.names, *event.names)
        before.output = before.output + rows
        for one in summed:
            one.output = event.output
        return True

    def line(self) -> int | None:
        """The innermost line of the person's file."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno


def kind_of(name: str, data: list[Tensor], constant: Tensor | None) -> Kind | None:
    """What an operation is, if it is one that matters here."""
    kind: Kind | None = None
    if name in MATRIX_PRODUCTS:
        kind = "product" if len(data) > 1 else "linear"
    elif name.startswith(FUSED_ATTENTION):
        kind = "fused"
    elif name in ("_softmax", "softmax"):
        kind = "softmax"
    elif name == "convolution":
        kind = "conv"
    elif name in NORMS:
        kind = "norm"
    elif name in ACTIVATIONS:
        kind = "activation"
    elif name == "cat" and constant is not None:
        kind = "join"
    elif name == "add" and len(data) > 1:
        kind = "residual"
    elif name in ("add", "mul") and constant is not None and constant.ndim > 0:
        kind = "add" if name == "add" else "scale"
    return kind


def fill_layer(
    event: Event, name: str, tensors: list[Tensor], depends: list[bool], call: Any
) -> None:
    """The weight, bias, eps and stride of a layer."""
    args, kwargs = call
    if event.kind == "norm":
        weights = tensors[1:]
        event.constant = weights[0] if weights else None
        event.bias = weights[1] if len(weights) > 1 else None
        numbers = [one for one in tree_leaves((args, kwargs)) if isinstance(one, float)]
        event.eps = numbers[-1] if numbers else None
        return
    if event.kind == "conv":
        event.constant = tensors[1]
        event.bias = tensors[2] if len(tensors) > 2 else None
        event.stride = tuple(args[3])
        return
    factors = tensors[1:] if name in ("addmm", "baddbmm", "_addmm_activation") else tensors
    flags = depends[1:] if len(factors) < len(tensors) else depends
    event.bias = tensors[0] if len(factors) < len(tensors) else None
    if name == "linear":
        event.constant, event.bias = tensors[1], tensors[2] if tensors[2:] else None
    elif flags[0]:
        event.constant = factors[1].mT
    else:  # weight @ data: rows are columns
        event.constant = factors[0]
        event.data = tuple(one.mT for one in event.data)
        event.output = event.output.mT


def place_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@torch.no_grad()
def trace(module: nn.Module, image: Tensor, file: str | None = None) -> Trace:
    """Run a module in eval mode and record what it does."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operation would hide all others
    try:
        with Recorder(module, image, file) as recorder:
            output = module(image)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    events = tuple(drop_repeats(merge_norms(recorder.events)))
    return Trace(events, logits_of(output), frozenset(recorder.used), recorder.dropout)


def merge_norms(events: Sequence[Event]) -> list[Event]:
    """A product with a parameter of one number for each channel, and an addition of one right after
    it, are a norm that is written by hand; a product alone that is not of a layer's output is an
    RMSNorm."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if is_row(event, "scale") and (last is None or last.kind != "linear"):
            merged.append(replace(event, kind="norm", operation="by_hand"))
        elif is_row(event, "add") and last is not None:
            by_hand = last.operation == "by_hand" or is_row(last, "scale")
            bias = event.weight.flatten()
            whole = replace(
                last, kind="norm", operation="by_hand", output=event.output, bias=bias,
                names=(*last.names, *event.names),
            )  # fmt: skip
            merged[-1:] = [whole] if by_hand and last.bias is None else [last, event]
        else:
            merged.append(event)
    return merged


def drop_repeats(events: Sequence[Event]) -> list[Event]:
    """Without norms that are called on the same values again: norm(x) + branch(norm(x)) is
    y + branch(y); the first call remembers the line of the second."""
    kept: list[Event] = []
    for event in events:
        norms = (one for one in kept if one.kind == event.kind == "norm")
        first = next((one for one in norms if is_repeat(one, event)), None)
        if first is None:
            kept.append(event)
        else:
            first.again_line = event.line
    return kept


def is_repeat(one: Event, two: Event) -> bool:
    return torch.equal(one.data[0], two.data[0]) and torch.equal(one.output, two.output)


def is_row(event: Event, kind: Kind) -> bool:
    """Whether it is of this kind with one number for each channel."""
    if event.kind != kind or not event.names or event.constant is None:
        return False
    return event.constant.numel() == event.output.shape[-1]


def logits_of(output: Any) -> Any:
    """What a forward pass returned as logits, if it is a tensor: alone, by name, or first."""
    output = getattr(output, "logits", output)
    if isinstance(output, dict) and "logits" in output:
        return output["logits"]
    if isinstance(output, tuple | list) and output:
        return output[0]  # attention maps may come after them
    return output
