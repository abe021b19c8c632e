"""N + M steps are the same bits as N steps, any kind of death, and M more."""

import hashlib
import json
import multiprocessing
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.world import RECIPE, trainer, unlabelled
from vitrail import UserError, load
from vitrail.data.loader import Batch, EvalLoader
from vitrail.training.checkpoint import Saved, newest_step, steps_in, write_step
from vitrail.training.log import Log
from vitrail.training.loop import Trainer
from vitrail.training.progress import Progress
from vitrail.training.recipe import Lora, Monitor, Optimiser, Schedule
from vitrail.training.shards import Shards, shard_name

PER_SAMPLE = replace(RECIPE.augmentation, policy="trivialaugment", repeats=3)
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd in parts without an average": {
        "optimiser": Optimiser(name="sgd", lr=0.05),
        "accumulate": 4,
        "ema_decay": None,
    },
    "muon per sample": {
        "optimiser": Optimiser(name="muon", lr=3e-3),
        "augmentation": PER_SAMPLE,
    },
    "lora in half precision": {"lora": Lora(rank=2), "precision": "float16"},
}
UNLABELLED = ("masked-patch", "mae", "simmim", "beit", "tokenizer")


def state_digest(saved: Saved) -> str:
    """Every bit of the weights, their average and the optimiser."""
    digest = hashlib.sha256()
    for name, tensor in sorted(saved.tensors.items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def fingerprint(out: Path) -> str:
    """Every bit of the weights, their average and the optimiser at the end, and what was logged;
    but the seconds that a run waited for its data are the machine's."""
    saved = newest_step(out / "steps")
    assert saved is not None
    digest = hashlib.sha256(state_digest(saved).encode())
    for name in ("data_seconds", "seconds"):
        saved.run_state["tally"].pop(name)
    digest.update(json.dumps(saved.run_state, sort_keys=True).encode())
    for line in (out / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        values.pop("data_seconds")
        values.pop("seconds")
        digest.update(json.dumps(values, sort_keys=True).encode())
    return digest.hexdigest()


class Death(Exception):  # noqa: N818
    pass


def die_at(step: int, run: Trainer) -> None:
    """The process ends in the middle of a step, after gradients and before anything is kept."""
    train_step = run.train_step

    def step_and_die(batch: Batch, lr: float | None = None) -> None:
        train_step(batch, lr)
        if run.step == step:
            raise Death

    run.train_step = step_and_die  # type: ignore[method-assign]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [*KINDS, *UNLABELLED])
def test_a_run_that_died_ends_as_if_it_had_not(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # half precision is refused on such CPUs for being slow, not for being wrong
    monkeypatch.setattr("vitrail.training.loop.check_precision", lambda *_: None)
    changes = KINDS[kind] if kind in KINDS else unlabelled(kind, tmp_path / "words")
    trainer(tmp_path / "whole", **changes).run()
    out = tmp_path / "died"
    # the first step, the middle of an epoch, and the last step; where nothing or everything has
    # been saved, all kinds are alike
    for step in (0, 7, 11) if kind in ("adamw", "mae") else (7,):
        run = trainer(out, **changes)
        die_at(step, run)
        with pytest.raises(Death):
            run.run(resume=True)
    trainer(out, **changes).run(resume=True)
    assert fingerprint(out) == fingerprint(tmp_path / "whole")


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    for workers in (0, 2):
        trainer(tmp_path / str(workers), workers=workers, augmentation=PER_SAMPLE).run()
    assert fingerprint(tmp_path / "0") == fingerprint(tmp_path / "2")


def go_on(out: Path, workers: int, changes: dict[str, Any]) -> None:
    multiprocessing.set_start_method("fork", force=True)  # workers notice that their parent died
    torch.set_num_threads(1)
    trainer(out, workers=workers, **changes).run(resume=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "steps"), [(3, 36), pytest.param(20, 240, marks=pytest.mark.slow)]
)
def test_killed_many_times_at_any_moment(kills: int, steps: int, tmp_path: Path) -> None:
    """Real processes and kill -9, wherever they are: reading, stepping, writing; every life of the
    run has another number of workers."""
    killed, equal, same = survive_kills(kills, steps, tmp_path)
    assert killed == kills, f"the run ended after {killed} kills: make it longer"
    assert equal == kills
    assert same


def survive_kills(kills: int, steps: int, tmp_path: Path) -> tuple[int, int, bool]:
    """How often a run was killed, how often it had lost nothing then (its newest checkpoint is that
    of a run that was not killed, to the bit), and whether it ended as that one."""
    changes: dict[str, Any] = {
        "augmentation": PER_SAMPLE,
        "schedule": Schedule(steps=steps, warmup=4),
    }
    every_step = replace(RECIPE.monitor, keep=steps)
    trainer(tmp_path / "whole", **changes, monitor=every_step).run()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.training.world"])
    out, draw = tmp_path / "killed", random.Random(0)
    killed, equal, seen = 0, 0, set()
    while killed < kills:
        before = newest_step(out / "steps")
        process = processes.Process(target=go_on, args=(out, draw.choice((0, 0, 1, 2)), changes))
        process.start()
        deadline = time.monotonic() + draw.uniform(0.05, steps / 500)
        began = before.step if before else 0
        while process.is_alive() and (
            time.monotonic() < deadline or (last_step(out) <= began and killed % 4)
        ):
            time.sleep(0.005)  # three of four lives get somewhere before they end
        if not process.is_alive():
            break
        process.kill()
        process.join()
        killed += 1
        equal += is_of_run(newest_step(out / "steps"), tmp_path / "whole")
        seen.add(last_step(out))
    assert len(seen) > kills // 4
    trainer(out, **changes).run(resume=True)
    return killed, equal, fingerprint(out) == fingerprint(tmp_path / "whole")


def is_of_run(saved: Saved | None, whole: Path) -> bool:
    """Whether a checkpoint is that of another run at the same step; or there is none yet."""
    if saved is None:
        return True
    tensors = Shards(whole / "steps" / f"step-{saved.step:09d}").read_all()
    return state_digest(saved) == state_digest(replace(saved, tensors=tensors))


def last_step(out: Path) -> int:
    steps = steps_in(out / "steps")
    return int(steps[-1].name.removeprefix("step-")) if steps else 0


def test_ctrl_c_ends_with_the_step_and_loses_nothing(tmp_path: Path) -> None:
    trainer(tmp_path / "whole").run()
    run = trainer(tmp_path / "stopped")

    def press(progress: Progress) -> None:
        if progress.step == 7:
            signal.raise_signal(signal.SIGINT)

    run.on_step = press
    outcome = run.run()
    assert (outcome.stopped, outcome.step) == (True, 7)
    trainer(tmp_path / "stopped").run(resume=True)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


def test_checkpointing_blocks_changes_nothing_but_memory(tmp_path: Path) -> None:
    for checkpointing in (False, True):
        trainer(tmp_path / str(checkpointing), checkpointing=checkpointing).run()
    assert fingerprint(tmp_path / "False") == fingerprint(tmp_path / "True")


@pytest.mark.slow
def test_what_was_trained_can_be_loaded(tmp_path: Path) -> None:
    seldom = Monitor(eval_every_epochs=2, save_every_steps=40)
    outcome = trainer(tmp_path / "run", schedule=Schedule(steps=80, warmup=4), monitor=seldom).run()
    best = load(tmp_path / "run" / "best")
    assert best.passport.labels == ("across", "down")
    assert best.passport.scores["accuracy"] == outcome.run_state.best
    assert best.passport.provenance["recipe"]["data"] == "stripes"
    assert outcome.run_state.best is not None
    assert outcome.run_state.best > 0.9
    assert load(tmp_path / "run" / "last").config == best.config


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    out = tmp_path / "run"
    trainer(out).run()
    newest = steps_in(out / "steps")[-1]
    state = newest / shard_name(0)
    state.write_bytes(state.read_bytes()[:-3])
    saved = newest_step(out / "steps")
    assert saved is not None
    assert saved.step < 12
    whole = trainer(tmp_path / "whole").run()
    again = trainer(out).run(resume=True)
    assert again.step == whole.step
    assert fingerprint(out) == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize("keep", [1, 2])
def test_what_is_saved_after_a_damaged_checkpoint_stays(keep: int, tmp_path: Path) -> None:
    """The run has gone on from an older one: steps that it takes again have smaller numbers."""

    def save(step: int) -> None:
        write_step(tmp_path, Saved(step, {"now.x": torch.zeros(2)}, {}), keep=keep)

    for step in (4, 9):
        save(step)
    (tmp_path / "step-000000009" / shard_name(0)).write_bytes(b"damaged")
    for step in (5, 6, 7):
        save(step)
        saved = newest_step(tmp_path)
        assert saved is not None
        assert saved.step == step
    assert len(steps_in(tmp_path)) == keep


def in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations of 40 images in five batches."""

    def small(source: Any, how: Any, batch_size: int, **options: Any) -> EvalLoader:
        return EvalLoader(source, how, 8, **options)

    monkeypatch.setattr("vitrail.training.evaluator.EvalLoader", small)


def test_a_signal_ends_an_evaluation_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations may take longer than a scheduler waits."""
    in_small_batches(monkeypatch)
    trainer(tmp_path / "whole").run()
    run, computed = trainer(tmp_path / "stopped"), [0]
    outputs = run.task.objective.outputs

    def stop(*args: Any) -> Any:
        computed[0] += 1
        if computed[0] == 7:  # the second batch of the second evaluation
            signal.raise_signal(signal.SIGTERM)
        return outputs(*args)

    run.task.objective.outputs = stop  # type: ignore[method-assign, assignment]
    outcome = run.run()
    assert (outcome.stopped, outcome.step, outcome.stopped_by) == (True, 6, "SIGTERM")
    assert computed == [7]
    trainer(tmp_path / "stopped").run(resume=True)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


def test_a_second_signal_does_not_end_the_last_save(tmp_path: Path) -> None:
    def too_late(number: int, frame: object) -> None:
        raise AssertionError("the run was ended while it was saved")

    run = trainer(tmp_path)
    finish_all = run.saver.finish_all

    def press(now: Progress) -> None:
        if now.step == 7:
            signal.raise_signal(signal.SIGTERM)

    def press_again(*args: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        finish_all(*args)

    run.on_step, run.saver.finish_all = press, press_again  # type: ignore[method-assign, assignment]
    before = signal.signal(signal.SIGTERM, too_late)
    try:
        run.run()
        assert signal.getsignal(signal.SIGTERM) is too_late
    finally:
        signal.signal(signal.SIGTERM, before)
    assert last_step(tmp_path) == 7


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", ["stop", "skip", "back"])
def test_a_loss_that_is_not_finite(policy: str, tmp_path: Path) -> None:
    monitor = replace(RECIPE.monitor, save_every_steps=5, nan=policy)  # type: ignore[arg-type]
    run = trainer(tmp_path / policy, monitor=monitor)
    forward = run.task.objective.forward

    def forward_and_spoil(images: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        losses = forward(images, targets)
        spoil = torch.tensor(float("nan")) if run.step == 8 else torch.tensor(1.0)
        return {"loss": losses["loss"] * spoil}

    run.task.objective.forward = forward_and_spoil  # type: ignore[method-assign]
    if policy == "stop":
        with pytest.raises(UserError, match="diverged at step 8: the loss is nan"):
            run.run()
        return
    outcome = run.run()
    assert outcome.step == outcome.total
    assert outcome.run_state.skip == [8]
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())


def test_patience_ends_a_run(tmp_path: Path) -> None:
    run = trainer(
        tmp_path / "run",
        schedule=Schedule(steps=500, warmup=4),
        monitor=Monitor(eval_every_epochs=0.5, save_every_steps=50, patience=3),
    )
    outcome = run.run()
    assert outcome.step < 500
    assert outcome.run_state.since_best == 3
    evaluations = [line for line in Log.read(tmp_path / "run") if "accuracy" in line]
    scores = [line["accuracy"] for line in evaluations]
    assert len(scores) == scores.index(max(scores)) + 1 + 3
