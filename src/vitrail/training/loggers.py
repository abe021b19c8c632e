"""Where metrics go beside `metrics.jsonl`: TensorBoard, Weights & Biases, MLflow.

Each is opened when a run starts and closed when it ends. `OUT/loggers.json` keeps the id that a
service gave the run, so that a resumed run continues the same one. Addresses, keys and offline mode
are the services' own environment variables (WANDB_MODE, WANDB_API_KEY, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LoggerName: TypeAlias = Literal["tensorboard", "wandb", "mlflow"]
IDS = "loggers.json"
PROJECT = "vitrail"  # of W&B, and the experiment of MLflow, unless their own variables name one
MAX_PARAMETER = 500  # letters of a setting in MLflow
SECONDS_TO_CONNECT = 30


class MetricLogger(Protocol):
    """Gets every line of metrics: finite values by name."""

    def start(self, step: int) -> None:
        """The run goes on from here; what came after is void."""
        ...

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Events in OUT/tensorboard."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.board: SummaryWriter | None = None

    def start(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.close()
        # purge_step hides what an earlier, longer attempt wrote
        purge = step + 1 if step else None
        self.board = SummaryWriter(str(self.out / "tensorboard"), purge_step=purge)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        assert self.board is not None
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


class WeightsAndBiases:
    """A run of W&B, by default in the project vitrail; its files are in OUT/wandb."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, self.settings = out, settings
        self.run: Any = None

    def start(self, step: int) -> None:
        if self.run is not None:
            return  # W&B keeps the first value of a step; a repeated step has the same
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=remembered_id(self.out, "wandb", lambda: secrets.token_hex(8)),
            name=self.out.name,
            dir=str(self.out),
            config=dict(self.settings),
            resume="allow",
            settings=wandb.Settings(
                console="off", silent=True, init_timeout=SECONDS_TO_CONNECT, x_disable_stats=True
            ),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None


class MLflow:
    """A run of MLflow, by default of the experiment vitrail, in OUT/mlruns unless
    MLFLOW_TRACKING_URI names a server."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, self.settings = out, settings
        self.client: Any = None
        self.run_id = ""

    def start(self, step: int) -> None:
        if self.client is not None:
            return
        from mlflow import MlflowClient
        from mlflow.entities import Param

        place = os.environ.get("MLFLOW_TRACKING_URI")
        if place is None:
            # files beside the run: MLflow asks for this word since it prefers a database
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            place = (self.out / "mlruns").resolve().as_uri()
        self.client = MlflowClient(tracking_uri=place)
        self.run_id = remembered_id(self.out, "mlflow", self.create)
        self.client.update_run(self.run_id, status="RUNNING")
        known = self.client.get_run(self.run_id).data.params
        settings = [
            Param(name, str(value)[:MAX_PARAMETER])
            for name, value in self.settings.items()
            if name not in known
        ]
        self.client.log_batch(self.run_id, params=settings[:100])

    def create(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(name)
        number = self.client.create_experiment(name) if found is None else found.experiment_id
        return str(self.client.create_run(number, run_name=self.out.name).info.run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        if self.client is not None:
            self.client.set_terminated(self.run_id)
            self.client = None


class Guarded:
    """A logger that never ends a run: what fails is told once, and the logger left out then."""

    def __init__(self, name: str, logger: MetricLogger, tell: Callable[[str], None]) -> None:
        self.name, self.logger, self.tell, self.off = name, logger, tell, False

    def start(self, step: int) -> None:
        self.attempt(lambda: self.logger.start(step))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.attempt(lambda: self.logger.write(step, values))

    def close(self) -> None:
        self.attempt(self.logger.close)

    def attempt(self, work: Callable[[], None]) -> None:
        if self.off:
            return
        try:
            work()
        except Exception as error:  # the services fail in ways of their own
            self.off = True
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            self.tell(
                f"{self.name} has failed and is off for the rest of the run, metrics.jsonl has "
                f"all: {reason}"
            )


def open_loggers(
    names: tuple[LoggerName, ...],
    out: Path,
    settings: Mapping[str, Any],
    tell: Callable[[str], None],
) -> list[MetricLogger]:
    """The loggers of a run; `settings` are its recipe's, by dotted names."""
    found: list[MetricLogger] = []
    for name in names:
        logger: MetricLogger = TensorBoard(out)
        if name == "wandb":
            logger = WeightsAndBiases(out, settings)
        elif name == "mlflow":
            logger = MLflow(out, settings)
        found.append(Guarded(name, logger, tell))
    return found


def check_installed(names: tuple[LoggerName, ...]) -> None:
    """Refuse before the first step what is not there at all."""
    from importlib.util import find_spec

    for name in names:
        if name != "tensorboard" and find_spec(name) is None:
            raise UserError(
                f"monitor.loggers: {name} is not installed: pip install 'vitrail[log]', or leave "
                "it out"
            )


def remembered_id(out: Path, name: str, create: Callable[[], str]) -> str:
    """The id of the run at a service: created once, and kept beside the run."""
    path = out / IDS
    known: dict[str, str] = {}
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
    if name not in known:
        known[name] = create()
        path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known[name]


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names.

    >>> flat_settings({"seed": 0, "optimiser": {"lr": 0.1}})
    {'seed': 0, 'optimiser.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat_settings(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
