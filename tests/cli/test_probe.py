"""`vitrail probe` as a person types it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.models.kinds import SMALL

from vitrail import load, save
from vitrail.cli.app import main
from vitrail.data.sources import open_data
from vitrail.evaluation.fewshot import few_shot
from vitrail.evaluation.intervals import wilson_interval
from vitrail.evaluation.knn import knn_predict
from vitrail.inference.features import compute_features
from vitrail.models.catalogue import build

TINY = replace(SMALL, depth=2, channels=1, image_size=(16, 16), patch_size=4)


@pytest.fixture
def data(tmp_path: Path) -> str:
    digits = load_digits()
    images, labels = (digits.images * (255 / 16)).astype(np.uint8), digits.target
    parts = {"train": slice(0, 400), "test": slice(400, 550)}
    arrays = {f"x_{name}": images[part] for name, part in parts.items()}
    arrays |= {f"y_{name}": labels[part] for name, part in parts.items()}
    np.savez(tmp_path / "digits.npz", **arrays)
    return str(tmp_path / "digits.npz")


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    return str(save(build(TINY), tmp_path / "model"))


@pytest.fixture
def cache(tmp_path: Path) -> list[str]:
    return ["--cache", str(tmp_path / "features")]


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["probe", *words, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def test_few_shots(
    model: str, data: str, cache: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = asked(capsys, model, data, *cache)
    assert facts["method"] == "fewshot"
    assert facts["train"] == {"split": "train", "images": 400, "cached": False}
    assert facts["test"] == {"split": "test", "images": 150, "cached": False}
    assert [one["shots"] for one in facts["results"]] == [1, 5, 10, 25]
    assert [one["images"] for one in facts["results"]] == [10, 50, 100, 250]
    loaded, parts = load(model), open_data(data, val_share=0).parts
    train = compute_features(loaded, parts["train"], name="train")
    test = compute_features(loaded, parts["test"], name="test")
    direct = few_shot(train.head, train.targets, test.head, test.targets, classes=10)
    assert [one["accuracies"] for one in facts["results"]] == [list(d.accuracies) for d in direct]
    words = [model, data, *cache, "--shots", "2", "--shots", "3", "--seeds", "2", "--seed", "7"]
    facts = asked(capsys, *words)
    assert facts["train"]["cached"]
    assert facts["test"]["cached"]
    assert [(one["shots"], len(one["accuracies"])) for one in facts["results"]] == [(2, 2), (3, 2)]
    assert main(["probe", *words, "--shots", "60"]) == 0
    told = capsys.readouterr().out
    assert "400 images of train, from cached features (--no-cache recomputes them)" in told
    assert "std over 2 seeds" in told
    assert "note: left out 60 shots: no class has as many training images" in told
    assert "\n   60" not in told


def test_neighbours(
    model: str, data: str, cache: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [model, data, "--method", "knn", *cache]
    facts = asked(capsys, *words)
    assert [one["neighbours"] for one in facts["results"]] == [10, 20, 100, 200]
    assert facts["results"][0]["accuracy"] > 0.2  # of ten classes, with weights at random
    facts = asked(capsys, *words, "--max-images", "50")
    assert facts["train"]["images"] == 50
    assert [one["neighbours"] for one in facts["results"]] == [10, 20]
    assert facts["notes"] == ["left out 100, 200 neighbours: there are not as many training images"]
    assert main(["probe", *words, "--neighbours", "5"]) == 0
    assert "neighbours  accuracy  95% interval\n         5" in capsys.readouterr().out
    assert main(["probe", *words, "--max-images", "50"]) == 0
    assert "note: left out 100, 200 neighbours" in capsys.readouterr().out
    assert main(["probe", *words, "--max-images", "50", "--quiet"]) == 0
    assert "note:" not in capsys.readouterr().out


@pytest.mark.slow
def test_lines(
    model: str, data: str, cache: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [model, data, "--method", "linear", *cache, "--steps", "40", "--out", str(out)]
    facts = asked(capsys, *words)
    assert json.loads((out / "probe.json").read_text()) == facts
    assert {path.name for path in out.glob("[!.]*")} == {"probe.json", "report.html"}
    assert list(facts["sweep"]["tried"]) == ["head", "class_2", "class_mean_1", "class_mean_2"]
    assert len(facts["sweep"]["learning_rates"]) == 13
    assert facts["sweep"]["held_out"] == max(map(max, facts["sweep"]["tried"].values()))
    assert facts["regression"]["converged"]
    assert facts["regression"]["accuracy"] > 0.3
    assert main(["probe", *words, "--overwrite"]) == 0
    told = capsys.readouterr().out
    assert "logistic regression  head" in told
    assert f"{facts['regression']['accuracy']:.4f}" in told
    assert "from cached features" in told
    assert f"report: {out / 'report.html'}" in told


def test_regression_that_would_take_too_much_is_left_out(
    model: str,
    data: str,
    cache: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vitrail.tasks.probe.MAX_BYTES", 1000)
    facts = asked(capsys, model, data, "--method", "linear", *cache, "--steps", "2")
    assert facts["regression"] is None
    assert "no logistic regression: it needs" in facts["notes"][-1]


@pytest.mark.slow
def test_an_encoder_without_classes(
    data: str, cache: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    encoder = save(build(replace(TINY, num_classes=0)), tmp_path / "encoder")
    for method in ("fewshot", "knn", "linear"):
        words = [str(encoder), data, "--method", method, *cache, "--steps", "2"]
        assert asked(capsys, *words)["classes"] == 10


def test_a_foreign_file(
    data: str, cache: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    native = save(build(replace(SMALL, image_size=(32, 32))), tmp_path / "native")
    foreign = tmp_path / "timm.safetensors"
    assert main(["convert", str(native), str(foreign), "--to", "timm"]) == 0
    capsys.readouterr()
    words = [data, "--method", "knn", *cache, "--neighbours", "7"]
    told = ["--dialect", "timm", "--set", "heads=4", "--grid", "4x4"]
    facts = asked(capsys, str(foreign), *words, *told)
    loaded = load(foreign, dialect="timm", heads=4, grid=(4, 4))
    parts = open_data(data, val_share=0).parts
    train, test = (compute_features(loaded, parts[part], name=data) for part in ("train", "test"))
    said = knn_predict(train.head, train.targets, test.head, classes=10, neighbours=[7])[7]
    assert facts["width"] == 32
    right = said == test.targets
    interval = list(wilson_interval(int(right.sum()), len(right)))
    assert facts["results"] == [{"neighbours": 7, "accuracy": right.mean(), "interval": interval}]


def test_where_there_is_no_test_part_the_one_of_training_is_drawn_again(
    model: str, cache: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = asked(capsys, model, "digits", "--method", "knn", *cache, "--max-images", "200")
    assert facts["test"] == {"split": "val", "images": 179, "cached": False}


def test_nothing_is_kept_without_a_cache(
    model: str,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        facts = asked(capsys, model, data, "--method", "knn", "--no-cache")
        assert not facts["train"]["cached"]
    assert sorted(tmp_path.rglob("*")) == before
    asked(capsys, model, data, "--method", "knn")
    assert len(list((tmp_path / "runs" / "features").iterdir())) == 2


def test_several_labels_are_refused_and_broken_images_named(
    model: str, cache: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    lines = ["path,labels"]
    for number in range(12):
        Image.new("L", (16, 16), number * 20).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,cat|dog" if number % 2 else f"{number}.png,cat")
    (tmp_path / "several.csv").write_text("\n".join(lines))
    assert main(["probe", model, str(tmp_path / "several.csv"), *cache]) == 2
    assert "must have one label an image" in capsys.readouterr().err
    (tmp_path / "4.png").write_bytes(b"no picture")
    lines = ["path,label", *(f"{n}.png,{'cat' if n % 2 else 'dog'}" for n in range(12))]
    (tmp_path / "one.csv").write_text("\n".join(lines))
    words = ["probe", model, str(tmp_path / "one.csv"), *cache, "--shots", "1"]
    assert main(words) == 0
    assert "4.png" in capsys.readouterr().out
    assert main(words) == 0
    assert "4.png" in capsys.readouterr().out  # which is kept too


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["digits", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["digits", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["digits", "--max-images", "-1"], "images must be at least 1, got -1"),
        (["digits", "--workers", "-1"], "workers must be at least 0, got -1"),
        (["digits", "--threads", "0"], "--threads must be at least 1 and at most 256, got 0"),
        (["digits", "--shots", "0"], "--shots must be whole numbers of at least 1"),
        (["digits", "--neighbours", "0"], "at least 1 like 10,20, got '0'"),
        (["digits", "--split", "tset"], "digits has no split 'tset'"),
        (["digits", "--split", "train"], "must not be tested on its training images"),
        (["digits", "--method", "fewshots"], "fewshot"),
        (["no-such-data"], "no-such-data"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str],
    told: str,
    model: str,
    cache: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["probe", model, *words, *cache]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "features").exists()


def test_a_cache_that_cannot_be_written_is_told_before_the_work(
    model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["probe", model, data, "--cache", str(tmp_path / "file" / "inside")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["probe", model, data, "--no-cache", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
