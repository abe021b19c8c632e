"""A recipe: everything that decides a training run, in one record that is written beside its
result."""

from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.core.errors import UserError
from vitrail.core.ranges import check, check_count
from vitrail.data.augment import Augmentation
from vitrail.training.goal import Goal, Labels, Masked
from vitrail.training.loggers import LoggerName

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
        check("optimiser.lr", self.lr, above=0)
        check("optimiser.layer_decay", self.layer_decay, above=0, at_most=1)
        check("optimiser.weight_decay", self.weight_decay, at_least=0)
        check("optimiser.momentum", self.momentum, at_least=0, below=1)
        for beta in self.betas:
            check("optimiser.betas", beta, at_least=0, below=1)
        if self.clip is not None:
            check("optimiser.clip", self.clip, above=0)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up from 0, then `kind` down to `floor` times the peak. `steps` wins over `epochs`."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    epochs: float = 100.0
    steps: int | None = None
    warmup: int = 0  # steps
    floor: float = 0.0

    def __post_init__(self) -> None:
        check("schedule.epochs", self.epochs, above=0)
        check_count("schedule.warmup", self.warmup, at_least=0)
        check("schedule.floor", self.floor, at_least=0, at_most=1)
        if self.steps is not None:
            check_count("schedule.steps", self.steps, at_least=1)


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """How often a run evaluates, saves and logs, and what it does about NaN."""

    eval_every_epochs: float = 1.0
    save_every_steps: int | None = None  # between run checkpoints; None: one a minute
    keep: int = 2  # run checkpoints that stay
    patience: int | None = None  # evaluations without a better one before stopping
    loggers: tuple[LoggerName, ...] = ("tensorboard",)  # beside metrics.jsonl; wandb, mlflow
    log_every_steps: int = 50  # between lines of metrics; an evaluation has its own
    nan: Literal["stop", "skip", "back"] = "stop"
    nan_limit: int = 10  # of the last 100 steps that may be skipped before the run gives up
    examine_data: bool = True  # for the report, which then says what is wrong with the images
    outage_minutes: float = 10.0  # to wait for storage that does not answer before the run stops

    def __post_init__(self) -> None:
        check("monitor.eval_every_epochs", self.eval_every_epochs, above=0)
        check_count("monitor.keep", self.keep, at_least=1)
        check_count("monitor.log_every_steps", self.log_every_steps, at_least=1)
        check_count("monitor.nan_limit", self.nan_limit, at_least=0)
        check("monitor.outage_minutes", self.outage_minutes, at_least=0)
        if self.save_every_steps is not None:
            check_count("monitor.save_every_steps", self.save_every_steps, at_least=1)
        if self.patience is not None:
            check_count("monitor.patience", self.patience, at_least=1)


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank changes to frozen matrices (arXiv:2106.09685): W + alpha / rank · B A, for queries,
    keys, values and the MLP. Saved models have them merged into W."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("*.qkv", "*.mlp.fc1", "*.mlp.fc2")  # shell patterns of layers

    def __post_init__(self) -> None:
        check_count("lora.rank", self.rank, at_least=1)
        check("lora.alpha", self.alpha, above=0)


@dataclass(frozen=True, kw_only=True)
class Bands:
    """The values of images that are no photos: their bits, and mean and standard deviation of each
    band as shares of the largest value."""

    bits: Literal[8, 16] = 8
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.mean) == len(self.std):
            raise UserError(
                f"bands must have a mean and a std each, got {len(self.mean)} and {len(self.std)}"
            )
        for value in self.std:
            check("bands.std", value, above=0)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How processes share weights. With `reshard` a block's weights are gathered again for its
    backward pass instead of kept; `prefetch` blocks are gathered ahead; `group` processes share one
    copy of the model with hsdp (None: those of a machine)."""

    reshard: bool = True
    prefetch: int = 1
    group: int | None = None

    def __post_init__(self) -> None:
        check_count("sharding.prefetch", self.prefetch, at_least=0)
        if self.group is not None:
            check_count("sharding.group", self.group, at_least=2)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run is a function of this record, the data and the version of the code."""

    data: str
    val_share: float = 0.1  # of the training images, where the data has no validation part
    train_share: float = 1.0  # of the training images of each class, drawn by the seed
    folds: int | None = None  # equal shares of the training images, for cross-validation;
    fold: int | None = None  # the number of the one that this run validates on, from 1
    max_broken: float = 0.01  # share of images that may be unusable before the run stops
    cache: bool = True  # small data sets are decoded once, beside the run
    model: str | None = None  # a variant; beside `start` it is needed where a file does not tell
    fields: dict[str, Any] = field(default_factory=dict)  # of the model's config
    bands: Bands | None = None  # of images that are no photos of 8 bits
    native_resolution: bool = False  # images keep their aspect ratio, and are packed
    max_tokens: int | None = None  # patches of such an image; None: as many as the model's grid has
    start: str | None = None  # a checkpoint to begin from
    goal: Goal = field(default_factory=Labels)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    augmentation: Augmentation = field(default_factory=Augmentation)
    monitor: Monitor = field(default_factory=Monitor)
    batch_size: int = 64
    accumulate: int = 1  # parts a batch is computed in, to save memory
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    lora: Lora | None = None  # train small changes to the matrices, and the head, alone
    ema_decay: float | None = None  # of the running mean of the weights (EMA, Polyak)
    # compute blocks again in the backward pass, to save memory: all, every k-th, or of all blocks
    # what costs little
    checkpointing: bool | int | Literal["selective"] = False
    compile: bool = False  # block by block
    tf32: bool = False  # products in float32 lose 13 bits, and are several times faster on GPUs
    channels_last: bool = False  # convolutions with channels innermost in memory
    parallel: Literal["ddp", "fsdp", "hsdp"] = "ddp"  # where there are many processes
    sharding: Sharding = field(default_factory=Sharding)  # of fsdp and hsdp
    workers: int = 0
    seed: int = 0
    reasons: tuple[str, ...] = ()  # why it was chosen so, for the person who reads it

    def __post_init__(self) -> None:
        check("val_share", self.val_share, at_least=0, below=1)
        check("train_share", self.train_share, above=0, at_most=1)
        check("max_broken", self.max_broken, at_least=0, at_most=1)
        check_count("batch_size", self.batch_size, at_least=1)
        check_count("accumulate", self.accumulate, at_least=1)
        check_count("workers", self.workers, at_least=0)
        if not isinstance(self.checkpointing, str):
            check_count("checkpointing", int(self.checkpointing), at_least=0)
        check_count("seed", self.seed, at_least=0, below=2**63)
        if self.batch_size % self.accumulate:
            most = min(self.accumulate, self.batch_size)
            divisor = next(one for one in range(most, 0, -1) if self.batch_size % one == 0)
            raise UserError(
                f"accumulate must be a divisor of batch_size {self.batch_size}, got "
                f"{self.accumulate}: use {divisor}"
            )
        if self.folds is not None:
            check_count("folds", self.folds, at_least=2)
        if self.fold is not None:
            check_count("fold", self.fold, at_least=1)
        if (self.folds is None) != (self.fold is None):
            raise UserError("fold and folds must be given together: fold 1 of folds 5")
        if self.ema_decay is not None:
            check("ema_decay", self.ema_decay, above=0, below=1)
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens, at_least=1)
        if self.native_resolution:
            check_native(self)
        elif self.max_tokens is not None:
            raise UserError("max_tokens must be left out without native_resolution=True")

    @property
    def has_labels(self) -> bool:
        """Whether labels are learnt."""
        return not isinstance(self.goal, Masked)


def check_native(recipe: Recipe) -> None:
    """Refuse what images of different sizes cannot be trained with, and say why."""
    augmentation = recipe.augmentation
    refused = {
        "augmentation.mixup must be 0": (augmentation.mixup, "it blends images of one size"),
        "augmentation.cutmix must be 0": (augmentation.cutmix, "it blends images of one size"),
        "augmentation.sides must be empty": (augmentation.sides, "each image has its own size"),
        "augmentation.progressive must be empty": (
            augmentation.progressive,
            "each image has its own size",
        ),
        "compile must be off": (recipe.compile, "every batch has another shape"),
        "checkpointing must be off": (recipe.checkpointing, "blocks are computed from outside"),
        "parallel must be ddp": (recipe.parallel != "ddp", "blocks are computed from outside"),
        "goal.objective must be labels": (
            not isinstance(recipe.goal, Labels),
            "teachers and masks read images of one size",
        ),
    }
    for rule, (broken, why) in refused.items():
        if broken:
            raise UserError(f"{rule} with native_resolution=True: {why}")
