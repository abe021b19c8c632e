"""`vitrail explain` as a person types it: images, maps, a page, and mistakes in one sentence."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.pages.html import check_page

import vitrail
from vitrail.cli.app import main
from vitrail.core.passport import Preprocessing
from vitrail.data.planted import Planted
from vitrail.data.preprocess import prepare, resize_and_crop_pillow
from vitrail.data.reader import read_pixels
from vitrail.explanation.integrated import IncompleteWarning
from vitrail.explanation.methods import METHODS
from vitrail.explanation.verdict import MethodCheck
from vitrail.tasks.explain_work import Work
from vitrail.tasks.explanation import Explanation, Explanations, visible_part

VIT = {"name": "vit_ti_16", "image_size": 64, "patch_size": 8, "dim": 24, "depth": 2, "heads": 3}
MODELS: dict[str, dict[str, Any]] = {
    "vit": {**VIT, "mlp_dim": 48},
    "swin": {
        "name": "swin_t", "image_size": 64, "dim": 12, "depths": (2, 2), "heads": (1, 2),
        "window_size": 4,
    },
    "mobilevit": {
        "name": "mobilevit_xxs", "image_size": 64, "widths": (8, 8, 8, 8, 8), "dims": (8, 8, 8),
        "depths": (1, 1, 1), "last": 16,
    },
}  # fmt: skip


def make(kind: str, folder: Path, **fields: Any) -> Path:
    """A model whose head says something, with labels."""
    torch.manual_seed(0)
    model = vitrail.create(**{**MODELS[kind], "num_classes": 10, "channels": 1, **fields})
    if model.config.num_classes:
        torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
        model.passport = replace(model.passport, labels=tuple(f"digit {n}" for n in range(10)))
    return vitrail.save(model, folder / f"{kind}-model")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    source = Planted(2, "test")
    for index in range(2):
        Image.fromarray(source.read(index)).save(folder / f"{index}.png")
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["explain", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("kind", "checks", "size"),
    [
        ("vit", "1", 32),
        pytest.param("swin", "2", 64, marks=pytest.mark.slow),
        pytest.param("mobilevit", "2", 64, marks=pytest.mark.slow),
    ],
)
def test_every_method_leaves_an_overlay_a_map_and_a_verdict(
    kind: str,
    checks: str,
    size: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    photos: Path,
) -> None:
    folder = make(kind, tmp_path, image_size=size)
    out, photo = tmp_path / "out", photos / "1.png"
    code, printed, err = run(
        capsys, folder, photo, "--method", "all", "--out", out, "--checks", checks, "--json"
    )
    assert (code, err) == (0, "")
    told = json.loads(printed)
    assert list(told["verdicts"]) == list(METHODS)
    (explained,) = told["images"]
    assert explained["name"] == str(photo)
    assert list(explained["files"]) == [*METHODS, "methods", "layers"]
    for path in explained["files"].values():
        with Image.open(path) as drawn:
            assert min(drawn.size) > 100
    model = vitrail.load(folder).eval()
    image = prepare(read_pixels(photo, channels=1), model.passport.preprocessing)[None]
    said = model(image).argmax(dim=1)
    assert explained["label"] == f"digit {int(said)}"
    with np.load(out / "maps.npz") as maps:
        assert len(maps) == len(METHODS)
        for name, method in METHODS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IncompleteWarning)
                expected = method(model, image, said).map[0].numpy()
            np.testing.assert_allclose(maps[f"1/{name}"], expected, rtol=1e-5, atol=1e-7)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 2 * (1 + len(METHODS))
    read = check_page(page)  # nothing is fetched, and each chart has its numbers
    assert read.charts == 3 * len(METHODS)
    assert len(re.findall("tracks? the model", read.text)) >= len(METHODS)
    assert read.text.index("Images") < read.text.index("Can the maps be trusted?")
    assert f'<h3 title="{photo}">1.png</h3>' in page  # the name, and where it lies


@pytest.mark.slow
def test_the_method_is_chosen_by_the_layout_and_the_verdict_can_be_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    for kind, method in (("vit", "attribution"), ("swin", "smoothgrad")):
        folder, out = make(kind, tmp_path), tmp_path / f"{kind}-out"
        words = ("--out", out, "--no-verdict", "--json")
        code, printed, _ = run(capsys, folder, photos, *words)
        assert code == 0
        told = json.loads(printed)
        assert list(told["images"][0]["files"]) == [method, "layers"]
        assert told["auto"]["method"] == method
        assert told["auto"]["reason"]
        assert told["verdicts"] == {}
        assert "rule" not in told  # there is nothing that it would explain
        assert f"auto chose {method}: " in (out / "report.html").read_text(encoding="utf-8")
        _, lines, _ = run(capsys, folder, photos, "--out", out, "--no-verdict", "--overwrite")
        assert lines.startswith(f"auto chose {method}: {told['auto']['reason']}\n")
        assert "Can the maps be trusted?" not in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_is_held_of_an_image_is_its_maps(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overlays are written as they come, pixels are read again when they are wanted, and only the
    first few images have what the verdict and the page need."""
    works: list[Work] = []
    check_maps = Work.check_maps

    def remember(work: Work) -> dict[str, MethodCheck]:
        works.append(work)
        return check_maps(work)

    monkeypatch.setattr(Work, "check_maps", remember)
    for number in range(2, 6):
        (photos / f"{number}.png").write_bytes((photos / "0.png").read_bytes())
    out = tmp_path / "out"
    found = vitrail.explain(make("vit", tmp_path), photos, checks=1, out=out)
    assert isinstance(found, Explanations)
    assert len(works[0].tested) == 1
    assert [one.heads is not None for one in found] == [True] * 4 + [False] * 2
    assert all(isinstance(one.source, str) for one in found)
    assert {one.map.nbytes for one in found} == {8 * 8 * 4}
    with np.load(out / "maps.npz") as maps:
        assert sorted(maps) == [f"{number}/attribution" for number in range(6)]
        np.testing.assert_array_equal(maps["5/attribution"], found[5].map)


def test_html_alone_writes_one_page_and_no_directory(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make("vit", tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    words: list[str | Path] = [model, photos / "0.png", "--no-verdict", "--html", "page.html"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert "page.html" in out
    assert "report:" not in out
    assert {path.name for path in set(tmp_path.iterdir()) - before} == {"page.html"}
    code, out, err = run(capsys, *words[:-1], "both.html", "--out", "maps")
    assert code == 0, err
    assert (tmp_path / "maps" / "report.html").is_file()
    assert (tmp_path / "both.html").is_file()


@pytest.mark.slow
def test_a_record_shows_itself(tmp_path: Path, photos: Path) -> None:
    model = vitrail.load(make("vit", tmp_path))
    from_file = vitrail.explain(model, photos / "0.png", checks=1)
    in_memory = vitrail.explain(model, Image.open(photos / "0.png"), checks=1)
    assert isinstance(from_file, Explanation)
    assert isinstance(in_memory, Explanation)
    for one in (from_file, in_memory):
        assert one.label is not None
        assert one.verdict is not None
        assert one.map.shape == (8, 8)
        assert one.overlay().size == one.overlay(opacity=0).size == (448, 448)
        assert repr(one).startswith(f"Explanation({one.name}: {one.label} ")
        assert one._repr_html_().startswith("<iframe ")
        one.save_html(tmp_path / "page.html", overwrite=True)
        check_page((tmp_path / "page.html").read_text(encoding="utf-8"))
    np.testing.assert_array_equal(from_file.map, in_memory.map)
    clear = np.asarray(from_file.overlay(opacity=0))
    np.testing.assert_array_equal(clear, from_file.image)
    with pytest.raises(vitrail.UserError, match="no map by method 'rolout'"):
        from_file.overlay("rolout")
    both = vitrail.explain(model, [photos / "0.png", np.asarray(Image.open(photos / "1.png"))])
    assert [one.name for one in both] == [str(photos / "0.png"), "image 1"]


@pytest.mark.slow
def test_an_image_that_cannot_be_read_is_a_line_with_its_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    (photos / "broken.png").write_bytes(b"\x89PNG no picture")
    (photos / "deep").mkdir()
    Image.new("L", (90, 50), 80).save(photos / "deep" / "1.png")  # the same stem as another
    folder, out = make("vit", tmp_path), tmp_path / "out"
    code, printed, _ = run(capsys, folder, photos, "--out", out)
    assert code == 0
    lines = printed.splitlines()
    assert any(line.startswith(f"left out {photos}/broken.png: ") for line in lines)
    assert any(line.startswith("attribution: ") and "the model" in line for line in lines)
    assert any(line.startswith("The test is strict") for line in lines)
    assert not any(line.startswith("A map tracks the model if") for line in lines), "with -v only"
    assert {path.name for path in out.glob("*.attribution.png")} == {
        "0.attribution.png", "1.attribution.png", "1-2.attribution.png",
    }  # fmt: skip
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "broken.png" in page
    code, _, err = run(capsys, folder, photos / "broken.png", "--out", tmp_path / "none")
    assert code == 2
    assert "no image could be explained" in err
    assert not (tmp_path / "none").exists()


def test_target_layer_head_and_query_reach_the_method(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    folder, out = make("vit", tmp_path), tmp_path / "out"
    options = ("--layer", "0", "--head", "2", "--query", "3,4", "--target", "digit 7")
    words = ("--method", "attention", "--method", "gradcam", "--checks", "0", "--json")
    code, printed, _ = run(capsys, folder, photos / "0.png", *options, *words, "--out", out)
    assert code == 0
    told = json.loads(printed)
    assert told["images"][0]["target"] == "digit 7"
    assert told["verdicts"] == {}
    model = vitrail.load(folder).eval()
    image = prepare(read_pixels(photos / "0.png", channels=1), model.passport.preprocessing)[None]
    looked = METHODS["attention"](model, image, layer=0, head=2, query=(3, 4))
    cam = METHODS["gradcam"](model, image, torch.tensor([7]), layer="blocks.0")
    with np.load(out / "maps.npz") as maps:
        np.testing.assert_allclose(maps["0/attention"], looked.map[0].numpy(), rtol=1e-5)
        np.testing.assert_allclose(maps["0/gradcam"], cam.map[0].numpy(), rtol=1e-4, atol=1e-8)


def test_fusion_and_discard_reach_the_rollout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    folder, out = make("vit", tmp_path), tmp_path / "out"
    words = ("--method", "rollout", "--fusion", "max", "--discard", "0.9", "--checks", "0")
    assert run(capsys, folder, photos / "0.png", *words, "--out", out)[0] == 0
    model = vitrail.load(folder).eval()
    image = prepare(read_pixels(photos / "0.png", channels=1), model.passport.preprocessing)[None]
    rolled = METHODS["rollout"](model, image, fusion="max", discard=0.9)
    with np.load(out / "maps.npz") as maps:
        np.testing.assert_allclose(maps["0/rollout"], rolled.map[0].numpy(), rtol=1e-5)


def test_a_foreign_file_that_does_not_tell_its_model_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    """The same tensors in timm's names, and nothing beside them."""
    made, file, out = make("vit", tmp_path), tmp_path / "theirs.safetensors", tmp_path / "out"
    assert main(["convert", str(made), str(file), "--to", "timm"]) == 0
    words = ("--grid", "8x8", "--set", "heads=3", "--checks", "0", "--out", out)
    code, printed, err = run(capsys, file, photos / "0.png", *words, "--json")
    assert (code, err) == (0, "")
    assert Path(json.loads(printed.splitlines()[-1])["report"]).is_file()


def test_where_nothing_can_be_written_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, _, err = run(capsys, make("vit", tmp_path), photos, "--out", tmp_path / "file" / "out")
    assert code == 2
    assert "cannot be written" in err


def test_a_model_without_a_head_is_looked_into_all_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    folder, out = make("vit", tmp_path, num_classes=0), tmp_path / "out"
    code, printed, _ = run(capsys, folder, photos, "--out", out, "--json")
    assert code == 0
    told = json.loads(printed)
    assert list(told["images"][0]["files"]) == ["rollout", "layers"]
    assert told["verdicts"] == {}
    code, _, err = run(capsys, folder, photos, "--out", tmp_path / "cam", "--method", "gradcam")
    assert code == 2
    assert "has no head, and gradcam explains a class" in err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "rolout"], "unknown method 'rolout', did you mean rollout?"),
        (["--method", "attention", "--layer", "9"], "layer must be from 0 to 1, got 9"),
        (["--method", "attention", "--layer", "blocks.7"], "no attention is called 'blocks.7'"),
        (["--method", "gradcam", "--layer", "9"], "layer must be from 0 to 1, got 9"),
        (["--method", "gradcam", "--layer", "nowhere"], "no layer is called 'nowhere'"),
        (["--method", "attention", "--head", "3"], "head of blocks.1.attention must be from 0 to"),
        (
            ["--method", "attention", "--query", "8,0"],
            "query must be a patch from (0, 0) to (7, 7), got (8, 0)",
        ),
        (["--method", "attention", "--query", "left"], "--query must be row,column like 7,3"),
        (["--head", "1"], "head is for attention: choose method attention"),
        (["--method", "hirescam", "--layer", "9"], "layer must be from 0 to 1, got 9"),
        (["--discard", "0.9"], "discard is for rollout: choose method rollout"),
        (["--method", "rollout", "--discard", "1"], "discard is 1.0, expected a share in [0, 1)"),
        (["--dialect", "timm"], "this is a Vitrail checkpoint, not one of dialect 'timm'"),
        (["--target", "digit 77"], "target must be a class of the model, got 'digit 77'"),
        (["--target", "10"], "target must be a class of the model, got '10'"),
        (["--checks", "-1"], "checks must be at least 0, got -1"),
        (["--threads", "0"], "--threads must be at least 1 and at most 256, got 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_written(
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    photos: Path,
) -> None:
    folder, out = make("vit", tmp_path), tmp_path / "out"
    code, printed, err = run(capsys, folder, photos, "--out", out, *words)
    assert (code, printed) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_no_images_is_a_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = run(capsys, make("vit", tmp_path), tmp_path / "empty")
    assert code == 2
    assert f"{tmp_path}/empty: no images found" in err


@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
@pytest.mark.parametrize("resize", [None, (72, 90)])
@pytest.mark.parametrize("pixel_size", [(200, 120), (90, 160), (20, 30)])
def test_what_is_shown_is_what_the_model_sees(
    size: tuple[int, int], resize: tuple[int, int] | None, pixel_size: tuple[int, int]
) -> None:
    how = Preprocessing(size=size, resize=resize, mean=(0.5,), std=(0.5,))
    ramp = np.linspace(0, 255, pixel_size[0])[:, None] + np.linspace(0, 255, pixel_size[1])
    pixels = (ramp / 2).astype(np.uint8)
    seen = visible_part(pixels, how)
    assert max(seen.shape[:2]) == 448
    assert abs(seen.shape[0] / seen.shape[1] - size[0] / size[1]) < 0.05
    small = np.array(Image.fromarray(seen).convert("L").resize((size[1], size[0])), dtype=float)
    framed = np.array(resize_and_crop_pillow(Image.fromarray(pixels), how), dtype=float)
    assert abs(small - framed).mean() < 3
