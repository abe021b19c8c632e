"""A recipe: everything that decides a training run, in one record that is written beside its
result."""

from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.core.errors import UserError
from vitrail.data.augment import Augmentation

DEFAULT_MODEL = "vit_s_16"  # where neither a variant nor a checkpoint is named


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """`lr` is the peak for the recipe's batch size. Weight decay touches matrices alone, unless
    `decay_all`. With `layer_decay` each block learns that much slower than the one above it."""

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    decay_all: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    clip: float | None = 1.0
    layer_decay: float = 1.0
    freeze: tuple[str, ...] = ()  # shell patterns of parameters that stay as they are

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise UserError(f"lr is {self.lr}, but must be above 0")
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"layer_decay is {self.layer_decay}, but is in (0, 1]")
        if self.weight_decay < 0 or (self.clip is not None and self.clip <= 0):
            raise UserError("weight_decay must not be negative, and clip must be above 0")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up from 0, then `kind` down to `floor` times the peak. `steps` wins over `epochs`."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    epochs: float = 100.0
    steps: int | None = None
    warmup: int = 0  # steps
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs <= 0 or (self.steps is not None and self.steps < 1) or self.warmup < 0:
            raise UserError("a run has at least one step, and a warm-up that is not negative")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is learnt: labels, or by an `objective` that needs none, with `options` of its own.
    `loss` "auto": softmax for one label an image, sigmoid for several."""

    objective: Literal["labels", "masked-patch", "beit", "mae", "simmim", "tokenizer"] = "labels"
    options: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None  # a checkpoint whose words beit predicts
    loss: Literal["auto", "softmax", "sigmoid"] = "auto"
    smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    balance: bool = False  # draw every class equally often
    teacher: str | None = None  # a checkpoint to distil from
    distillation: Literal["hard", "soft"] = "hard"
    share: float = 0.5  # of the teacher's part in the loss
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Watch:
    """When the run looks at itself, and what it does when something goes wrong."""

    every: float = 1.0  # epochs between evaluations
    save: int | None = None  # steps between run checkpoints; None: a minute between them
    keep: int = 2  # run checkpoints that stay
    patience: int | None = None  # evaluations without a better one before stopping
    log_every_steps: int = 50  # between lines of metrics; an evaluation has its own
    nan: Literal["stop", "skip", "back"] = "stop"
    nan_limit: int = 10  # of the last 100 steps that may be skipped before the run gives up


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank changes to frozen matrices (arXiv:2106.09685): W + alpha / rank · B A, for queries,
    keys, values and the MLP. Saved models have them merged into W."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("*.qkv", "*.fc1", "*.fc2")  # shell patterns of linear layers

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0:
            raise UserError(f"lora has rank {self.rank} and alpha {self.alpha}: both are above 0")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run is a function of this record, the data and the version of the code."""

    data: str
    val_share: float = 0.1  # of the training images, where the data has no validation part
    cache: bool = True  # small data sets are decoded once, beside the run
    model: str | None = None  # a variant; beside `start` it is needed where a file does not tell
    fields: dict[str, Any] = field(default_factory=dict)  # of the model's config
    start: str | None = None  # a checkpoint to begin from
    goal: Goal = field(default_factory=Goal)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    augmentation: Augmentation = field(default_factory=Augmentation)
    watch: Watch = field(default_factory=Watch)
    batch_size: int = 64
    accumulate: int = 1  # parts a batch is computed in, to save memory
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    lora: Lora | None = None  # train small changes to the matrices, and the head, alone
    average: float | None = None  # decay of the running mean of the weights (EMA, Polyak)
    checkpointing: bool = False  # compute blocks again in the backward pass, to save memory
    compile: bool = False
    parallel: Literal["ddp", "fsdp", "hsdp"] = "ddp"  # where there are many processes
    workers: int = 0
    seed: int = 0
    reasons: tuple[str, ...] = ()  # why it was chosen so, for the person who reads it

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.accumulate < 1 or self.batch_size % self.accumulate:
            raise UserError(
                f"batch_size {self.batch_size} does not split into {self.accumulate} parts"
            )
        if self.average is not None and not 0 < self.average < 1:
            raise UserError(f"average is {self.average}, but a decay is in (0, 1)")
