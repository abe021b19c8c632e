"""Weights & Biases and MLflow, their own packages in offline mode; a failure never ends a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_resume import Death, die_at
from tests.training.world import RECIPE, trainer
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
