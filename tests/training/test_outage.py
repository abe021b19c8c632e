"""Images that cannot be read or decoded: a few are left out and named, many stop the run."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.test_resume import fingerprint
from tests.training.world import RECIPE, Stripes, accuracy
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.data.images import BadImage, Unreadable
from vitrail.data.samples import SampleDataset
from vitrail.data.source import Splits
from vitrail.data.sources import places
from vitrail.training.checkpoint import newest_step
from vitrail.training.goal import Labels
from vitrail.training.log import Log
from vitrail.training.loop import Trainer
from vitrail.training.outage import BRIEF, Waiting
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Schedule
from vitrail.training.task import Outcome


class Shelf(Stripes):
    """Stripes of which some cannot be had, from some moment on."""

    uniform = False

    def __init__(self, count: int, lost: Any, kind: type[BadImage] = Unreadable) -> None:
        super().__init__(count)
        self.lost, self.kind, self.reads = set(lost), kind, 0

    def read(self, index: int) -> Any:
        self.reads += 1
        if index in self.lost:
            raise self.kind(self.name(index), "cannot be read: Input/output error")
        return super().read(index)


def run(
    out: Path, train: Shelf, *, resume: bool = False, val: Any = None, **changes: Any
) -> Outcome:
    recipe = replace(RECIPE, **changes)
    splits = Splits({"train": train, "val": val or Stripes(40, seed=1)})
    return Trainer(prepare_task(recipe, splits, accuracy), out).run(resume=resume)


@pytest.mark.parametrize("kind", [Unreadable, BadImage])
def test_an_outage_stops_the_run(kind: type[BadImage], tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"stopped at step 0: 1\d of 16 images of step 0 .*max_broken"
    ):
        run(tmp_path, Shelf(100, range(99), kind))
    assert newest_step(tmp_path / "steps") is None


@pytest.mark.slow
def test_a_small_share_is_too_much_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"6 of 400 training images .*Input/output error.*0\.01"):
        run(tmp_path / "run", Shelf(400, range(0, 400, 40)), schedule=Schedule(epochs=2))
    outcome = run(tmp_path / "more", Shelf(400, range(0, 400, 40)), max_broken=0.1)
    assert outcome.step == outcome.total
    few = run(tmp_path / "few", Shelf(100, [3, 50]))  # two of a hundred are left out and named
    assert sorted(few.run_state.broken) == ["stripes/3", "stripes/50"]


def test_after_an_outage_a_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    run(tmp_path / "whole", Shelf(100, []))
    shelf = Shelf(100, [])
    out = tmp_path / "run"
    recipe = replace(RECIPE, monitor=replace(RECIPE.monitor, save_every_steps=None))
    splits = Splits({"train": shelf, "val": Stripes(40, seed=1)})
    trainer = Trainer(prepare_task(recipe, splits, accuracy), out)

    def pull_the_plug(now: Any) -> None:
        if now.step == 8:
            shelf.lost = set(range(100))

    trainer.on_step = pull_the_plug
    with pytest.raises(UserError, match="saved at step 8"):
        trainer.run()
    saved = newest_step(out / "steps")
    assert saved is not None
    assert saved.step == 8
    shelf.lost = set()
    outcome = run(out, shelf, resume=True)
    assert outcome.run_state.broken == {}
    assert fingerprint(out) == fingerprint(tmp_path / "whole")


def test_validation_images_are_counted_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"30 of 40 validation images .*max_broken"):
        run(tmp_path, Shelf(100, []), val=Shelf(40, range(30)))


@pytest.mark.slow
@pytest.mark.parametrize("every", [0.5, 100])  # at an early evaluation, and at the last step
def test_after_a_validation_outage_a_run_goes_on(every: float, tmp_path: Path) -> None:
    monitor = replace(RECIPE.monitor, eval_every_epochs=every, save_every_steps=None)
    whole = run(tmp_path / "whole", Shelf(100, []), val=Shelf(40, []), monitor=monitor)
    val, out = Shelf(40, range(30)), tmp_path / "run"
    with pytest.raises(UserError, match=r"stopped and saved at step \d+: 30 of 40 validation"):
        run(out, Shelf(100, []), val=val, monitor=monitor)
    assert (out / "last").is_dir()
    val.lost = set()
    outcome = run(out, Shelf(100, []), val=val, monitor=monitor, resume=True)
    assert outcome.run_state.broken == {}
    assert outcome.run_state.best_scores == whole.run_state.best_scores
    assert [line["step"] for line in Log.read(out)] == [
        line["step"] for line in Log.read(tmp_path / "whole")
    ]
    assert fingerprint(out) == fingerprint(tmp_path / "whole")


def test_an_image_drawn_again_is_one_image(tmp_path: Path) -> None:
    goal = Labels(smoothing=0.1, balance=True)
    outcome = run(tmp_path, Shelf(18, [3]), goal=goal, schedule=Schedule(steps=12), batch_size=9)
    assert list(outcome.run_state.broken) == ["stripes/3"]
    assert outcome.step == 12


def test_storage_that_does_not_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "1.png"
    Image.new("L", (8, 8)).save(path)
    pauses, fails, read = list[float](), [2], places.read_bytes

    def flaky(*args: Any) -> bytes:
        if fails[0]:
            fails[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return read(*args)

    monkeypatch.setattr(places, "read_bytes", flaky)
    monkeypatch.setattr("vitrail.data.sources.places.time.sleep", pauses.append)
    assert places.image_bytes(str(path)) == path.read_bytes()
    assert len(pauses) == 2
    assert pauses == sorted(pauses)
    fails[0] = 10**6
    with pytest.raises(Unreadable, match="cannot be read: Input/output error"):
        places.image_bytes(str(path))
    assert len(pauses) == 2 + len(places.PAUSES)
    monkeypatch.undo()
    for missing in (str(tmp_path / "2.png"), "memory://bucket/2.png", str(path / "3.png")):
        with pytest.raises(BadImage) as found:  # at once, and for good
            places.image_bytes(missing)
        assert not isinstance(found.value, Unreadable)


class Flickering(Shelf):
    """A storage that loses some images, and finds them again after so many attempts."""

    def __init__(self, count: int, lost: Any, attempts: int) -> None:
        super().__init__(count, lost)
        self.attempts = attempts

    def read(self, index: int) -> Any:
        if index in self.lost:
            self.attempts -= 1
            if self.attempts < 0:
                self.lost = set()
        return super().read(index)


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "attempts"), [((3,), 2), (range(100), 40)])
def test_an_outage_that_ends_changes_nothing(
    lost: Any, attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few images or all, of training and of validation: they are waited for."""
    pauses = list[float]()
    monkeypatch.setattr(Waiting.wait, "__defaults__", (pauses.append,))
    monitor = replace(RECIPE.monitor, outage_minutes=10)
    run(tmp_path / "whole", Shelf(100, []), val=Shelf(40, []), monitor=monitor)
    train, val = Flickering(100, lost, attempts), Flickering(40, [], attempts)
    started = list[int]()
    recipe = replace(RECIPE, monitor=monitor)
    trainer = Trainer(
        prepare_task(recipe, Splits({"train": train, "val": val}), accuracy), tmp_path / "run"
    )
    train.lost = set()

    def lose(now: Any) -> None:
        if now.step >= 2 and not started:
            started.append(now.step)
            train.lost, val.lost = set(lost), set(range(40)) if len(lost) > 1 else set()

    trainer.on_step = lose
    outcome = trainer.run()
    assert not outcome.run_state.broken
    assert pauses[:2] == [1.0, 2.0]
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


def test_an_image_that_stays_away_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(Waiting.wait, "__defaults__", (pauses.append,))
    monitor = replace(RECIPE.monitor, outage_minutes=10)
    outcome = run(tmp_path, Shelf(100, [3]), monitor=monitor, schedule=Schedule(epochs=3))
    assert list(outcome.run_state.broken) == ["stripes/3"]
    assert sum(pauses) == 60 * BRIEF


def test_a_batch_does_not_wait_for_every_image_of_dead_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    class Slow(Shelf):
        def read(self, index: int) -> Any:
            clock[0] += 3.0
            return super().read(index)

    monkeypatch.setattr("vitrail.data.samples.time.monotonic", lambda: clock[0])
    source = Slow(100, range(100))
    how = prepare_task(
        RECIPE, Splits({"train": Stripes(100), "val": Stripes(40)}), accuracy
    ).objective.model.passport.preprocessing
    loaded = SampleDataset(source, how, None, 0).__getitems__([(0, i, 0, None) for i in range(100)])
    assert len(loaded.broken) == 100
    assert source.reads < 10


def test_workers_send_one_tensor_a_batch_and_mistakes_as_sentences(tmp_path: Path) -> None:
    shelf = Shelf(100, [1])
    task = prepare_task(
        replace(RECIPE, workers=1), Splits({"train": shelf, "val": Stripes(40, seed=1)}), accuracy
    )
    stream = Trainer(task, tmp_path).stream
    samples = SampleDataset(shelf, stream.how, stream.augmentation, 0)
    loaded = samples.__getitems__([(0, i, 0, None) for i in range(4)])
    assert (loaded.images.dtype, tuple(loaded.images.shape)) == (torch.uint8, (3, 1, 8, 8))
    assert loaded.rows == [0, 2, 3]
    assert [bad.path for bad in loaded.broken] == ["stripes/1"]
    shelf.images = np.zeros((100, 8, 8, 4), np.uint8)
    with pytest.raises(UserError, match=r"^stripes/[0-9]* has 4 channels, the model reads 1"):
        list(replace(stream, workers=1).batches(0, 1))


def test_a_first_image_that_cannot_be_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(12):
            pixels = draw.integers(0, 255, (16, 16, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number:02}.png")
    first = tmp_path / "photos" / "a" / "00.png"
    first.unlink()
    first.symlink_to(tmp_path / "nowhere.png")
    out = str(tmp_path / "run")
    code = main(["train", str(tmp_path / "photos"), "--out", out, "--steps", "2", "--json"])
    assert code == 0, capfd.readouterr().err
    for path in (tmp_path / "photos").rglob("*.png"):
        path.unlink()
        path.symlink_to(tmp_path / "nowhere.png")
    at_once = ["--steps", "2", "--set", "monitor.outage_minutes=0"]
    code = main(["train", str(tmp_path / "photos"), "--out", f"{out}2", *at_once])
    told = capfd.readouterr().err
    assert code == 2
    assert "Traceback" not in told
