"""Arguments of the wrong kind are refused in one sentence, before anything is computed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image

import vitrail
from vitrail.cli.app import main
from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.inference.nearest import Pair
from vitrail.inference.prediction import Prediction
from vitrail.tasks.duplicates import DuplicateReport
from vitrail.tasks.results import Results, writing_results
from vitrail.weights.dialects.transformers_config import read_activation


@pytest.fixture(scope="module")
def model() -> Any:
    fields = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2, "channels": 1}
    return vitrail.create("vit_ti_16", num_classes=10, **fields)


WRONG: dict[str, tuple[str, Callable[[Any], object]]] = {
    "top": (
        "top must be a whole number, got 2.5",
        lambda model: vitrail.predict(model, Image.new("L", (8, 8)), top=2.5),  # type: ignore[call-overload]
    ),
    "engine": (
        "unknown engine 'spark', known are auto, compiled, eager",
        lambda model: vitrail.evaluate(model, "digits", engine="spark"),
    ),
    "batch_size": (
        "batch_size must be a whole number, got True",
        lambda model: vitrail.evaluate(model, "digits", batch_size=True),
    ),
    "workers": (
        "workers must be a whole number, got '2'",
        lambda model: vitrail.evaluate(model, "digits", workers="2"),  # type: ignore[call-overload]
    ),
    "resolutions": (
        "resolutions must be sides like [160, 224], got '16'",
        lambda model: vitrail.evaluate(model, "digits", resolutions="16"),  # type: ignore[arg-type]
    ),
    "negative resolution": (
        "resolutions must be at least 1, got -8",
        lambda model: vitrail.evaluate(model, "digits", resolutions=[16, -8]),
    ),
    "shots": (
        "shots must be at least 1, got 0",
        lambda model: vitrail.probe(model, "digits", shots=0),
    ),
    "no shots": (
        "shots must name at least one number, got none",
        lambda model: vitrail.probe(model, "digits", shots=[]),
    ),
    "shots as text": (
        "shots must be whole numbers like [1, 5], got '5'",
        lambda model: vitrail.probe(model, "digits", shots="5"),  # type: ignore[arg-type]
    ),
    "info": (
        "source must be a path, a hub id or a module, got int",
        lambda model: vitrail.info(3),  # type: ignore[arg-type]
    ),
    "long name": ("unknown model", lambda model: vitrail.info("x" * 300)),
    "report": (
        "runs must be directories, got int",
        lambda model: vitrail.report([3]),  # type: ignore[list-item]
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_of_the_wrong_kind_is_refused(name: str, model: Any) -> None:
    sentence, call = WRONG[name]
    with pytest.raises(UserError) as caught:
        call(model)
    assert str(caught.value).startswith(sentence)


def test_an_unknown_vector_precision_leaves_nothing_behind(model: Any, tmp_path: Path) -> None:
    Image.new("L", (16, 16)).save(tmp_path / "a.png")
    out = tmp_path / "vectors"
    with pytest.raises(UserError, match="vector_precision must be float16 or float32, got 'int4'"):
        vitrail.embed(model, tmp_path / "a.png", out=out, vector_precision="int4")  # type: ignore[call-overload]
    assert not out.exists()
    index = vitrail.embed(model, tmp_path / "a.png", out=out)
    assert index.embedded == 1
    with pytest.raises(UserError, match="threshold must be a number, got"):
        index.duplicates(threshold="0.9")  # type: ignore[arg-type]


def test_one_number_is_a_list_of_one(model: Any) -> None:
    found = vitrail.evaluate(model, "digits", by_index=True, resolutions=24)
    assert [row.size for row in found.resolutions] == ["24"]
    few = vitrail.probe(model, "digits", shots=1, cache=None)
    assert [one["shots"] for one in few.results["results"]] == [1]


@pytest.mark.parametrize("option", ["--top 2.5", "--batch-size 2.7", "--threads 1.0"])
def test_the_shell_takes_no_fraction_for_a_count(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, number = option.split()
    assert main(["predict", "model", "image.png", name, number]) == 2
    assert f"{name} must be a whole number, got {number}" in capsys.readouterr().err


def test_info_describes_a_module_in_memory(model: Any, tmp_path: Path) -> None:
    path = vitrail.save(model, tmp_path / "model")
    assert vitrail.info(model).facts() == vitrail.info(path).facts() | {"source": "ViT"}


def test_classes_that_share_a_name_have_a_row_each() -> None:
    found = Prediction("a.png", "cat", 0.5, (("cat", 0.5), ("cat", 0.25)))
    page = found._repr_html_()
    assert page.count("<th>cat</th>") == 2
    assert "50.0%" in page
    assert "25.0%" in page


def test_a_directory_of_images_is_no_model_and_no_index(model: Any, tmp_path: Path) -> None:
    photos, vectors = tmp_path / "photos", tmp_path / "vectors"
    photos.mkdir()
    image = photos / "a.png"
    Image.new("L", (16, 16)).save(image)
    with pytest.raises(UserError, match="must be a checkpoint, got the directory of images"):
        vitrail.predict(photos, image)
    vitrail.embed(model, photos, out=vectors)
    with pytest.raises(UserError, match="embeddings comes first, then the image, got"):
        vitrail.search(image, vectors, checkpoint=model)


def test_results_of_another_verb_are_named(tmp_path: Path) -> None:
    with writing_results(tmp_path, "search", ["report.html"], overwrite=False) as draft:
        assert draft is not None
        (draft / "report.html").write_text("found")
    results = Results(tmp_path, "duplicates")
    with pytest.raises(UserError, match="already contains results of vitrail search"):
        results.check(["report.html", "duplicates.json"])


def test_a_report_of_duplicates_prints_one_line_a_pair() -> None:
    found = DuplicateReport("vectors", (Pair("a\nb.png", "c.png", 1.0),), 0.9, "given")
    assert repr(found).splitlines() == [
        "DuplicateReport(1 pair in vectors, cosine at least 0.9)",
        "1.0000  a\\nb.png  c.png",
    ]


def test_a_dry_run_of_convert_checks_where_it_would_write(model: Any, tmp_path: Path) -> None:
    path = vitrail.save(model, tmp_path / "model")
    (tmp_path / "notes").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="notes is a file, not a directory"):
        vitrail.convert(path, tmp_path / "notes" / "out", to="timm", dry_run=True)


def test_python_is_pointed_to_its_own_argument(model: Any, tmp_path: Path) -> None:
    Image.new("L", (16, 16)).save(tmp_path / "a.png")
    (tmp_path / "out.csv").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="or pass overwrite=True"):
        vitrail.predict(model, tmp_path / "a.png", out=tmp_path / "out.csv")


@dataclass(frozen=True)
class Inner:
    lr: float | Literal["find"] = 1.0


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()


def test_a_value_that_does_not_fit_is_named_by_its_field() -> None:
    with pytest.raises(UserError, match=r"file: inner.lr must be a finite number, got NaN"):
        validate(Outer, {"inner": {"lr": float("nan")}}, where="file")
    with pytest.raises(UserError, match=r"file: inner.lr must be a valid number, got 'x'"):
        validate(Outer, {"inner": {"lr": "x"}}, where="file")


def test_one_run_under_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="given twice"):
        vitrail.report([tmp_path, f"{tmp_path}/./"])


def test_an_unknown_activation_lists_those_that_are_known() -> None:
    with pytest.raises(UserError, match=r"hidden_act must be one of gelu, .*, got 'mish'"):
        read_activation("mish", "config.json")
