"""What happens to a run beside death: memory that runs out, readers that die, storage that is away
for a while, processes that hang."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_outage import Shelf
from tests.training.test_resume import PER_SAMPLE, fingerprint, in_small_batches
from tests.training.world import RECIPE, Stripes, accuracy, trainer
from vitrail import UserError
from vitrail.data.samples import MAX_DEATHS
from vitrail.data.source import Splits
from vitrail.training.checkpoint import RUN, newest_step, steps_in
from vitrail.training.heartbeat import Beat, Heartbeat, describe
from vitrail.training.loop import Trainer
from vitrail.training.micro_batch import FILE, more_parts
from vitrail.training.outage import Waiting
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Optimiser
from vitrail.training.shards import INDEX, shard_name
from vitrail.training.world import World
from vitrail.weights.files import digest, write_tensors

# No mixing and nothing that depends on what is beside an image: parts change rounding alone.
PLAIN: dict[str, Any] = {"ema_decay": None, "optimiser": Optimiser(name="sgd", lr=0.05)}


def test_memory_that_runs_out_halves_the_parts(tmp_path: Path) -> None:
    trainer(tmp_path / "whole", accumulate=2, **PLAIN).run()
    run = trainer(tmp_path / "small", **PLAIN)
    backward = run.backward

    def full(*args: Any) -> torch.Tensor:
        if len(args[-1].all) == 1:  # the whole batch at once
            raise torch.OutOfMemoryError("CUDA out of memory")
        return backward(*args)

    run.backward = full  # type: ignore[method-assign, assignment]
    shown = list[str]()
    run.on_step = lambda now: shown.extend(now.messages)
    run.run()
    assert shown == ["out of memory at step 0: batches are computed in 2 parts from here on"]
    assert fingerprint(tmp_path / "small") == fingerprint(tmp_path / "whole")
    assert json.loads((tmp_path / "small" / FILE).read_text()) == {"accumulate": 2}
    again = trainer(tmp_path / "small", **PLAIN)
    again.run(resume=True)
    assert again.accumulate == 2


def test_memory_that_is_too_small_for_one_image_is_a_sentence(tmp_path: Path) -> None:
    batch = next(trainer(tmp_path).stream.batches(0, 1))
    with pytest.raises(UserError, match="not even one image at a time"):
        more_parts(16, batch, tmp_path, World())
    with pytest.raises(UserError, match="process 1 ran out of memory: resume the run"):
        more_parts(1, batch, tmp_path, World(rank=1, size=2))
    assert json.loads((tmp_path / FILE).read_text()) == {"accumulate": 2}


@pytest.mark.slow
@pytest.mark.alone  # it kills every child of its process
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_reader_that_dies_is_replaced(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"augmentation": PER_SAMPLE, "workers": 1}
    trainer(tmp_path / "whole", augmentation=PER_SAMPLE).run()
    run, killed, messages = trainer(tmp_path / "run", **changes), list[int](), list[str]()

    def kill(now: Any) -> None:
        messages.extend(now.messages)
        if now.step == 3:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            for child in map(int, children):
                if b"forkserver" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(child, signal.SIGKILL)
                    killed.append(child)
            time.sleep(0.1)

    run.on_step = kill
    run.run()
    assert killed
    assert any("a process that reads images has died" in message for message in messages)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


class Deadly(Stripes):
    """Images of which one kills who reads it, so many times."""

    uniform = False

    def __init__(self, count: int, deaths: Path, times: int) -> None:
        super().__init__(count, seed=1)
        self.deaths, self.times, self.reader = deaths, times, os.getpid()

    def read(self, index: int) -> Any:
        if index == 21 and os.getpid() != self.reader:
            died = len(list(self.deaths.iterdir()))
            if died < self.times:
                (self.deaths / str(died)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("times", [1, 4])
def test_a_reader_that_dies_in_an_evaluation_is_replaced(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deaths").mkdir()
    in_small_batches(monkeypatch)
    trainer(tmp_path / "whole").run()
    val = Deadly(40, tmp_path / "deaths", times)
    splits = Splits({"train": Stripes(100), "val": val})
    task = prepare_task(replace(RECIPE, workers=1), splits, accuracy)
    messages = list[str]()
    run = Trainer(task, tmp_path / "run", lambda now: messages.extend(now.messages))
    if times > MAX_DEATHS:
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            run.run()
        return
    run.run()
    assert [text.partition(":")[0] for text in messages] == ["a process that reads images has died"]
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


def test_an_evaluation_is_no_larger_than_a_part_of_a_batch(tmp_path: Path) -> None:
    splits = Splits({"train": Stripes(512), "val": Stripes(300)})
    for accumulate, sizes in ((1, [256, 44]), (2, [128, 128, 44]), (8, [64, 64, 64, 64, 44])):
        recipe = replace(RECIPE, batch_size=256, accumulate=accumulate)
        run = Trainer(prepare_task(recipe, splits, accuracy), tmp_path)
        assert [len(part) for part in run.evaluator.batches(run.task).parts] == sizes


def test_every_batch_of_an_evaluation_is_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_batches(monkeypatch)
    run, marks = trainer(tmp_path), list[tuple[str, bool]]()

    def mark(doing: str, *, may_take_long: bool = False) -> None:
        marks.append((doing, may_take_long))

    run.mark = mark  # type: ignore[method-assign]
    run.evaluate()
    assert marks == [
        *((f"batch {number} of the evaluation", False) for number in range(5)),
        ("the scores of the evaluation", True),
    ]


def test_storage_that_comes_back_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, shelf = Shelf(100, ()), Shelf(100, ())
    pauses = list[float]()

    def lose(now: Any) -> None:
        if now.step == 4 and not pauses:
            shelf.lost = set(range(100))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            shelf.lost = set()

    monkeypatch.setattr(Waiting.wait, "__defaults__", (sleep,))
    monitor = replace(RECIPE.monitor, outage_minutes=1.0)
    for out, train in ((tmp_path / "whole", whole), (tmp_path / "run", shelf)):
        splits = Splits({"train": train, "val": Stripes(40, seed=1)})
        task = prepare_task(replace(RECIPE, monitor=monitor), splits, accuracy)
        Trainer(task, out, lose if train is shelf else lambda _: None).run()
    assert pauses == [1.0, 2.0, 4.0]
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


def test_losses_that_stay_on_the_device_are_the_same(tmp_path: Path) -> None:
    """As on a GPU: brought from there for lines of metrics and checkpoints alone."""
    trainer(tmp_path / "each").run()
    run = trainer(tmp_path / "seldom")
    run.read_losses_every = run.flags_every = 10
    run.run()
    assert fingerprint(tmp_path / "seldom") == fingerprint(tmp_path / "each")


def test_a_loss_that_is_not_finite_is_found_late_but_never_saved(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.read_losses_every = 10
    forward = run.task.objective.forward

    def spoil(images: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        factor = float("nan") if run.step >= 7 else 1.0
        return {"loss": forward(images, targets)["loss"] * factor}

    run.task.objective.forward = spoil  # type: ignore[method-assign]
    with pytest.raises(UserError, match="diverged at step 7"):
        run.run()
    run.saver.wait()
    saved = newest_step(tmp_path / "steps")
    assert saved is not None
    assert saved.step == 5


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Those wrote all tensors to one file, and a manifest without sizes."""
    trainer(tmp_path / "whole").run()
    out = tmp_path / "old"
    run = trainer(out)
    run.on_step = lambda now: signal.raise_signal(signal.SIGINT) if now.step == 7 else None
    run.run()
    newest = steps_in(out / "steps")[-1]
    saved = newest_step(out / "steps")
    assert saved is not None
    (newest / INDEX).unlink()
    (newest / shard_name(0)).unlink()
    write_tensors(saved.tensors, newest / "state.safetensors")
    sums = {name: digest(newest / name) for name in ("state.safetensors", RUN)}
    (newest / "manifest.json").write_text(json.dumps({"files": sums}))
    trainer(out).run(resume=True)
    assert fingerprint(out) == fingerprint(tmp_path / "whole")


class Shelves(dict[str, str]):
    """A store in this process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def test_a_process_that_hangs_is_named() -> None:
    store, told = Shelves(), list[str]()
    make: Any = lambda rank: Heartbeat(  # noqa: E731
        store, rank, 2, patience=0.3, on_hang=told.append, seconds=0.02
    )
    main, other = make(0), make(1)
    for step in range(3):
        for beat in (main, other):
            beat.mark(f"reading the images of step {step}")
            beat.mark(f"step {step}")
        time.sleep(0.05)
    main.mark("reading the images of step 3")
    main.mark("step 3")
    other.mark("reading the images of step 3")
    deadline = time.monotonic() + 20
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    for beat in (main, other):
        beat.close()
    assert told == [
        "process 1 hangs (reading the images of step 3): the others have waited for it for 0 s"
    ]


def test_what_may_take_long_is_no_hanging() -> None:
    store, told = Shelves(), list[str]()
    main = Heartbeat(store, 0, 1, patience=0.05, on_hang=told.append, seconds=0.01)
    main.mark("the checkpoint", may_take_long=True)
    time.sleep(0.3)
    main.close()
    assert not told


def test_a_silent_process_comes_before_a_slow_one() -> None:
    beats = [Beat(0, 9, "step 4", 99.0), Beat(1, 9, "step 4", 20.0), Beat(2, 8, "step 4", 99.0)]
    told = describe(beats, now=100.0, patience=600)
    assert told == (
        "process 1 does not respond (last seen: step 4): the others have waited for it for 10 "
        "minutes"
    )
    beats = [Beat(0, 9, "step 4", 99.0), *(Beat(rank, 9, "step 4", 20.0) for rank in (1, 2))]
    assert describe(beats, now=100.0, patience=600) == (
        "processes 1, 2 do not respond (last seen: step 4): the others have waited for them for 10 "
        "minutes"
    )
    beats = [Beat(0, 9, "step 4", 99.0), *(Beat(rank, 8, "step 3", 99.0) for rank in (1, 2))]
    assert describe(beats, now=100.0, patience=600) == (
        "processes 1, 2 hang (step 3): the others have waited for them for 10 minutes"
    )
    same = [Beat(rank, 5, "step 2", 99.0) for rank in range(3)]
    assert describe(same, now=100.0, patience=600).startswith("all processes wait for each other")
