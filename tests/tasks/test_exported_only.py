"""What an exported file cannot do is one sentence that asks for the checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from vitrail.cli.app import main


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2}
    folder = tmp_path_factory.mktemp("exported")
    Image.new("RGB", (20, 30), "red").save(folder / "photo.png")
    vitrail.export(vitrail.create("vit_ti_16", num_classes=3, **fields), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.slow
def test_verbs_that_need_the_checkpoint(exported: Path, tmp_path: Path) -> None:
    photo = exported.with_name("photo.png")
    calls: dict[str, Callable[[], object]] = {
        "explain": lambda: vitrail.explain(exported, photo),
        "draw figures": lambda: vitrail.figures(exported),
        "count layers": lambda: vitrail.info(exported),
        "compare engines": lambda: vitrail.bench(exported),
        "export again": lambda: vitrail.export(exported, tmp_path / "again.onnx"),
        "merge tokens": lambda: vitrail.predict(exported, photo, speed_up=1.5),
    }
    for verb, call in calls.items():
        with pytest.raises(vitrail.UserError, match=f"cannot be used to {verb}: give the checkp"):
            call()
    with pytest.raises(vitrail.UserError, match="has a runtime of its own"):
        vitrail.predict(exported, photo, engine="compiled")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [["--engine", "openvino"], ["--speed-up", "1.5"], ["--address", "auto"], ["--dry-run"]],
)
def test_options_of_predict_are_not_ignored(
    options: list[str], exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["predict", str(exported), str(exported.with_name("photo.png"))]
    assert main([*line, *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_only_what_an_export_wrote_is_replaced(exported: Path, tmp_path: Path) -> None:
    model = vitrail.create("vit_ti_16", depth=1, num_classes=3)
    for name in ("mine.onnx", "mine.onnx.json"):
        (tmp_path / name).write_text("notes")
        with pytest.raises(vitrail.UserError, match="was not written by an export"):
            vitrail.export(model, tmp_path / "mine.onnx", overwrite=True, dry_run=True)
        assert (tmp_path / name).read_text() == "notes"
        (tmp_path / name).unlink()
    vitrail.export(model, exported, overwrite=True, dry_run=True)
    with pytest.raises(vitrail.UserError, match="cannot be written"):
        vitrail.export(model, exported / "below" / "a-file.onnx", dry_run=True)
