"""Exported files: compared with the model before they are kept; they know labels and passport."""

import json
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vitrail
from tests.parity.test_every_family import SHALLOW, make
from vitrail import UserError
from vitrail.core.exported import GRAPH, PASSPORT, Exported, read_metadata
from vitrail.core.json_text import to_json
from vitrail.core.passport import Passport
from vitrail.exporters import export as exporting
from vitrail.exporters.export import Export
from vitrail.exporters.target import Request, Target
from vitrail.exporters.targets import TARGETS
from vitrail.exporters.verify import sample_photos
from vitrail.inference.merging import merge_tokens
from vitrail.inference.onnx_file import OnnxFile
from vitrail.inference.openvino_file import OpenVinoFile
from vitrail.models.model import Model
from vitrail.tasks.dry_run import DryRun

FULL = Path("/dev/full")  # of Linux


def labelled_model() -> Model:
    """One block, with every parameter at random and names for its five classes."""
    made = make("vit", configs=SHALLOW)
    names = ("cat", "dog", "Pferd", "고양이", "<b>")
    made.passport = replace(made.passport, labels=names)
    return made


@pytest.fixture
def model() -> Model:
    return labelled_model()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this model in ONNX and for OpenVINO, as it is: for tests that only read it."""
    place, made = tmp_path_factory.mktemp("plain"), labelled_model()
    for suffix in ("onnx", "xml"):
        export(made, place / f"model.{suffix}")
    return place


def export(model: Model, out: Path, **options: object) -> Export:
    done = vitrail.export(model, out, **options)  # type: ignore[arg-type]
    assert isinstance(done, Export)
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in which, after the test, no draft is left."""
    place = tmp_path / "out"
    place.mkdir()
    yield place
    assert not [file.name for file in place.iterdir() if file.name.startswith(".")]


def as_json(passport: Passport) -> str:
    return to_json(asdict(passport))


def metadata_of(file: Path) -> Exported:
    return (OnnxFile if file.suffix == ".onnx" else OpenVinoFile)(file).metadata()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.onnx", "model.xml"])
def test_every_output_is_compared_and_the_file_knows_its_model(
    name: str, model: Model, folder: Path
) -> None:
    done = export(model, folder / name, attention=True, features=True, preprocessing=True)
    assert done.check is not None
    assert done.check.images == 2
    assert done.check.label_agreement == 1
    assert 0 < done.check.max_difference < 1e-5
    assert done.outputs == ("logits", "pooled", "blocks.0.attention")
    assert json.loads((folder / f"{name}.json").read_text())["outputs"] == list(done.outputs)
    found = metadata_of(folder / name)
    assert as_json(found.passport) == as_json(model.passport)
    assert found.graph.input == "uint8"
    assert found.graph.attention["blocks.0.attention"].grid == (4, 6)
    assert str(Path(vitrail.__file__).parent).encode() not in (folder / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mobilevit", "mobilevitv2"])
def test_a_mobilevit_takes_any_size(family: str, folder: Path) -> None:
    with pytest.raises(UserError, match="64x96 is no multiple of 64"):
        export(make(family, configs=SHALLOW), folder / "m.onnx", dynamic_size=True)
    mobile = vitrail.load(make(family, configs=SHALLOW), image_size=64)
    done = export(mobile, folder / "m.onnx", dynamic_size=True)
    assert done.check is not None
    assert len(set(done.check.sizes)) >= 3
    assert done.check.max_difference < 1e-4


@pytest.mark.slow
def test_a_model_that_merges_tokens_is_exported_as_it_is(model: Model, folder: Path) -> None:
    merged = merge_tokens(model.eval(), 4)
    done = export(merged, folder / "MERGED.ONNX")
    assert done.check is not None
    assert done.check.max_difference < 1e-4
    assert OnnxFile(folder / "MERGED.ONNX").metadata().graph.merged_tokens == (4,)
    photo = sample_photos()[0]
    with pytest.raises(UserError, match="export again"):
        vitrail.export(folder / "MERGED.ONNX", folder / "x.onnx")
    assert isinstance(photo, str)
    found = vitrail.predict(folder / "MERGED.ONNX", photo)
    assert found.label == vitrail.predict(merged, photo).label


@pytest.mark.slow
@pytest.mark.parametrize("preprocessing", [False, True])
def test_a_file_for_any_size_is_compared_at_several(
    preprocessing: bool, model: Model, folder: Path
) -> None:
    done = export(model, folder / "m.onnx", dynamic_size=True, preprocessing=preprocessing)
    assert done.check is not None
    assert len(set(done.check.sizes)) == 4
    assert done.check.max_difference < 1e-4
    assert "compared at" in repr(done)
    assert metadata_of(folder / "m.onnx").graph.sides == 8
    assert done.facts()["sizes"][0] == list(model.config.image_size)


@pytest.mark.alone
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["model.mlpackage", "model.pte", "model.tflite"])
def test_a_phone_gets_labels_attention_and_pixels(name: str, model: Model, folder: Path) -> None:
    """Core ML does not run here; the others are compared."""
    done = export(model, folder / name, attention=True, preprocessing=name != "model.mlpackage")
    assert done.outputs == ("logits", "blocks.0.attention")
    record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert record["target"] == done.target
    if name == "model.mlpackage" and sys.platform != "darwin":
        assert done.check is None
        assert "run on macOS only" in done.notes[0]
    else:
        assert done.check is not None
        assert done.check.label_agreement == 1
        assert 0 < done.check.max_difference < 1e-5
    found = read_metadata(stored_texts(folder / name), where=name).passport
    assert as_json(found) == as_json(model.passport)


def stored_texts(file: Path) -> dict[str, str]:
    """The metadata of a file for phones, by the reader that its users have."""
    match file.suffix:
        case ".mlpackage":
            import coremltools

            package = coremltools.models.MLModel(str(file), skip_model_load=True)
            return dict(package.user_defined_metadata)
        case ".pte":
            from executorch.runtime import Runtime

            program = Runtime.get().load_program(file)
            names = {PASSPORT: "vitrail_passport", GRAPH: "vitrail_graph"}
            return {key: program.load_method(name).execute([])[0] for key, name in names.items()}
        case _:
            texts: dict[str, str] = json.loads(Path(f"{file}.json").read_text())["metadata"]
            return texts


@pytest.mark.slow
def test_half_precision_is_smaller_and_near(model: Model, plain: Path, folder: Path) -> None:
    for suffix in ("onnx", "xml"):
        full = json.loads((plain / f"model.{suffix}.json").read_text(encoding="utf-8"))["size"]
        half = export(model, folder / f"half.{suffix}", precision="float16")
        assert half.check is not None
        assert 0 < half.check.max_difference < 2e-2
        assert half.size < 0.9 * full  # the graph of a small model is as large as its weights


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["learned", "learned2d", "sincos1d", "sincos2d"])
def test_half_precision_takes_any_size(positions: str, folder: Path) -> None:
    """What is computed from sizes stays in float32; weights are in float16, and so is the file."""
    fields = {"depth": 1, "num_classes": 3, "image_size": 64, "positions": positions}
    model = vitrail.create("vit_ti_16", **fields)
    for name, weights in model.named_parameters():
        if name.startswith("head"):
            torch.nn.init.normal_(weights, std=0.3)
    full = export(model, folder / "full.onnx", dynamic_size=True)
    half = export(model, folder / "half.onnx", dynamic_size=True, precision="float16")
    assert half.check is not None
    assert half.check.sizes == ((64, 64), (32, 64), (80, 48), (96, 112))
    assert 0 < half.check.max_difference < 2e-2
    assert half.size < 0.6 * full.size


def test_older_names_of_a_precision_are_known(model: Model, folder: Path) -> None:
    plan = vitrail.export(model, folder / "m.onnx", precision="fp16", dry_run=True)  # type: ignore[arg-type]
    assert plan.facts()["precision"] == "float16"
    older = {PASSPORT: to_json(asdict(model.passport))}
    older[GRAPH] = to_json({"target": "onnx", "outputs": ["logits"], "precision": "fp32"})
    assert read_metadata(older, where="m.onnx").graph.precision == "float32"


def test_a_file_that_differs_is_not_kept(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model changes after it was converted."""
    convert = exporting.convert

    def then_change(*arguments: object) -> None:
        convert(*arguments)  # type: ignore[arg-type]
        with torch.no_grad():
            model.get_parameter("head.classes.weight").mul_(1.1)

    monkeypatch.setattr(exporting, "convert", then_change)
    with pytest.raises(UserError, match="logits must equal the model's within"):
        vitrail.export(model, folder / "model.onnx")
    assert not list(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [pytest.param("onnx", marks=pytest.mark.slow), "xml"])
def test_a_full_disk_is_one_sentence_and_nothing_is_left(
    suffix: str, model: Model, folder: Path
) -> None:
    """A limit on the size of files stands for the disk."""
    size = 20_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(UserError, match=rf"model\.{suffix}: cannot be written: File too large"):
            vitrail.export(model, folder / f"model.{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(folder.iterdir())


def test_ctrl_c_while_converting_leaves_nothing(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object, __: Target, ___: object, draft: Path) -> None:
        draft.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "convert", stop)
    with pytest.raises(KeyboardInterrupt):
        vitrail.export(model, folder / "model.onnx")
    assert not list(folder.iterdir())


def test_a_full_disk_is_one_sentence(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, __: Target, ___: object, draft: Path) -> None:
        draft.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "convert", full)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        vitrail.export(model, folder / "model.onnx")
    assert not list(folder.iterdir())


def test_a_full_disk_under_a_copied_folder_is_one_sentence(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise shutil.Error([("from/a", "to/a", "[Errno 28] No space left on device: 'from/a'")])

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device$"):
        exporting.convert(
            Request(model=model),
            replace(TARGETS["coreml"], convert=full),
            {},
            folder / "m.mlpackage",
        )


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_litert_never_writes_a_file_itself(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer ends the process where the disk is full."""

    def export(path: str) -> None:
        raise AssertionError(path)

    converted = SimpleNamespace(export=export, model_content=lambda: b"content")
    library = SimpleNamespace(convert=lambda *_: converted)
    monkeypatch.setitem(sys.modules, "litert_torch", library)
    with pytest.raises(OSError, match="No space left on device"):
        TARGETS["litert"].convert(Request(model=model), {}, FULL)


def test_what_a_converter_raises_is_one_sentence(model: Model, folder: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("\n  operator foo is unknown\nmore")

    with pytest.raises(UserError, match="cannot export this ViT: RuntimeError: operator foo is"):
        exporting.convert(
            Request(model=model),
            replace(TARGETS["onnx"], convert=fail),
            {},
            folder / "model.onnx",
        )


MISTAKES = {
    "unknown target": (("m.onnx", {"to": "onx"}), "did you mean onnx"),
    "unknown suffix": (("m.bin", {}), "must end in .onnx, .xml"),
    "target and suffix differ": (("m.onnx", {"to": "openvino"}), "must end in .xml"),
    "precision": (("m.pte", {"precision": "int8"}), "precision must be float32"),
    "int8": (("m.onnx", {"precision": "int8"}), "real images, got none: give some with images="),
    "size": (("m.xml", {"dynamic_size": True}), "dynamic_size is for ONNX files"),
    "size and attention": (("m.onnx", {"dynamic_size": True, "attention": True}), "leave out att"),
    "no folder": (("file/m.onnx", {}), "cannot be written: Not a directory|cannot be written"),
    "drop": (("m.onnx", {"max_drop": -1.0}), "max_drop must be at least 0"),
    "size and speed": (("m.onnx", {"dynamic_size": True, "speed_up": 2.0}), "leave out dynamic"),
    "no photo": (("m.onnx", {"images": []}), "at least one photo"),
    "bad photo": (("m.onnx", {"images": ["file"]}), "file: "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    mistake: str, model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    Path("file").write_text("no image")
    (name, options), sentence = MISTAKES[mistake]
    with pytest.raises(UserError, match=sentence) as error:
        vitrail.export(model, name, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert [file.name for file in folder.iterdir()] == ["file"]


def test_a_speed_up_is_measured_after_all_that_may_be_refused(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.tasks.export.with_speed_up", None)  # it would take a while
    with pytest.raises(UserError, match="precision must be float32"):
        vitrail.export(model, folder / "m.pte", speed_up=2.0, precision="int8")
    with pytest.raises(UserError, match="no-such-photo"):
        vitrail.export(model, folder / "m.onnx", speed_up=2.0, images="no-such-photo.jpg")
    plan = vitrail.export(model, folder / "m.onnx", speed_up=2.0, dry_run=True)
    assert isinstance(plan, DryRun)


def test_a_model_that_cannot_read_the_sample_photos_says_so(model: Model, folder: Path) -> None:
    how = replace(model.passport.preprocessing, bits=16)
    model.passport = replace(model.passport, preprocessing=how)
    sentence = "reads 3 channels of 16 bits: give images= that the model can read"
    with pytest.raises(UserError, match=sentence):
        vitrail.export(model, folder / "m.onnx")


def test_a_converter_that_is_not_installed_names_its_extra(model: Model, folder: Path) -> None:
    missing = replace(TARGETS["onnx"], packages=("no_such_package",))
    with pytest.raises(UserError, match=re.escape("pip install 'vitrail[fast]'")):
        missing.check(Request(model=model))


@pytest.mark.slow
def test_a_file_that_exists_is_kept_unless_overwritten(
    model: Model, plain: Path, folder: Path
) -> None:
    file = folder / "model.onnx"
    for name in ("model.onnx", "model.onnx.json"):
        shutil.copyfile(plain / name, folder / name)
    first = file.read_bytes()
    file.write_bytes(first + b" ")
    with pytest.raises(UserError, match="already exists"):
        vitrail.export(model, file)
    assert isinstance(vitrail.export(model, file, dry_run=True, overwrite=True).facts(), dict)
    assert file.read_bytes() == first + b" "
    export(model, file, overwrite=True)
    assert metadata_of(file).passport.labels == model.passport.labels


@pytest.mark.slow
def test_weights_too_large_for_one_file_lie_beside_it(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.exporters.onnx.LARGEST", 1000)
    export(model, folder / "model.onnx")
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["model.onnx", "model.onnx.data", "model.onnx.json"]
    images = np.zeros((1, 3, *model.config.image_size), np.float32)
    assert OnnxFile(folder / "model.onnx").run(images)["logits"].shape == (1, 5)


@pytest.mark.slow
def test_a_model_without_a_head_gives_features(model: Model, folder: Path) -> None:
    done = export(model.reset_head(0), folder / "model.onnx")
    assert done.outputs == ("pooled",)
    assert done.check is not None
    assert done.check.label_agreement is None


@pytest.mark.slow
def test_an_untrained_head_is_noted(model: Model, folder: Path) -> None:
    done = export(model.reset_head(4), folder / "model.xml")
    assert any("untrained" in note for note in done.notes)


def test_the_sample_photos_are_there() -> None:
    assert [Path(str(photo)).is_file() for photo in sample_photos()] == [True, True]


def test_weights_of_another_program_beside_the_file_are_kept(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_text("precious")
    for overwrite, reason in (
        (False, "already exists|exists already"),
        (True, "not written by an"),
    ):
        with pytest.raises(UserError, match=reason):
            vitrail.export(
                vitrail.create("vit_ti_16", depth=1), tmp_path / "m.xml", overwrite=overwrite
            )
    assert (tmp_path / "m.bin").read_text() == "precious"


@pytest.mark.parametrize("length", [190, 300])
def test_a_name_that_is_too_long_is_one_sentence(length: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at most 180 bytes"):
        vitrail.export(vitrail.create("vit_ti_16", depth=1), tmp_path / f"{'a' * length}.onnx")
