"""`vitrail evaluate` as a person types it: text, JSON, files, and mistakes in one sentence."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.golden import golden

import vitrail
from vitrail.cli.app import main
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Subset
from vitrail.evaluation.corruptions import CORRUPTIONS
from vitrail.models.resnet import ResNetConfig
from vitrail.tasks.splits import thin_out

LABELS = ("blue", "green", "red")
SMALL = {"dim": 24, "depth": 1, "heads": 3, "mlp_dim": 32, "image_size": 16, "patch_size": 8}


def make(
    folder: Path, *, labels: tuple[str, ...] | None = LABELS, name: str = "vit_ti_16", **fields: Any
) -> Path:
    """A model whose head says something."""
    torch.manual_seed(1)
    model = vitrail.create(name, num_classes=3, **fields or SMALL)
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    multi_label = fields.pop("multi_label", False)
    model.passport = replace(model.passport, labels=labels, multi_label=multi_label)
    return vitrail.save(model, folder / "model")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images of three colours in test and train, and a file that is none."""
    random = np.random.default_rng(0)
    for part, images in (("train", 10), ("test", 7)):
        for place, label in enumerate(LABELS):
            folder = tmp_path / "photos" / part / label
            folder.mkdir(parents=True)
            for number in range(images):
                pixels = random.integers(0, 160, (24, 30, 3))
                pixels[..., 2 - place] += 90
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    (tmp_path / "photos/test/red/broken.png").write_bytes(b"\x89PNG but no more")
    return tmp_path / "photos"


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["evaluate", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def asked(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_everything_about_a_model(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder, out = make(tmp_path), tmp_path / "new" / "out"
    words: tuple[str | Path, ...] = ("--corruptions", "--corrupted-images", "4")
    words = (
        *words,
        "--resolutions",
        "16,24,17",
        "--patch-sizes",
        "4,8",
        "--out",
        out,
        "--batch-size",
        "5",
    )
    facts = asked(capsys, folder, photos, *words)
    assert (facts["split"], facts["images"]) == ("test", 21)
    (broken,) = facts["broken"]
    why = f"corrupt header or unsupported format; supported: {FORMATS}"
    assert broken["reason"] == f"not a readable image ({why})"
    assert "halves" in facts["temperature"]["fitted_on"], "val has 3 images only"
    assert list(facts["corruptions"]["by_severity"]) == list(CORRUPTIONS)
    assert facts["corruptions"]["images"] == 4
    sizes = facts["resolutions"]
    assert [row["size"] for row in sizes] == ["16", "24", "17"]
    assert sizes[0]["value"] == facts["accuracy"]
    assert sizes[1]["changes"][-1] == "positions resized from 2x2 to 3x3 (paper)"
    assert "17 is not a multiple of patch 8" in sizes[2]["problem"]
    assert facts["patch_sizes"][0]["changes"][0] == "patch kernels resized from 8 to 4 pixels"
    assert facts["patch_sizes"][1]["value"] == facts["accuracy"]

    written = json.loads((out / "evaluation.json").read_text())
    files = facts.pop("files")
    assert written == facts
    assert sorted(files.values()) == sorted(map(str, out.glob("[!.]*")))
    page = (out / "report.html").read_text()
    for name in ("calibration", "confusions", "classes", "corruptions", "resolutions", "patches"):
        assert f'<section id="{name}">' in page

    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 22
    good = [row for row in rows if not row["problem"]]
    assert np.mean([row["right"] == "yes" for row in good]) == pytest.approx(facts["accuracy"])
    said = vitrail.predict(vitrail.load(folder), [row["image"] for row in good])
    assert [row["predicted"] for row in good] == [one.label for one in said]
    assert [Path(row["image"]).parent.name for row in good] == [row["truth"] for row in good]

    code, _, err = run(capsys, folder, photos, *words)
    assert code == 2
    assert f"{out}: already contains results of vitrail evaluate" in err
    again = asked(capsys, folder, photos, "--out", out, "--overwrite")
    assert again["accuracy"] == facts["accuracy"]
    assert again["corruptions"] is None
    assert json.loads((out / "evaluation.json").read_text())["resolutions"] == []


def test_what_comes_to_nothing_leaves_no_directory(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    for place in (photos / "test").rglob("*.png"):
        place.write_bytes(b"no picture")
    code, _, err = run(capsys, make(tmp_path), photos, "--out", tmp_path / "out")
    assert code == 2
    assert not (tmp_path / "out").exists(), err


FORMATS = "JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM, AVIF"


@pytest.mark.slow
def test_text_says_the_same(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    corrupted = ("--corruptions", "--corrupted-images", "4")
    facts = asked(capsys, folder, photos, *corrupted, "--workers", "1")
    code, printed, err = run(
        capsys, folder, photos, *corrupted, "--resolutions", "16,17", "--patch-sizes", "8"
    )
    assert (code, err) == (0, "")
    low, high = facts["intervals"]["accuracy"]
    assert f"accuracy        {facts['accuracy']:.4f}  ({low:.4f} to {high:.4f})" in printed
    assert "21 images of test, 3 classes" in printed
    assert f"temperature     {facts['temperature']['temperature']:.4f}" in printed
    fog = facts["corruptions"]["by_severity"]["fog"]
    assert f"  fog               {fog[0]:8.4f}{fog[1]:8.4f}" in printed
    assert "not the paper's mCE" in printed
    assert "image size 17: image side 17 is not a multiple of patch 8" in printed
    assert f"patch size         8  accuracy {facts['accuracy']:.4f}" in printed
    assert "lowest F1: " in printed
    assert "left out " in printed


def test_a_part_that_is_validation_is_halved(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    facts = asked(capsys, make(tmp_path), photos, "--split", "val")
    assert facts["images"] == 3
    assert facts["temperature"] is None, "three images leave a half without a mistake"
    assert "the data has no val split: evaluated on the same 10% of train" in facts["notes"][0]


def test_validation_chooses_the_temperature_where_it_has_enough_images(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    (photos / "train").rename(photos / "val")
    folder = make(tmp_path)
    facts = asked(capsys, folder, photos)
    assert (facts["split"], facts["temperature"]["fitted_on"]) == ("test", "val, 30 images")
    alone = asked(capsys, folder, photos, "--split", "val")
    assert facts["temperature"]["temperature"] == alone["temperature"]["temperature"]
    assert facts["notes"] == alone["notes"] == []


def test_of_a_large_part_some_images_choose_it() -> None:
    whole = open_data("digits", val_share=0)["train"]
    assert thin_out(whole) is whole
    many = Subset(whole, np.arange(20_000) % len(whole))  # type: ignore[arg-type]
    some = thin_out(many)
    assert len(some) == 5000
    assert (some.name(0), some.name(4999)) == (many.name(0), many.name(19_999))


def test_another_seed_changes_intervals_only(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    one, two = (asked(capsys, folder, photos, "--seed", seed) for seed in ("1", "2"))
    assert one["intervals"] != two["intervals"]
    assert (one["accuracy"], one["ece"]) == (two["accuracy"], two["ece"])


@pytest.mark.slow
def test_several_labels(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "photos.csv"
    lines = ["path,labels,split"]
    for part in ("train", "test"):
        for place, label in enumerate(LABELS):
            for number in range(7):
                more = f"|{LABELS[(place + 1) % 3]}" if number % 2 else ""
                lines.append(f"photos/{part}/{label}/{number}.png,{label}{more},{part}")
    table.write_text("\n".join(lines))
    folder = make(tmp_path)
    words = ("--corruptions", "--corrupted-images", "5", "--resolutions", "24")
    facts = asked(capsys, folder, table, *words, "--out", tmp_path / "out")
    assert list(facts)[6:12] == ["mean_precision", "f1", "exact", "ece", "nll", "brier"]
    assert facts["corruptions"]["metric"] == "mean_precision"
    assert facts["resolutions"][0]["metric"] == "mean_precision"
    assert "Mean average precision" in (tmp_path / "out/report.html").read_text()
    code, printed, _ = run(capsys, folder, table)
    assert code == 0
    assert "lowest average precision: " in printed


def test_a_foreign_file_without_labels_is_matched_by_index(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder, file = make(tmp_path), tmp_path / "timm.safetensors"
    assert main(["convert", str(folder), str(file), "--to", "timm"]) == 0
    capsys.readouterr()
    words = ("--set", "heads=3", "--grid", "2x2", "--dialect", "timm")
    facts = asked(capsys, file, photos, *words, "--resolutions", "24")
    assert "matched by index" in facts["notes"][0]
    assert facts["resolutions"][0]["value"] is not None
    code, _, err = run(capsys, file, "digits", *words)
    assert code == 2
    assert "as many classes" in err


def test_classes_in_another_order_are_found_by_name(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    straight = asked(capsys, make(tmp_path), photos)
    torch.manual_seed(1)
    model = vitrail.load(tmp_path / "model")
    turned = [2, 0, 1]
    with torch.no_grad():
        for name in ("head.classes.weight", "head.classes.bias"):
            values = model.get_parameter(name)
            values.copy_(values[turned].clone())
    labels = tuple(LABELS[place] for place in turned)
    model.passport = replace(model.passport, labels=labels)
    other = vitrail.save(model, tmp_path / "turned")
    facts = asked(capsys, other, photos)
    assert facts["accuracy"] == straight["accuracy"]
    assert [row["label"] for row in facts["classes"]] == list(labels)
    assert facts["nll"] == pytest.approx(straight["nll"])


def test_a_family_without_patches_says_so_in_its_row(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder = make(
        tmp_path, name="mobilevit_xxs", image_size=32, widths=(8, 8, 8, 8, 8), dims=(8, 8, 8),
        depths=(1, 1, 1), last=16,
    )  # fmt: skip
    facts = asked(capsys, folder, photos, "--patch-sizes", "8", "--resolutions", "64")
    assert facts["patch_sizes"][0]["value"] is None
    assert "patch_size" in facts["patch_sizes"][0]["problem"]
    assert facts["resolutions"][0]["value"] is not None


def test_patches_of_a_hybrid_are_counted_in_pixels_of_the_image(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    stem = ResNetConfig(width=8, groups=4, blocks=())  # one pixel of what it makes stands for four
    fields: dict[str, Any] = {"image_size": 32, "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 32}
    folder = make(tmp_path, stem=stem, patch_size=2, **fields)
    rows = asked(capsys, folder, photos, "--patch-sizes", "8,16")["patch_sizes"]
    assert [row["size"] for row in rows] == ["8", "16"]
    assert not rows[0]["changes"]  # 8 pixels are what the model has
    assert any("patch" in change for change in rows[1]["changes"])
    assert main(["evaluate", str(folder), str(photos), "--patch-sizes", "6"]) == 2
    assert "multiples of 4" in capsys.readouterr().err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--resolutions", "big"], "--resolutions must be a side like 224"),
        (["--resolutions", ","], "--resolutions must be a list like 112,160,224, got ','"),
        (
            ["--patch-sizes", "8,x"],
            "--patch-sizes must be whole numbers of at least 1 like 8,16,32",
        ),
        (["--patch-sizes", "0"], "got '0'"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--workers", "-1"], "workers must be at least 0, got -1"),
        (
            ["--corruptions", "--corrupted-images", "0"],
            "--corrupted-images must be at least 1, got 0",
        ),
        (["--corrupted-images", "5"], "--corrupted-images needs corruptions"),
        (["--split", "tset"], "has no split 'tset', did you mean test?"),
        (["--out", "{photos}/test/red/1.png"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    photos: Path,
    tmp_path: Path,
) -> None:
    folder = make(tmp_path)
    code, out, err = run(capsys, folder, photos, *(word.format(photos=photos) for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_what_a_file_does_not_tell_about_pixels_may_be_said(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    plain = asked(capsys, folder, photos, "--resolutions", "16")
    words = ("--mean", "0.4,0.3,0.2", "--std", "0.1")
    facts = asked(capsys, folder, photos, "--resolutions", "16", *words)
    assert facts["preprocessing"]["mean"] == [0.4, 0.3, 0.2]
    assert facts["preprocessing"]["std"] == [0.1, 0.1, 0.1]
    assert facts["nll"] != plain["nll"]
    assert facts["resolutions"][0]["value"] == facts["accuracy"]
    for said, sentence in (("grey", "must be numbers"), ("1,2", "must have 1 or 3 numbers")):
        code, _, err = run(capsys, folder, photos, "--mean", said)
        assert (code, sentence in err) == (2, True)


@pytest.mark.slow
def test_the_digits_of_a_foreign_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Its known result is 97.25 % of all 10,000; every tenth is asked here, in a seventh of the
    time."""
    data = golden("mnist")
    whole = open_data(data)["test"]
    images = np.stack([np.asarray(whole.read(place)) for place in range(0, 10_000, 10)])
    assert whole.targets is not None
    with TemporaryDirectory() as folder:
        place = Path(folder) / "tenth.npz"
        np.savez(place, x_test=images, y_test=whole.targets[::10])
        words = ("--set", "heads=4", "--mean", "0.1307", "--std", "0.3081")
        facts = asked(capsys, data / "mnist_vit_researchase.pt", place, *words)
    assert facts["images"] == 1000
    low, high = facts["intervals"]["accuracy"]
    assert low < 0.9725 < high


def test_other_classes_are_refused(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path, labels=("cat", "dog", "hen"))
    code, _, err = run(capsys, folder, photos)
    assert code == 2
    assert "or match by index with --by-index" in err
    facts = asked(capsys, folder, photos, "--by-index")
    assert "class names differ" in facts["notes"][0]


def test_swapped_arguments_are_recognised(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    for verb in ("evaluate", "probe"):
        for first, second in (("digits", folder), (photos, folder), ("digits", photos)):
            assert main([verb, str(first), str(second)]) == 2
            err = capsys.readouterr().err
            assert f"expected MODEL, then DATA: {first} is data, not a model" in err
            assert err.count("\n") == 1
    assert main(["evaluate", str(folder), str(folder)]) == 2
    assert "comes first" not in capsys.readouterr().err


def test_a_temperature_that_makes_calibration_worse_is_called_so(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    (photos / "train").rename(photos / "val")
    for image in (photos / "val" / "blue").glob("*.png"):  # so that val chooses a wrong one
        image.rename(photos / "val" / "red" / f"blue-{image.name}")
    facts = asked(capsys, make(tmp_path), photos, "--device", "cpu", "--precision", "float64")
    worse = facts["temperature"]["ece"] > facts["ece"]
    assert worse == any("makes calibration worse" in note for note in facts["notes"])
    assert worse
