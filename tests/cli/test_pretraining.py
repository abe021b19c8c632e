"""`vitrail pretrain` as a person types it, and what `train --from` takes over."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from vitrail.cli.app import main

SHORT = ("--steps", "6", "--batch-size", "8", "--threads", "1", "--json")
# what each objective has beside its model, by the first part of its name
BESIDE = {
    "masked-patch": {"mask_token", "head"},
    "mae": {"decoder"},
    "simmim": {"mask_token", "decoder"},
    "beit": {"mask_token", "head"},
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of images in colour, without a class."""
    folder = tmp_path / "photos"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(24):
        pixels = draw.integers(0, 256, (3, 3, 3), dtype=np.uint8).repeat(12, 0).repeat(12, 1)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


def pretrain(*words: str | Path) -> int:
    return main(["pretrain", *map(str, words)])


def begin(photos: Path, out: Path, objective: str) -> None:
    """A short run; beit has to have its tokenizer trained first."""
    words: list[str | Path] = ["--objective", objective, "--image-size", "32", "--out", out, *SHORT]
    if objective == "beit":
        begin(photos, out.with_name("words"), "tokenizer")
        words += ["--tokenizer", out.with_name("words") / "last"]
    assert pretrain(photos, *words) == 0


# beit trains a tokenizer first; tests/training/test_resume.py runs all of them
@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(name, marks=[] if name in ("mae", "beit") else [pytest.mark.slow])
        for name in (*BESIDE, "tokenizer")
    ],
)
def test_every_objective_runs_on_a_folder_without_labels_and_is_fine_tuned(
    objective: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    begin(photos, out, objective)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["step"] == told["total"] == 6
    assert [one["image"] for one in told["broken"]] == [f"{photos}/broken.png"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "From top to bottom: original" in page
    assert "data:image/png" in page
    assert "broken.png" in page
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert np.isfinite([line["val_loss"] for line in lines]).all()
    sheets = sorted((out / "reconstructions").iterdir())
    with Image.open(sheets[-1]) as sheet:
        assert min(sheet.size) >= 96
    model = vitrail.load(out / "last")
    assert model.config.num_classes == 0
    if objective in BESIDE:
        check_fine_tuning(objective, photos, out, capsys)


def check_fine_tuning(
    objective: str, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes the model, and says what it leaves."""
    beside = load_file(out / "last" / "objective.safetensors")
    assert {name.split(".")[0] for name in beside} == BESIDE[objective]
    (told,) = (
        one for one in vitrail.load(out / "last").passport.origin.changes if "left out" in one
    )
    for name in BESIDE[objective]:
        assert name in told
    data, into = labelled(photos, out.with_name("labelled")), out.with_name("tuned")
    capsys.readouterr()
    words = ["train", str(data), "--from", str(out / "last"), "--out", str(into)]
    assert main([*words, "--steps", "2", "--threads", "1"]) == 0
    printed = " ".join(capsys.readouterr().err.split()).lower()
    assert f"needed only for {objective} pre-training" in printed
    tuned = vitrail.load(into / "last")
    assert tuned.passport.labels == ("dark", "light")
    if objective == "beit":
        assert tuned.config.relative_bias == "block"


def labelled(photos: Path, folder: Path) -> Path:
    for number, path in enumerate(sorted(photos.glob("[0-9]*.png"))):
        into = folder / ("dark" if number % 2 else "light")
        into.mkdir(parents=True, exist_ok=True)
        (into / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.slow
def test_the_same_objective_goes_on_with_all_of_it(photos: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    begin(photos, first, "mae")
    words: list[str | Path] = ["--objective", "mae", "--from", first / "last"]
    words += ["--out", second, *SHORT]
    assert pretrain(photos, *words, "--lr", "1e-12") == 0
    before, after = (load_file(one / "last" / "objective.safetensors") for one in (first, second))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, msg=name)
    changes = vitrail.load(second / "last").passport.origin.changes
    assert len([one for one in changes if "left out" in one]) == 1  # by this loading alone


@pytest.mark.slow
def test_a_masked_autoencoder_leaves_with_its_decoder_and_comes_back(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, file, again = tmp_path / "ours", tmp_path / "theirs.pth", tmp_path / "again"
    fields = ["--set", "fields.pool=cls", "--set", "fields.class_token=true"]
    words: list[str | Path] = ["--objective", "mae", "--image-size", "32"]
    words += ["--out", ours, *SHORT, *fields]
    assert pretrain(photos, *words, "--set", "goal.options.decoder_dim=32") == 0
    assert main(["convert", str(ours / "last"), str(file), "--to", "mae"]) == 0
    theirs = torch.load(file, weights_only=True)["model"]
    assert any(name.startswith("decoder_blocks.0.") for name in theirs)
    words = ["--objective", "mae", "--from", file, "--out", again, *SHORT, "--lr", "1e-12"]
    words += ["--set", "fields.heads=4"]
    assert pretrain(photos, *words) == 0, capsys.readouterr().err
    before, after = (load_file(one / "last" / "objective.safetensors") for one in (ours, again))
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, msg=name)


@pytest.mark.slow
def test_a_run_is_resumed(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    begin(photos, out, "simmim")
    assert pretrain(photos, "--out", out, "--resume", "--json") == 0
    assert pretrain(photos, "--out", out, "--resume", "--objective", "simmim", "--json") == 0
    capsys.readouterr()
    assert pretrain(photos, "--out", out, "--resume", "--objective", "mae") == 2
    assert "objective must be simmim, that of the run, got mae" in capsys.readouterr().err
