"""`vitrail.info`: what a model is made of, what a checkpoint contains, where a number of parameters
comes from, and how weights start."""

import inspect
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.addresses import is_address
from vitrail.core.deferred_init import deferred_init
from vitrail.core.errors import UserError, nearest
from vitrail.core.html_text import html_table
from vitrail.core.json_text import plain_values
from vitrail.core.passport import Passport
from vitrail.core.ranges import check_count
from vitrail.core.records import validate
from vitrail.inference.client import Client
from vitrail.models.catalogue import (
    build,
    build_meta,
    change,
    families,
    family_of,
    find,
    find_family,
)
from vitrail.models.config import Config
from vitrail.models.measure import FLOAT, Measure, count, measure
from vitrail.models.vit_config import ViTConfig
from vitrail.tasks.models import refuse_without_weights
from vitrail.tasks.names import name_of
from vitrail.weights.checkpoint import Checkpoint, resize_checkpoint
from vitrail.weights.files import SUFFIXES
from vitrail.weights.load import check_source, fine_tuned, open_checkpoint


@dataclass(frozen=True)
class Term:
    """One tensor of a module, and how many numbers it has."""

    name: str
    shape: tuple[int, ...]
    params: int


@dataclass(frozen=True, repr=False)
class Why:
    """A module's parameters, tensor by tensor, and the multiply-adds of the whole model counted in
    two ways: ours, and torchinfo's, which counts each weight once for an image."""

    module: str
    params: int
    terms: tuple[Term, ...]
    macs: int
    weight_macs: int

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain_values(asdict(self))

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The sum, term by term."""
        lines = [f"{self.module}: {self.params:,} parameters ="]
        for number, term in enumerate(self.terms):
            shape = " x ".join(map(str, term.shape))
            lines.append(f"  {'+' if number else ' '} {term.params:>12,}  {term.name} ({shape})")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(self.module, {term.name: term.params for term in self.terms})


@dataclass(frozen=True)
class Torchinfo:
    """The totals below the table of torchinfo 1.8, sizes in bytes, for a model whose tokens and
    positions are plain parameters. It counts layers that have a weight: their outputs twice, for
    the backward pass; each weight once for an image, that of a convolution once for each place of
    its output; attention products not at all."""

    macs: int
    input_size: int
    pass_size: int
    params_size: int

    @property
    def total_size(self) -> int:
        return self.input_size + self.pass_size + self.params_size

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"total_size": self.total_size}


@dataclass(frozen=True)
class InitialValues:
    """A tensor of a fresh model: mean, standard deviation and largest absolute value."""

    name: str
    shape: tuple[int, ...]
    mean: float
    std: float
    largest: float


@dataclass(frozen=True, repr=False)
class Initialisation:
    """How the weights of a model start: every tensor measured, and the rules, as pairs of what and
    how, that the family's `init_weights` documents."""

    source: str
    tensors: tuple[InitialValues, ...]
    rules: tuple[tuple[str, str], ...]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain_values(asdict(self))

    def by_kind(self) -> list[tuple[str, tuple[InitialValues, ...]]]:
        """The tensors of all blocks that have one name and shape: blocks.*.norm1.weight"""
        found: dict[tuple[str, tuple[int, ...]], list[InitialValues]] = {}
        for one in self.tensors:
            parts = ("*" if part.isdecimal() else part for part in one.name.split("."))
            found.setdefault((".".join(parts), one.shape), []).append(one)
        return [
            (name if len(each) > 1 else each[0].name, tuple(each))
            for (name, _), each in found.items()
        ]

    def __repr__(self) -> str:
        return f"Initialisation({self.source}: {len(self.tensors)} tensors)"

    def _repr_html_(self) -> str:
        rows = {one.name: f"mean {one.mean:.3g}, std {one.std:.3g}" for one in self.tensors}
        return html_table(self.source, rows)


@dataclass(frozen=True)
class ModelInfo:
    """A model's config and cost for a batch; of a checkpoint also its dialect, coverage and
    passport."""

    source: str
    config: Config
    batch_size: int
    checkpoint: Checkpoint | None = None
    passport: Passport | None = None

    @cached_property
    def measured(self) -> Measure:
        """Every layer. torch takes seconds to import what it needs for tensors without memory, so
        this is computed on first use."""
        return measure(self.config, self.batch_size)

    @cached_property
    def params(self) -> int:
        return count(build_meta(self.config))

    @property
    def macs(self) -> int:
        known = families()[family_of(self.config)].variants.values()
        published = (row.macs for row in known if row.config == self.config)
        macs = next(published, None) if self.batch_size == 1 else None
        return self.measured.macs if macs is None else macs

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts: dict[str, Any] = {"source": self.source}
        if self.checkpoint is not None and self.passport is not None:
            facts |= {
                "checkpoint": coverage_facts(self.checkpoint),
                "passport": asdict(self.passport),
            }
        config = {"config": asdict(self.config), "batch_size": self.batch_size}
        measured = asdict(self.measured) | {"torchinfo": self.torchinfo.facts()}
        return plain_values({**facts, **config, **measured})

    def why(self, module: str) -> Why:
        """The parameters of one module, tensor by tensor.

        >>> info("vit_h_14").why("blocks.0").params
        19677440
        """
        modules = dict(build_meta(self.config).named_modules())
        if module not in modules or not module:
            raise UserError(f"unknown module {module!r}, {nearest_module(module, modules)}")
        terms = tuple(
            Term(name, tuple(tensor.shape), tensor.numel())
            for name, tensor in modules[module].named_parameters()
        )
        params = sum(term.params for term in terms)
        return Why(module, params, terms, self.macs, self._weight_macs())

    def init(self) -> Initialisation:
        """How fresh weights start, drawn with seed 0, one tensor at a time: the largest model
        needs no more memory than its largest tensor.

        >>> info("vit_ti_16", depth=1).init().tensors[0]
        InitialValues(name='cls', shape=(1, 1, 192), mean=0.0, std=0.0, largest=0.0)
        """
        with torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(0)
            with deferred_init() as deferred:
                model = build(self.config)
            deferred.name_tensors(model)
            tensors = tuple(
                initial_values(name, deferred.fill(name)) for name, _ in model.named_parameters()
            )
        return Initialisation(self.source, tensors, documented_rules(model))

    @cached_property
    def torchinfo(self) -> Torchinfo:
        """What torchinfo would print below its table."""
        modules = dict(build_meta(self.config).named_modules())
        macs = results = params = 0
        for layer in self.measured.layers:
            module = modules.get(layer.name)
            if module is None or not has_weight(module):
                continue
            places = math.prod(layer.output[2:]) if isinstance(module, nn.Conv2d) else 1
            macs += layer.output[0] * places * layer.params
            results += math.prod(layer.output)
            params += layer.params
        images = self.batch_size * self.config.channels * math.prod(self.config.image_size)
        return Torchinfo(macs, FLOAT * images, 2 * FLOAT * results, FLOAT * params)

    def _weight_macs(self) -> int:
        """`torchinfo.macs`, for a plain ViT without measuring, which takes seconds."""
        config = self.config
        if not isinstance(config, ViTConfig) or config.stem or config.patch_norm:
            return self.torchinfo.macs
        model = build_meta(config)
        layers = (one for one in model.modules() if has_weight(one))
        more = (math.prod(config.grid) - 1) * count(model.get_submodule("patches.projection"))
        return self.batch_size * (sum(map(count, layers)) + more)

    def _repr_html_(self) -> str:
        height, width = self.config.image_size
        rows: dict[str, object] = {"family": family_of(self.config)}
        rows |= {"image size": f"{height} x {width}", "parameters": self.params}
        rows |= {"multiply-adds": self.macs}
        if self.checkpoint is not None:
            rows["dialect"] = self.checkpoint.dialect
        return html_table(self.source, rows)

    def __repr__(self) -> str:
        return f"ModelInfo({self.source}: {self.params:,} parameters, {self.macs:,} multiply-adds)"


def info(
    source: str | Path | nn.Module,
    *,
    batch_size: int = 1,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    **changes: Any,
) -> ModelInfo:
    """Describe a model by its name, a checkpoint, without loading its weights into a model, a
    module in memory, or the model of a service by its address: parameters, multiply-adds and memory
    layer by layer. `model`, `dialect`, `grid` and `changes` are those of `load`.

    >>> info("vit_b_16").params
    86567656
    """
    check_count("batch_size", batch_size, at_least=1)
    check_source(source)
    if isinstance(source, str) and is_address(source):
        how = {"model": model, "dialect": dialect, "grid": grid, **changes}
        return served_info(source, batch_size, [name for name, one in how.items() if one])
    refuse_without_weights(source, "count layers")
    name = name_of(source)
    if not isinstance(source, nn.Module) and not is_checkpoint(name):
        return ModelInfo(name, change(find(name), changes), batch_size)
    opened = open_checkpoint(source, model=model, dialect=dialect, grid=grid, overrides=changes)
    config = change(opened.config, fine_tuned(opened.config, changes))
    _, passport = resize_checkpoint(opened, config)
    return ModelInfo(name, config, batch_size, opened, passport)


def served_info(address: str, batch_size: int, given: Sequence[str]) -> ModelInfo:
    """The model behind an address, by its config; its weights stay there."""
    if given:
        raise UserError(f"{address}: {given[0]} must not be given for a model behind an address")
    with Client(address) as client:
        _, passport = client.model()
    family = find_family(passport.family)
    config = validate(family.config, passport.config, where=address)
    return ModelInfo(address, config, batch_size)


def has_weight(module: nn.Module) -> bool:
    return isinstance(getattr(module, "weight", None), nn.Parameter)


def initial_values(name: str, tensor: Tensor) -> InitialValues:
    std, mean = torch.std_mean(tensor, correction=0)  # a single number deviates by 0
    largest = tensor.abs().max()
    return InitialValues(name, tuple(tensor.shape), mean.item(), std.item(), largest.item())


def documented_rules(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """The table in the docstring of the family's `init_weights`, without its title.

    >>> documented_rules(build_meta(find("vit_ti_16")))[1]
    ('MLP biases', 'N(0, 1e-6)')
    """
    text = inspect.getdoc(getattr(type(model), "init_weights", None)) or ""
    return tuple(re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE)[1:])


def nearest_module(name: str, modules: Mapping[str, nn.Module]) -> str:
    """A hint for the name of a module that is not there.

    >>> nearest_module("blocks.99", dict(build_meta(find("vit_ti_16")).named_modules()))
    'blocks has blocks.0 to blocks.11'
    """
    parent, _, last = name.rpartition(".")
    children = [child for child, _ in modules[parent].named_children()] if parent in modules else []
    if last.isdecimal() and children and all(child.isdecimal() for child in children):
        return f"{parent} has {parent}.{children[0]} to {parent}.{children[-1]}"
    return nearest(name, [known for known in modules if known])


def is_checkpoint(model: str) -> bool:
    """Whether this means a checkpoint rather than the name of a variant.

    >>> is_checkpoint("vit_b_16"), is_checkpoint("B_16.npz")
    (False, True)
    """
    named = model.startswith("hf-hub:") or "/" in model or Path(model).suffix in SUFFIXES
    return named or os.path.exists(model)  # False for a name that is too long, not an error


def coverage_facts(opened: Checkpoint) -> dict[str, Any]:
    """Coverage in numbers, and every reason."""
    coverage = opened.coverage
    reasons: dict[str, list[str]] = {}
    for name, why in coverage.dropped:
        reasons.setdefault(why, []).append(name)
    return {
        "dialect": opened.dialect,
        "tensors": len(opened.state),
        "precision": sorted({str(t.dtype).removeprefix("torch.") for t in opened.state.values()}),
        "used": len(coverage.used),
        "dropped": [{"why": why, "tensors": names} for why, names in reasons.items()],
        "filled": [{"why": why, "tensor": name} for name, why in coverage.filled],
    }
