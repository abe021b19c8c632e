"""A claim of a paper: its sentence and source, the runs that test it, and how they are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from vitrail.core.errors import UserError
from vitrail.data.sources import open_data
from vitrail.evaluation.findings import Finding
from vitrail.recipes.small import size_of
from vitrail.tasks.compare_plan import ComparePlan, ModelChoice, seeds_of
from vitrail.training.goal import MaskedObjective

if TYPE_CHECKING:
    from vitrail.tasks.claims.lab import Lab

DEFAULT_SEEDS = 3
GRAY_SIDE, COLOUR_SIDE = 28, 32  # pixels: seven and eight patches of 4
LR = 0.005


@dataclass(frozen=True, kw_only=True)
class Citation:
    """Where a paper says it."""

    paper: str
    arxiv: str
    where: str

    def __str__(self) -> str:
        return f"{self.paper} (arXiv:{self.arxiv}), {self.where}"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large models and runs are: steps of `batch_size` images with labels, and `pretrain_steps`
    before fine-tuning."""

    name: str
    steps: int
    pretrain_steps: int
    batch_size: int = 64
    dim: int = 32
    depth: int = 3
    heads: int = 4
    images: int = 128  # that attention and shifts are measured on


SCALES = {
    "quick": Scale(name="quick", steps=600, pretrain_steps=1_200),
    "full": Scale(name="full", steps=2_000, pretrain_steps=6_000, dim=96, depth=6),
}
ScaleName: TypeAlias = Literal["quick", "full"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a person chose: data, seeds, scale, and the directory of the runs."""

    data: str
    seeds: tuple[int, ...]
    scale: Scale
    out: Path
    channels: int = 1
    side: int = GRAY_SIDE
    has_test: bool = True  # else the validation split is tested, and so must not be tiny
    weights: str | None = None

    @property
    def val_share(self) -> float | None:
        """Few images for a split that has no say; where it is the one that is tested, the usual."""
        return 0.02 if self.has_test else None

    def plan(
        self,
        models: Sequence[ModelChoice],
        *,
        shares: Sequence[float] = (1.0,),
        lr: float = LR,
        steps: int | None = None,
        seeds: Sequence[int] | None = None,
        data: str | None = None,
        val_share: float | None = None,
    ) -> ComparePlan:
        """Runs of these models that are trained alike."""
        steps = steps or self.scale.steps
        return ComparePlan(
            data=data or self.data,
            models=tuple(models),
            shares=tuple(shares),
            seeds=tuple(seeds or self.seeds),
            recipe="small",
            steps=steps,
            batch_size=self.scale.batch_size,
            lr=lr,
            val_share=val_share or self.val_share,
            set={"optimiser.name": "adamw", "schedule.warmup": steps // 10},
        )


def make_setting(
    data: str, *, seeds: int | Sequence[int] | None, scale: ScaleName, out: Path
) -> Setting:
    """The setting of a call with runs; the images decide the side and the channels of models."""
    bare = bare_setting(data, seeds=seeds, scale=scale, out=out)
    parts = open_data(data).parts
    side, channels = size_of(parts["train"])
    return replace(
        bare,
        channels=channels,
        side=GRAY_SIDE if side <= GRAY_SIDE else COLOUR_SIDE,
        has_test="test" in parts,
    )


def bare_setting(
    data: str, *, seeds: int | Sequence[int] | None, scale: ScaleName, out: Path
) -> Setting:
    """The setting of a claim that trains nothing."""
    if scale not in SCALES:
        raise UserError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    chosen = tuple(seeds_of(DEFAULT_SEEDS if seeds is None else seeds))
    if not chosen or len(set(chosen)) < len(chosen):
        raise UserError(f"seeds must be different, and at least one, got {list(chosen)}")
    return Setting(data=data, seeds=chosen, scale=SCALES[scale], out=out)


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """A run without labels, before others begin from it: `fields` of the model, `options` of the
    objective. `tokenizer` is the name of another such run."""

    name: str
    objective: MaskedObjective
    model: str
    fields: dict[str, Any]
    steps: int
    seed: int
    batch_size: int = 64
    lr: float = 1e-3
    options: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None


Stage: TypeAlias = ComparePlan | Pretraining


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers of a claim. A column is text, or of the kind that its mark says: % a share of 1,
    # a number, ~ the ends of an interval in shares of 1."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart in numbers: lines of (x, y) or (x, y, low, high), bars by name, or a grid."""

    title: str
    kind: Literal["lines", "bars", "grid"]
    lines: dict[str, list[list[float]]] = field(default_factory=dict)
    bars: dict[str, float] = field(default_factory=dict)
    grid: list[list[float]] = field(default_factory=list)
    x_label: str = ""
    share: bool = False
    log_x: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What came of the runs of a claim."""

    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`stages` are the runs in their order, `judge` measures and compares what came of them.
    `minutes` are those of both scales on two cores, as far as is known."""

    name: str
    sentence: str
    citation: Citation
    minutes: tuple[int, int]
    stages: Callable[[Setting], Sequence[Stage]]
    judge: Callable[[Lab], Evidence]
    data: str | None = "fashion-mnist"  # "": needs none; None: a person has to name it
    caveat: str = ""  # what this does not test, in a sentence

    def facts(self) -> dict[str, Any]:
        """Plain values: a row of the list."""
        return {
            "claim": self.name,
            "sentence": self.sentence,
            "source": asdict(self.citation),
            "data": self.data,
            "minutes": dict(zip(SCALES, self.minutes, strict=True)),
        }
