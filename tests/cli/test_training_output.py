"""What a training run tells a person: before, while it lasts, when interrupted, and at its end."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.cli.test_training import SMALL
from tests.pages.html import check_page

from vitrail import load
from vitrail.cli.app import main
from vitrail.cli.display import Display, Pace
from vitrail.cli.endings import REQUEUE
from vitrail.training.progress import Progress


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Noise, so that nothing can be learnt, with a test part and a file that is no image."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 6)):
        for label in ("left", "right"):
            folder = tmp_path / "photos" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 255, (20, 30, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "photos" / "train" / "left" / "notes.txt").write_text("x", encoding="utf-8")
    return tmp_path / "photos"


def train(photos: Path, *more: str) -> list[str]:
    return ["train", str(photos), "--batch-size", "8", *SMALL, *more]


def test_everything_is_said_and_nothing_is_left_behind(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(train(photos, "--epochs", "2", "--out", str(out))) == 0
    found = capsys.readouterr()
    printed = found.err
    assert "ViT (custom), " in printed.splitlines()[0]
    assert "patch 8" in printed.splitlines()[0]
    assert "patches of" not in printed  # they are not what the recipe would have chosen
    assert "2 epochs, as requested (the default here is 100 epochs)" in printed
    assert printed.count("100 epochs") == 1
    assert "1 file is not an image and is ignored: train/left/notes.txt" in printed
    assert f"decoded images are kept in {out / 'pixels'}" in printed
    assert [line.split("  ")[0] for line in printed.splitlines() if line.startswith("step ")] == [
        "step 2 of 4",
        "step 4 of 4",
    ]
    assert "test accuracy " in found.out
    assert "note: the model was evaluated on only 2 validation images" in found.out
    assert not (out / "pixels").exists()
    page = check_page((out / "report.html").read_text(encoding="utf-8")).text
    assert "Accuracy on test" in page
    assert "The model was evaluated on only 2 validation images" in page
    assert "train/left/notes.txt" in page
    assert "(aspect ratio kept)" in (out / "best" / "README.md").read_text(encoding="utf-8")
    assert main(["info", str(out / "best")]) == 0
    assert "(aspect ratio kept)" in capsys.readouterr().out
    assert load(out / "best").passport.preprocessing.resize == (16, 16)


def test_a_dry_run_builds_what_the_run_builds(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", str(photos), "--image-size", "100", "--steps", "1", "--batch-size", "2"]
    assert main([*asked, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    comments = [line for line in printed.splitlines() if line.startswith("# ")]
    assert comments[0].endswith("100x100 pixels, patch 10, dim 48, depth 4, heads 4")
    assert "ignored: train/left/notes.txt" in "".join(comments)
    assert "1 step of 2 images, about " in comments[-1]
    planned = yaml.safe_load(printed)
    assert planned["fields"]["image_size"] == [100, 100]
    assert any("100 patches of 10x10" in reason for reason in planned["reasons"])
    assert main([*asked, "--out", str(tmp_path / "run"), "--json"]) == 0
    capsys.readouterr()
    assert load(tmp_path / "run" / "best").config.grid == (10, 10)

    for size in ("97", "100x97"):
        refused = ["train", str(photos), "--image-size", size, "--out", str(tmp_path / "no")]
        for more in ([], ["--dry-run"]):
            assert main([*refused, *more]) == 2
            assert "--image-size must divide into patches" in capsys.readouterr().err
    patch = ["--set", "fields.patch_size=7", "--out", str(tmp_path / "no")]
    sentences = []
    for more in ([], ["--dry-run"]):
        assert main([*train(photos, *patch), *more]) == 2
        sentences.append(capsys.readouterr().err)
    assert sentences[0] == sentences[1]
    assert not (tmp_path / "no").exists()


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Also where these tests run in the background, whose processes begin without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_at(
    step: int, monkeypatch: pytest.MonkeyPatch, number: signal.Signals = signal.SIGINT
) -> None:
    """Ctrl-C once a step is done."""
    show = Display.show_step

    def shown(self: Display, now: Progress) -> None:
        show(self, now)
        if now.step == step:
            signal.raise_signal(number)

    monkeypatch.setattr(Display, "show_step", shown)


# before the first evaluation, and after it; a scheduler sends SIGTERM
@pytest.mark.slow
@pytest.mark.parametrize(("step", "number"), [(1, signal.SIGINT), (3, signal.SIGTERM)])
def test_an_interrupted_run_has_a_report(
    step: int,
    number: signal.Signals,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        press_at(step, patch, number)
        code = main(train(photos, "--epochs", "2", "--out", str(out)))
    assert code == (130 if number == signal.SIGINT else REQUEUE)
    printed = capsys.readouterr()
    assert f"saved at step {step}" in printed.err
    assert f"report: {out / 'report.html'}" in printed.out
    page = check_page((out / "report.html").read_text(encoding="utf-8")).text
    assert f"Interrupted at step {step} of 4" in page
    assert ("Confusions" in page) == (step == 3)
    assert (out / "pixels").exists()  # the run goes on with it
    assert (out / "requeue.json").exists() == (number == signal.SIGTERM)
    assert main(["train", str(photos), "--out", str(out), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4
    assert "Interrupted at step" not in (out / "report.html").read_text(encoding="utf-8")
    assert not (out / "pixels").exists()
    assert not (out / "requeue.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_folds_exit_as_their_run_does(
    number: signal.Signals,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "folds"
    press_at(1, monkeypatch, number)
    code = main(train(photos, "--epochs", "2", "--folds", "2", "--out", str(out)))
    printed = " ".join(capsys.readouterr().err.split())
    command = f"vitrail train {photos} --folds 2 --out {out} --resume"
    if number == signal.SIGINT:
        assert code == 130
        assert f"in fold 1 of 2; checkpoint saved. Resume with: {command}" in printed
    else:
        assert code == REQUEUE
        assert "stopped by SIGTERM in fold 1 of 2; checkpoint saved." in printed
        assert f"Resume with: {command}" in printed


def test_a_second_ctrl_c_leaves_at_once(
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def press(*_: object, **__: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return ""

    press_at(3, monkeypatch)
    monkeypatch.setattr("vitrail.tasks.run_report.training_page", press)
    assert main(train(photos, "--epochs", "2", "--out", str(tmp_path / "run"))) == 130
    printed = capsys.readouterr()
    assert "saved at step 3" in printed.err
    assert "report:" not in printed.out
    assert not (tmp_path / "run" / "report.html").exists()


def test_the_time_left_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("vitrail.cli.display.time.perf_counter", lambda: now[0])
    pace, told = Pace(), []
    for step in range(1, 200):
        now[0] += 0.5 if step > 1 else 60.0  # what happens once in the first step is not counted
        told.append(pace.estimate(step, 10_000))
    sentences = [sentence for sentence in told if sentence is not None]
    assert len(sentences) == 1
    assert sentences[0].startswith("about 83 min at 2 steps/s, until ")
    short = Pace()
    assert [short.estimate(step, 40) for step in range(1, 41)] == [None] * 40
