"""`vitrail.info`: what a model is made of, what a checkpoint says of itself, and why a number is
what it is."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.core.errors import UserError, nearest
from vitrail.core.passport import Passport
from vitrail.core.ranges import check
from vitrail.models.catalogue import build_meta, change, find
from vitrail.models.config import Config
from vitrail.models.measure import Measure, measure
from vitrail.weights.checkpoint import Checkpoint, resize_checkpoint
from vitrail.weights.files import SUFFIXES
from vitrail.weights.load import fine_tuned, open_checkpoint


@dataclass(frozen=True)
class Term:
    """One tensor of a module, and how many numbers it has."""

    name: str
    shape: tuple[int, ...]
    params: int


@dataclass(frozen=True)
class Why:
    """A module's parameters, tensor by tensor, and the multiply-adds of the whole model in two ways
    of counting: ours, and each weight once for an image as torchinfo does it."""

    module: str
    params: int
    terms: tuple[Term, ...]
    macs: int
    weight_macs: int

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ModelInfo:
    """A model's config and cost for a batch; of a checkpoint also its dialect, coverage and
    passport."""

    source: str
    config: Config
    batch_size: int
    measured: Measure
    checkpoint: Checkpoint | None = None
    passport: Passport | None = None

    @property
    def params(self) -> int:
        return self.measured.params

    @property
    def macs(self) -> int:
        return self.measured.macs

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts: dict[str, Any] = {"source": self.source}
        if self.checkpoint is not None and self.passport is not None:
            facts |= {
                "checkpoint": coverage_facts(self.checkpoint),
                "passport": asdict(self.passport),
            }
        config = {"config": asdict(self.config), "batch_size": self.batch_size}
        return {**facts, **config, **asdict(self.measured)}

    def why(self, module: str) -> Why:
        """The parameters of one module, tensor by tensor.

        >>> info("vit_h_14").why("blocks.0").params
        19677440
        """
        model = build_meta(self.config)
        modules = dict(model.named_modules())
        if module not in modules or not module:
            raise UserError(f"unknown module {module!r}, {nearest(module, list(modules)[1:])}")
        terms = tuple(
            Term(name, tuple(tensor.shape), tensor.numel())
            for name, tensor in modules[module].named_parameters()
        )
        params = sum(term.params for term in terms)
        return Why(module, params, terms, self.macs, self._weight_macs(model))

    def _weight_macs(self, model: nn.Module) -> int:
        """torchinfo 1.8: a weight counts once for an image, that of a convolution once for each
        place of its output; products without weights, those of attention, do not count."""
        outputs = {layer.name: layer.output for layer in self.measured.layers}
        total = 0
        for name, module in model.named_modules():
            tensors = dict(module.named_parameters(recurse=False))
            own = sum(tensors[key].numel() for key in ("weight", "bias") if key in tensors)
            places = 1
            if "Conv" in type(module).__name__:
                for side in outputs[name][2:]:
                    places *= side
            total += self.batch_size * own * places
        return total

    def __repr__(self) -> str:
        return f"ModelInfo({self.source}: {self.params:,} parameters, {self.macs:,} multiply-adds)"


def info(
    source: str | Path,
    *,
    batch_size: int = 1,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    **changes: Any,
) -> ModelInfo:
    """Describe a model by its name, or a checkpoint, without loading its weights into a model:
    parameters, multiply-adds and memory layer by layer. `model`, `dialect`, `grid` and `changes`
    are those of `load`.

    >>> info("vit_b_16").params
    86567656
    """
    check("batch_size", batch_size, at_least=1)
    if not is_checkpoint(str(source)):
        config = change(find(str(source)), changes)
        return ModelInfo(str(source), config, batch_size, measure(config, batch_size))
    opened = open_checkpoint(source, model=model, dialect=dialect, grid=grid, overrides=changes)
    config = change(opened.config, fine_tuned(opened.config, changes))
    _, passport = resize_checkpoint(opened, config)
    measured = measure(config, batch_size)
    return ModelInfo(str(source), config, batch_size, measured, opened, passport)


def is_checkpoint(model: str) -> bool:
    """Whether this means a checkpoint rather than the name of a variant.

    >>> is_checkpoint("vit_b_16"), is_checkpoint("B_16.npz")
    (False, True)
    """
    path = Path(model)
    return model.startswith("hf-hub:") or "/" in model or path.suffix in SUFFIXES or path.exists()


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
