"""What a person can get wrong about `vitrail pretrain`: one sentence, exit 2, nothing left."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from vitrail.cli.app import main

SHORT = ("--steps", "2", "--threads", "1")
NARROW = ("--set", "fields.dim=24", "--set", "fields.depths=[1,1,1,1]")
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two steps on digits: one with labels, the others without."""
    folder = tmp_path_factory.mktemp("runs")
    quick = ("--set", "monitor.examine_data=false")
    assert main(["train", "digits", "--out", str(folder / "labels"), *SHORT, *quick]) == 0
    for objective in ("mae", "simmim", "tokenizer"):
        words = ["--objective", objective, "--out", str(folder / objective), *SHORT]
        assert main(["pretrain", "digits", *words]) == 0
    return folder


def refused(said: Said, *words: str | Path) -> str:
    """The one sentence."""
    said.readouterr()
    assert main([str(word) for word in words]) == 2
    *progress, error = said.readouterr().err.splitlines(keepends=True)
    assert all(line.startswith("- ") for line in progress)
    return error


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--objective", "beit"], "give one with tokenizer"),
        (["--objective", "beit", "--model", "vit_ti_16"], "beit pre-trains a BEiT, not vit_ti_16"),
        (["--objective", "beit", "--tokenizer", "{runs}/mae/last"], "a tokenizer, not a ViT"),
        (
            ["--objective", "mae", "--tokenizer", "{runs}/tokenizer/last"],
            "goal.tokenizer does not apply",
        ),
        (["--model", "swin_t", *NARROW], "use a ViT, or simmim"),
        (["--from", "{runs}/tokenizer/last"], "a Tokenizer does not support: use a ViT\n"),
        (["--objective", "masked-patch", "--model", "swin_t", *NARROW], "ViT"),
        (["--recipe", "deit"], "recipe must be a recipe.yaml for pretrain"),
        (["--recipe", "{runs}/labels/recipe.yaml"], "trains with labels: use vitrail train"),
        (["--set", "goal.objective=labels"], "trains with labels: use vitrail train"),
        (["--set", "goal.options.ratoi=0.5"], "unknown field 'ratoi', did you mean ratio?"),
        (["--set", "goal.options.ratio=1.5"], "mask ratio must be between 0 and 1, got 1.5"),
        (["--set", "goal.options.ratio=most"], "ratio must be a valid number, got 'most'"),
        (["--set", "goal.options.norm_pix=maybe"], "norm_pix must be a valid boolean, got 'maybe'"),
        (["--set", "goal.teacher=someone"], "goal.teacher does not apply to mae"),
        (["--set", "augmentation.mixup=0.8"], "augmentation.mixup does not apply to mae"),
        (["--set", "augmentation.repeats=3"], "augmentation.repeats does not apply to mae"),
        (["--set", "lora.rank=4"], "lora does not apply to mae"),
        (["--set", "augmentation.sides=[8,16]"], "read one image size"),
        (
            ["--from", "{runs}/mae/last", "--set", "goal.options.decoder_depth=6"],
            "use the options",
        ),
        (["--from", "{runs}/mae/last", "--image-size", "16"], "the image size that it was trained"),
        (["--objective", "tokenizer", "--set", "goal.options.temperature=[1]"], "temperature"),
        (["--objective", "tokenizer", "--model", "vit_ti_16"], "use vq_ti_8"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, runs: Path, tmp_path: Path, capsys: Said
) -> None:
    words = [word.format(runs=runs) for word in words]
    out = tmp_path / "run"
    assert sentence in refused(capsys, "pretrain", "digits", *words, "--out", out, *SHORT)
    assert not out.exists()


def test_blocks_have_patches(runs: Path, tmp_path: Path, capsys: Said) -> None:
    words: list[str | Path] = ["--objective", "beit"]
    words += ["--tokenizer", runs / "tokenizer" / "last", *SHORT]
    for least, sentence in (
        ("0", "at least 1 patch"),
        ("abc", "least must be a valid integer, got 'abc'"),
    ):
        said: list[str | Path] = ["--set", f"goal.options.least={least}", "--out", tmp_path / "run"]
        assert sentence in refused(capsys, "pretrain", "digits", *words, *said)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        ["--recipe", "{runs}/mae/recipe.yaml", "--out", "{here}/run"],
        ["--set", "goal.objective=mae", "--out", "{here}/run"],
        ["--resume", "--out", "{runs}/mae"],
    ],
)
def test_labels_are_not_learnt_by_a_recipe_without(
    words: list[str], runs: Path, tmp_path: Path, capsys: Said
) -> None:
    words = [word.format(runs=runs, here=tmp_path) for word in words]
    sentence = refused(capsys, "train", "digits", *words)
    assert "trains without labels, by mae: use vitrail pretrain" in sentence
    assert not (tmp_path / "run").exists()


def test_a_run_with_labels_is_not_resumed_without(runs: Path, capsys: Said) -> None:
    sentence = refused(capsys, "pretrain", "digits", "--resume", "--out", runs / "labels")
    assert "trains with labels: use vitrail train" in sentence


def test_what_is_said_wins_over_a_written_recipe(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [
        "--recipe",
        runs / "mae" / "recipe.yaml",
        "--objective",
        "simmim",
        "--out",
        out,
        *SHORT,
    ]
    assert main(["pretrain", "digits", *map(str, words)]) == 0
    assert yaml.safe_load((out / "recipe.yaml").read_text())["goal"]["objective"] == "simmim"


def test_models_without_classes_are_not_scored(runs: Path, capsys: Said) -> None:
    for name in ("mae", "tokenizer"):
        sentence = refused(capsys, "evaluate", runs / name / "last", "digits")
        assert "has no classification head" in sentence
    sentence = refused(capsys, "train", "digits", "--from", runs / "tokenizer" / "last", *SHORT)
    assert "a tokenizer has no classes" in sentence


def test_what_was_not_kept_begins_anew_and_says_so(
    runs: Path, tmp_path: Path, capsys: Said
) -> None:
    bare, out = tmp_path / "bare", tmp_path / "run"
    shutil.copytree(runs / "mae" / "last", bare)
    (bare / "objective.safetensors").unlink()
    manifest = json.loads((bare / "manifest.json").read_text())
    del manifest["files"]["objective.safetensors"]
    (bare / "manifest.json").write_text(json.dumps(manifest))
    assert main(["pretrain", "digits", "--from", str(bare), "--out", str(out), *SHORT]) == 0
    assert "decoder: fresh weights" in " ".join(capsys.readouterr().err.split())


def test_a_copy_in_our_own_format_keeps_the_decoder(runs: Path, tmp_path: Path) -> None:
    last, copy = runs / "mae" / "last", tmp_path / "copy"
    assert main(["convert", str(last), str(copy)]) == 0
    before, after = (load_file(one / "objective.safetensors") for one in (last, copy))
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


@pytest.mark.slow
def test_a_tokenizer_stays_what_it_was(runs: Path, tmp_path: Path, capsys: Said) -> None:
    words, out = tmp_path / "words", tmp_path / "run"
    shutil.copytree(runs / "tokenizer" / "last", words)
    begin = ["--objective", "beit", "--tokenizer", words, "--out", out, *SHORT]
    assert main(["pretrain", "digits", *map(str, begin)]) == 0
    assert main(["pretrain", "digits", "--out", str(out), "--resume"]) == 0
    shutil.rmtree(words)
    again = ["--objective", "tokenizer", "--seed", "1", "--out", tmp_path / "other", *SHORT]
    assert main(["pretrain", "digits", *map(str, again)]) == 0
    shutil.copytree(tmp_path / "other" / "last", words)
    (out / "outcome.json").unlink()  # as if the run had been stopped before its end
    sentence = refused(capsys, "pretrain", "digits", "--out", out, "--resume")
    assert "not the teacher that the run started with" in sentence


def test_a_finished_run_keeps_its_report(runs: Path) -> None:
    report = runs / "simmim" / "report.html"
    before = report.read_bytes()
    assert main(["pretrain", "digits", "--out", str(runs / "simmim"), "--resume"]) == 0
    assert report.read_bytes() == before
    report.unlink()
    assert main(["pretrain", "digits", "--out", str(runs / "simmim"), "--resume"]) == 0
    assert "original, masked, reconstructed" in report.read_text(encoding="utf-8")


def test_a_folder_of_broken_images_leaves_nothing(tmp_path: Path, capsys: Said) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    for number in range(12):
        (data / f"{number}.jpg").write_bytes(b"no picture")
    words: list[str | Path] = ["pretrain", data, "--image-size", "32", "--out", out, *SHORT]
    assert "stopped at step 0: 11 of 11 images" in refused(capsys, *words)
    assert not out.exists()
    mine = out / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("dear to me")
    for _ in range(2):  # the second start finds nothing of the first
        assert "stopped at step 0" in refused(capsys, *words, "--resume", "auto")
        assert [path.name for path in out.iterdir()] == ["notes.txt"]
    theirs = out / "reconstructions" / "mine.txt"
    theirs.parent.mkdir()
    theirs.write_text("dear to me too")
    assert "already exists" in refused(capsys, *words)
    assert theirs.read_text() == "dear to me too"


@pytest.mark.parametrize(
    "side", [8, 30, *(pytest.param(n, marks=pytest.mark.slow) for n in (50, 100))]
)
def test_a_tokenizer_for_images_of_any_side(side: int, tmp_path: Path) -> None:
    data, out = tmp_path / "data.npz", tmp_path / "run"
    images = np.zeros((12, side, side, 3), np.uint8)
    np.savez(data, x_train=images, y_train=np.arange(12) % 2)
    words = ["--objective", "tokenizer", "--out", str(out), "--steps", "1", "--threads", "1"]
    assert main(["pretrain", str(data), *words]) == 0
