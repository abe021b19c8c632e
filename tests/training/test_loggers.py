"""Weights & Biases and MLflow, their own packages in offline mode; a failure never ends a run."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_resume import Death, die_at
from tests.training.world import RECIPE, trainer, unlabelled
from vitrail import UserError
from vitrail.training.log import Log
from vitrail.training.loggers import Guarded, check_installed, open_loggers, remembered_id
from vitrail.training.progress import Progress
from vitrail.training.recipe import Monitor


def test_one_logger_that_fails_is_left_out_and_named(tmp_path: Path) -> None:
    class Broken:
        def start(self, step: int) -> None: ...
        def write(self, step: int, values: Any) -> None:
            raise ConnectionError("no route to host\nmore")

        def close(self) -> None:
            raise AssertionError("closed although it is off")

    log = Log(tmp_path, 0, loggers=("tensorboard",))
    log.loggers.append(Guarded("wandb", Broken(), log.problems.append))
    log.write(1, loss=2.0)
    log.write(2, loss=1.0)
    (problem,) = log.take_problems()
    assert problem.startswith("wandb has failed and is off")
    assert problem.endswith("no route to host")
    assert not log.take_problems()
    log.close()
    assert [line["loss"] for line in Log.read(tmp_path)] == [2.0, 1.0]
    assert list((tmp_path / "tensorboard").iterdir())


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes: the system writes a part, then refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_wait_for_room_on_the_disk(tmp_path: Path) -> None:
    log = Log(tmp_path, 0, loggers=())
    log.write(1, loss=4.0)
    before = log.path.read_bytes()
    with no_room(len(before) + 10):
        log.write(2, loss=3.0)
        log.write(3, loss=2.0)
    assert log.path.read_bytes() == before  # no half line
    (problem,) = log.take_problems()  # once
    assert problem.startswith(f"{log.path}: cannot be written: ")
    assert problem.endswith("; lines are kept until they can be")
    log.write(4, loss=1.0)
    assert not log.take_problems()
    assert [line["step"] for line in Log.read(tmp_path)] == [1, 2, 3, 4]
    with no_room(1):
        log.write(5, loss=0.5)
    log.close()
    assert [line["step"] for line in Log.read(tmp_path)] == [1, 2, 3, 4, 5]


def test_lines_that_stay_are_there_at_every_moment(tmp_path: Path) -> None:
    log = Log(tmp_path, 0, loggers=())
    for step in (1, 2, 3):
        log.write(step, loss=1.0)
    with log.path.open("a") as file:
        file.write('{"step": 4, "lo')  # it was killed here
    with no_room(1):
        again = Log(tmp_path, 2, loggers=())
    assert not again.take_problems()
    assert [line["step"] for line in Log.read(tmp_path)] == [1, 2]
    with no_room(1):
        again.write(3, loss=2.0)
        again.cut(1)  # the run goes back: what was not written yet is void too
    again.write(2, loss=5.0)
    assert [(line["step"], line["loss"]) for line in Log.read(tmp_path)] == [(1, 1.0), (2, 5.0)]


def test_a_sheet_of_images_that_cannot_be_written_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rows: Any, how: Any, out: Path, step: int) -> Path:
        raise UserError(f"{out}: cannot be written: No space left on device")

    monkeypatch.setattr("vitrail.training.evaluator.write_sheet", refuse)
    run, messages = trainer(tmp_path, **unlabelled("mae")), list[str]()
    run.on_step = lambda now: messages.extend(now.messages)
    assert run.run().step == 12
    assert len(messages) == 4  # an evaluation each
    assert messages[0].endswith("No space left on device; training goes on")


@pytest.mark.slow
def test_the_run_tells_of_it_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said: list[str] = []

    def note(now: Progress) -> None:
        said.extend(now.messages)

    run = trainer(tmp_path / "run", monitor=Monitor(loggers=("mlflow",)))
    run.on_step = note
    assert run.run().step == 12
    assert len(said) == 1
    assert "mlflow has failed" in said[0]


def test_what_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="wandb is not installed"):
        check_installed(("tensorboard", "wandb"))
    check_installed(("tensorboard",))


def test_ids_are_kept(tmp_path: Path) -> None:
    assert remembered_id(tmp_path, "wandb", lambda: "one") == "one"
    assert remembered_id(tmp_path, "mlflow", lambda: "two") == "two"
    assert remembered_id(tmp_path, "wandb", lambda: "three") == "one"


@pytest.mark.slow
def test_mlflow_has_every_line_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out, monitor = tmp_path / "run", Monitor(loggers=("mlflow",), log_every_steps=2)
    killed = trainer(out, monitor=monitor)
    die_at(7, killed)
    with pytest.raises(Death):
        killed.run()
    trainer(out, monitor=monitor).run(resume=True)
    client = mlflow.MlflowClient(tracking_uri=(out / "mlruns").resolve().as_uri())
    number = client.get_experiment_by_name("vitrail").experiment_id
    (run,) = client.search_runs([number])
    assert run.info.run_id == json.loads((out / "loggers.json").read_text())["mlflow"]
    assert run.info.status == "FINISHED"
    assert run.data.params["optimiser.lr"] == str(RECIPE.optimiser.lr)
    history = {one.step: one.value for one in client.get_metric_history(run.info.run_id, "loss")}
    assert history == {line["step"]: line["loss"] for line in Log.read(out)}


@pytest.mark.slow
def test_wandb_continues_the_same_run_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    problems: list[str] = []
    ids = set()
    for first in (1, 3):
        (logger,) = open_loggers(("wandb",), tmp_path, {"optimiser.lr": 0.1}, problems.append)
        logger.start(first - 1)
        ids.add(logger.logger.run.id)  # type: ignore[attr-defined]
        for step in (first, first + 1):
            logger.write(step, {"loss": 1 / step})
        logger.close()
    assert problems == []
    assert ids == {json.loads((tmp_path / "loggers.json").read_text())["wandb"]}
    files = list((tmp_path / "wandb").glob(f"offline-run-*-{ids.pop()}/*.wandb"))
    assert files
    assert all(file.stat().st_size for file in files)
