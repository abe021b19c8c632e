"""From a folder of images to labels, as typed in a shell."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.pages.html import check_page

from vitrail.cli.app import main


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Bright and dark pictures of odd sizes, and two files that are none."""
    draw = np.random.default_rng(0)
    for label, level in (("bright", 190), ("dark", 60)):
        folder = tmp_path / "photos" / label
        folder.mkdir(parents=True)
        for number in range(20):
            size = (*draw.integers(20, 60, 2), 3)
            pixels = (level + draw.integers(-50, 50, size)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
        (folder / "broken.png").write_bytes(b"\x89PNG but no more")
    return tmp_path / "photos"


SMALL = (
    "--set", "fields.dim=16", "--set", "fields.depth=1", "--set", "fields.heads=2",
    "--set", "fields.mlp_dim=32", "--set", "fields.patch_size=8", "--image-size", "16",
)  # fmt: skip


def test_train_evaluate_predict(
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = str(tmp_path / "run")
    asked = ["train", str(photos), "--out", out, "--epochs", "6", "--batch-size", "8", *SMALL]
    assert main([*asked, "--dry-run"]) == 0
    recipe = yaml.safe_load(capsys.readouterr().out)
    assert recipe["fields"]["image_size"] == [16, 16]
    assert recipe["schedule"]["epochs"] == 6
    assert not Path(out).exists()

    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == told["total"]
    assert told["score"] >= 0.5
    assert told["best"] == f"{out}/best"
    assert sorted(Path(one["image"]).parent.name for one in told["broken"]) == ["bright", "dark"]
    for name in (
        "best/model.safetensors",
        "last/config.json",
        "metrics.jsonl",
        "recipe.yaml",
        "report.html",
    ):
        assert (Path(out) / name).is_file()

    page = check_page((Path(out) / "report.html").read_text(encoding="utf-8")).text
    assert all(one["image"].removeprefix(f"{photos}/") in page for one in told["broken"])

    assert main(asked) == 2
    assert "already contains a run" in capsys.readouterr().err
    assert main([*("7" if word == "6" else word for word in asked), "--resume"]) == 2
    assert "epochs cannot change in a run that is resumed" in capsys.readouterr().err
    again = ["train", str(photos), "--out", out, "--resume", "--json", "--workers", "2"]
    assert main(again) == 0  # nothing left to do is no mistake
    assert json.loads(capsys.readouterr().out)["step"] == told["total"]

    assert main(["evaluate", f"{out}/best", str(photos), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(told["score"])

    script = ["train", str(photos), "--recipe", f"{out}/recipe.yaml", "--dry-run", "--json"]
    assert main([*script, "--lr", "0.5"]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert changed["optimiser"].pop("lr") == 0.5
    recipe["optimiser"].pop("lr")
    assert changed == recipe

    tuned = ["train", str(photos), "--from", f"{out}/best", "--out", f"{out}2", "--epochs", "1"]
    assert main([*tuned, "--batch-size", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] > 0

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{photos}/dark/3.png\n"))
    assert main(["predict", f"{out}/best", f"{photos}/bright", "-", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 22
    assert sum(line["problem"] is not None for line in lines) == 1
    assert {pair["label"] for pair in lines[0]["top"]} == {"bright", "dark"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "nowhere"], "nowhere"),
        (["train", "digits", "--set", "optimiser.speed=3"], "unknown field 'optimiser.speed'"),
        (
            ["train", "digits", "--set", "optimizer.lr=1"],
            "the recipe has no part 'optimizer': did you mean optimiser?",
        ),
        (["train", "digits", "--set", "oven.heat=3"], "the recipe has no part 'oven'"),
        (["train", "digits", "--lr", "-1"], "optimiser.lr must be above 0, got -1"),
        (["train", "digits", "--lr", "fast"], "--lr must be a number, or find, got 'fast'"),
        (
            ["train", "digits", "--batch-size", "0"],
            "--batch-size must be a whole number of at least 1",
        ),
        (["train", "digits", "--recipe", "smal"], "did you mean"),
        (["train", "digits", "--recipe", "{empty}/none.yaml"], "the recipe cannot be read"),
        (["train", "digits", "--recipe", "finetune"], "fine-tunes a checkpoint"),
        (["train", "digits", "--recipe", "deit_distilled"], "learns from a teacher"),
        (["train", "digits", "--epochs", "1", "--steps", "2"], "give one"),
        (["train", "digits", "--val-share", "2"], "--val-share must be in [0, 1), got 2"),
        (["train", "digits", "--processes", "0"], "processes must be at least 1, got 0"),
        (["train", "digits", "--threads", "0"], "threads must be at least 1 and at most 256"),
        (
            ["train", "digits", "--set", 'lora.targets=["x"]', "--out", "{empty}/x"],
            "must name linear layers",
        ),
        (["train", "digits", "--resume", "--out", "{empty}"], "no run to resume here"),
        (["predict", "{empty}", "x.png"], "x.png: no such file"),
        (["evaluate", "{empty}", "digits"], "no checkpoint in this directory"),
        (["evaluate", "{empty}", "digits", "--split", "tset"], "has no split 'tset'"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(empty=tmp_path) for part in arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_trials_choose_what_is_left_to_them(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", str(photos), "--batch-size", "auto", "--lr", "find", "--dry-run", "--json"]
    assert main([*asked, *SMALL]) == 0
    recipe = json.loads(capsys.readouterr().out)
    assert recipe["batch_size"] in (16, 32, 64, 128, 256, 512, 1024)
    assert 1e-5 < recipe["optimiser"]["lr"] < 0.5
    assert sum("images/s" in reason or "trial" in reason for reason in recipe["reasons"]) == 2


def test_set_batch_size_chooses_as_batch_size_does(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for words in (("--batch-size", "4"), ("--set", "batch_size=4")):
        assert main(["train", str(photos), *words, *SMALL, "--dry-run", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert any("batches of 4" in reason for reason in found[1]["reasons"])


@pytest.mark.slow
def test_several_processes(photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two processes train from a command in tests/training/test_parallel.py and write a report."""
    out = tmp_path / "run"
    asked = ["train", str(photos), "--processes", "2", "--steps", "2", *SMALL, "--json"]
    assert main([*asked, "--batch-size", "8", "--out", str(out)]) == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert told["step"] == 2
    assert (out / "report.html").is_file()


@pytest.mark.slow  # tests/training/test_deaths.py has one without the command line
def test_a_mistake_in_several_processes(
    photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["train", str(photos), "--processes", "2", "--steps", "6"]
    asked += ["--out", str(tmp_path / "run")]
    assert main([*asked, "--lr", "-1"]) == 2
    printed = capfd.readouterr().err.splitlines()
    assert [line for line in printed if "lr must" in line] == [
        "vitrail: optimiser.lr must be above 0, got -1.0"
    ]
