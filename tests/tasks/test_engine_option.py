"""`engine=` of the verbs: what decides the bits is kept with what was computed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.inference.engine_doubles import Double, use
from tests.inference.photos import small_model, write_photos
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.inference.engines import auto
from vitrail.inference.parts import MANIFEST
from vitrail.inference.writers import write_predictions
from vitrail.tasks import predict as task


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Double:
    made = Double("double")
    use(monkeypatch, made)
    return made


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    return write_photos(tmp_path / "photos", 5)


def stop_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when so many predictions have been written."""
    write = write_predictions

    def stopping(out: Path, found: Iterator[Any], **options: Any) -> Any:
        def some() -> Iterator[Any]:
            for number, one in enumerate(found):
                if number == count:
                    raise KeyboardInterrupt
                yield one

        return write(out, some(), **options)

    monkeypatch.setattr(task, "write_predictions", stopping)


def test_a_run_that_stopped_is_resumed_with_its_engine(
    engine: Double, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = small_model(), tmp_path / "labels.jsonl"
    options: Any = {"out": out, "batch_size": 2, "threads": 1}
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(KeyboardInterrupt, match="predictions saved"):
            vitrail.predict(model, photos, engine="double", **options)
    with pytest.raises(UserError, match="another model or other options"):
        vitrail.predict(model, photos, engine="eager", **options)
    before = engine.opened
    assert vitrail.predict(model, photos, **options).images == 5  # auto: five would be eager
    assert engine.opened == before + 1
    assert not out.with_name(f".{out.name}.partial").exists()


def test_a_journal_without_an_engine_is_of_eager(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = small_model(), tmp_path / "labels.jsonl"
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(KeyboardInterrupt):
            vitrail.predict(model, photos, out=out, batch_size=2, threads=1)
    journal = out.with_name(f".{out.name}.partial")
    first, *rest = journal.read_text(encoding="utf-8").splitlines()
    header = {key: value for key, value in json.loads(first).items() if key != "engine"}
    journal.write_text("\n".join([json.dumps(header), *rest, ""]), encoding="utf-8")
    done = vitrail.predict(model, photos, out=out, batch_size=2, threads=1)
    assert done.facts()["images"] == 5


def test_a_directory_of_embeddings_keeps_its_engine(
    engine: Double, photos: list[str], tmp_path: Path
) -> None:
    model, out = small_model(), tmp_path / "vectors"
    vitrail.embed(model, photos[:2], out=out, engine="double", threads=1)
    assert json.loads((out / MANIFEST).read_text(encoding="utf-8"))["engine"] == "double"
    before = engine.opened
    assert vitrail.embed(model, photos, out=out, threads=1).embedded == 3
    assert engine.opened == before + 1
    with pytest.raises(UserError, match="was made with engine double, not eager"):
        vitrail.embed(model, photos, out=out, engine="eager")


def test_a_manifest_without_an_engine_is_of_eager(photos: list[str], tmp_path: Path) -> None:
    model, out = small_model(), tmp_path / "vectors"
    vitrail.embed(model, photos[:2], out=out, threads=1)
    facts = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    assert facts.pop("engine") == "eager"
    (out / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")
    assert vitrail.embed(model, photos, out=out, threads=1).embedded == 3


def test_evaluate_and_probe_compute_by_the_engine(
    engine: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: Any = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2}
    model = vitrail.create("vit_ti_16", num_classes=10, channels=1, **fields)
    monkeypatch.setattr("tests.inference.engine_doubles.small_model", lambda: model.eval())
    found = vitrail.evaluate(model, "digits", engine="double")
    assert found.engine == "double"
    assert found.facts()["accuracy"] == vitrail.evaluate(model, "digits").accuracy
    before = engine.opened
    options: Any = {"shots": [1], "seeds": 1, "cache": None}
    vitrail.probe(model, "digits", engine="double", **options)
    assert engine.opened > before
    with pytest.raises(UserError, match="a linear probe reads blocks: engine must be eager"):
        vitrail.probe(model, "digits", engine="double", method="linear", cache=None)


def test_a_long_list_of_names_is_counted_for_auto(
    photos: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int | None] = []

    def note(model: Any, plan: Any, engine: str, *, images: int | None, **rest: Any) -> Any:
        counts.append(images)
        return auto.open_runner(model, plan, "eager")

    monkeypatch.setattr("vitrail.inference.predict.open_runner", note)
    model = small_model()
    vitrail.predict(model, photos)
    vitrail.predict(model, (name for name in photos))
    vitrail.predict(model, Path(photos[0]).parent)
    vitrail.predict(model, [np.zeros((8, 8, 3), np.uint8)] * 4)
    vitrail.predict(model, (np.zeros((8, 8, 3), np.uint8) for _ in range(4)))
    assert counts == [5, 5, 5, 4, None]  # images that a generator makes are not held to be counted


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("openvno", "unknown engine 'openvno', did you mean openvino?"),
        ("ray:auto", "name their engine, as ray:openvino"),
    ],
)
def test_a_wrong_engine_is_one_sentence(
    engine: str,
    sentence: str,
    photos: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = str(vitrail.save(small_model(), tmp_path / "model"))
    assert main(["predict", model, photos[0], "--engine", engine]) == 2
    assert sentence in capsys.readouterr().err


def test_few_images_do_not_each_build_an_engine_of_their_own(
    engine: Double, photos: list[str]
) -> None:
    """One image is a batch of one; more are filled up to the batch of a long job."""
    for count in (2, 3, 5):
        assert len(vitrail.predict(small_model(), photos[:count], engine="double")) == count
    assert engine.built == 1
    vitrail.predict(small_model(), photos[:1], engine="double")
    vitrail.predict(small_model(), photos[0], engine="double")
    assert engine.built == 2


def test_int8_at_native_resolution_is_refused_before_anything_is_read(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.tasks.int8.sample_calibration", None)
    options: Any = {"precision": "int8", "native_resolution": True}
    with pytest.raises(UserError, match="int8 must be left out with native_resolution=True"):
        vitrail.predict(small_model(), photos, **options)
    with pytest.raises(UserError, match="int8 must be left out with native_resolution=True"):
        vitrail.embed(small_model(), photos, out=tmp_path / "vectors", **options)


@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_an_exported_file_computes_with_the_threads_of_the_job(
    verb: str, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int | None] = []

    def refuse(path: Any, *, threads: int | None = None) -> None:
        opened.append(threads)
        raise UserError("enough")

    monkeypatch.setattr("vitrail.inference.exported_model.open_exported", refuse)
    run = getattr(vitrail, verb)
    for threads in (1, 3):
        with pytest.raises(UserError, match="enough"):
            run("model.onnx", photos, out=tmp_path / "out.jsonl", threads=threads)
    assert opened == [1, 3]
    command = [verb, "model.onnx", *photos, "--out", str(tmp_path / "out.jsonl"), "--threads", "2"]
    assert main(command) == 2
    assert opened[-1] == 2
    with pytest.raises(UserError, match="enough"):
        vitrail.evaluate("model.onnx", "digits")  # its option sets torch's own threads
    assert opened[-1] == torch.get_num_threads()


def test_progress_is_shown_while_engines_are_tried_and_ends_before_the_first_line(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @contextmanager
    def progress() -> Iterator[Any]:
        yield lambda what, done, total: events.append(what)
        events.append("closed")

    @contextmanager
    def stream(model: Any, names: Any, how: Any, count: Any, on_progress: Any, **rest: Any) -> Any:
        on_progress("trying engines", 0, 3)
        yield iter(())

    saved = str(vitrail.save(small_model(), tmp_path / "model"))
    monkeypatch.setattr("vitrail.cli.predict.progress", progress)
    monkeypatch.setattr(task, "stream_predictions", stream)
    monkeypatch.setattr(
        "vitrail.cli.predict.print_lines", lambda found, json: events.append("lines")
    )
    assert main(["predict", saved, *photos]) == 0
    assert events == ["trying engines", "closed", "lines"]
