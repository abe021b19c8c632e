"""Exported files as MODEL arguments: the same labels, scores and features as the model."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.parity.test_every_family import SHALLOW, make
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.core.passport import Preprocessing
from vitrail.data.framing import frame_image, normalise_pixels
from vitrail.data.preprocess import denormalise, normalise
from vitrail.data.reader import read_image
from vitrail.exporters.verify import sample_photos
from vitrail.inference.checksum import DIGITS, FRAMES, add_checksum, has_checksum
from vitrail.inference.openvino_file import OpenVinoFile
from vitrail.models.model import Model
from vitrail.tasks.models import open_model

LABELS = ("cat", "dog", "Pferd", "고양이", "<b>")
PASSPORTS = {
    "stretched": Preprocessing(size=(32, 48)),
    "cropped": Preprocessing(size=(31, 47), resize=(40, 56), interpolation="bicubic"),
    "floored, lanczos": Preprocessing(
        size=(30, 30), resize=(37, 37), crop="floored", interpolation="lanczos"
    ),
    "bgr": Preprocessing(size=(32, 32), channel_order="bgr", mean=(0.0,) * 3, std=(1.0,) * 3),
    "grey": Preprocessing(size=(28, 28), mean=(0.13,), std=(0.31,)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PASSPORTS)
def test_without_torch_pixels_are_the_same_to_the_bit(kind: str) -> None:
    how = PASSPORTS[kind]
    for photo in sample_photos():
        expected = read_image(photo, how)
        pixels = np.asarray(Image.open(str(photo)).convert("L" if kind == "grey" else "RGB"))
        framed = frame_image(pixels, how)
        assert np.array_equal(framed, expected.numpy())
        floats = normalise(expected, how, reorder=False)
        assert np.array_equal(normalise_pixels(framed, how), floats.numpy())
        back = denormalise(floats[None], how)[0].permute(2, 0, 1)
        assert torch.equal(back.flip(0) if kind == "bgr" else back, expected)


@pytest.fixture(scope="module")
def model() -> Model:
    made = make("vit", configs=SHALLOW)
    made.passport = replace(made.passport, labels=LABELS)
    return made


@pytest.fixture(scope="module")
def file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "model.onnx"
    vitrail.export(model, out, features=True)
    return out


@pytest.fixture(scope="module")
def pixels_file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "model.xml"
    vitrail.export(model, out, preprocessing=True)
    return out


WITHOUT_TORCH = """
import sys
from vitrail.cli.app import main
code = main(sys.argv[1:])
heavy = {"torch", "torchvision", "jaxtyping", "einops", "matplotlib", "sklearn"} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""


def test_the_shell_predicts_without_importing_torch(model: Model, file: Path) -> None:
    photos = [str(photo) for photo in sample_photos()]
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, "predict", str(file), *photos]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    expected = vitrail.predict(model, photos)
    assert [row["label"] for row in printed] == [one.label for one in expected]
    for row, one in zip(printed, expected, strict=True):
        scores = [pair["score"] for pair in row["top"]]
        np.testing.assert_allclose(scores, [score for _, score in one.top], atol=1e-6)


QUICK = """
import sys
from vitrail.__main__ import main
code = main()
slow = {"torch", "pydantic", "cyclopts", "rich", "jinja2", "matplotlib"} & set(sys.modules)
sys.exit(f"imported {slow}" if code == 0 and slow else code)
"""


def run_quickly(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", QUICK, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_both_ways_print_the_same(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    photos = [str(photo) for photo in sample_photos()]
    words = ["predict", str(file), *photos, str(tmp_path / "broken.jpg"), "--json", "--top", "2"]
    done = run_quickly(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert main(words) == 0
    assert done.stdout == capsys.readouterr().out


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "mistake", ["{file} none.jpg", "{file} {broken}", "none.onnx {photo}", "{file} {photo} --top 0"]
)
def test_both_ways_name_a_mistake_alike(
    mistake: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    places = {"file": file, "broken": tmp_path / "broken.jpg", "photo": sample_photos()[0]}
    words = ["predict", *(word.format(**places) for word in mistake.split())]
    done = run_quickly(*words)
    assert main(words) == done.returncode == 2
    printed = capsys.readouterr()
    assert (done.stdout, done.stderr) == (printed.out, printed.err)
    assert done.stderr.startswith("vitrail: ")


@pytest.mark.slow
def test_an_image_that_cannot_be_read_has_its_problem(
    pixels_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    photos = [str(sample_photos()[0]), str(tmp_path / "broken.jpg")]
    assert main(["predict", str(pixels_file), *photos, "--json"]) == 0
    good, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert good["label"] in LABELS
    assert bad["problem"]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["file", "pixels_file"])
def test_python_takes_an_exported_file(
    which: str, model: Model, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path: Path = request.getfixturevalue(which)
    photos = [str(photo) for photo in sample_photos()]
    found, expected = vitrail.predict(path, photos), vitrail.predict(model, photos)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.label == theirs.label
        assert ours.score == pytest.approx(theirs.score, abs=1e-6)
    vitrail.predict(path, photos, out=tmp_path / "labels.csv")
    assert str(expected[0].label) in (tmp_path / "labels.csv").read_text(encoding="utf-8")


def test_features_are_embedded_where_the_file_has_them(
    file: Path, pixels_file: Path, model: Model, tmp_path: Path
) -> None:
    photos = [str(photo) for photo in sample_photos()]
    images = model.preprocess(photos)
    with torch.no_grad():
        torch.testing.assert_close(open_model(file).features(images), model.features(images))
    assert vitrail.embed(file, photos, out=tmp_path / "exported").facts()["embedded"] == 2
    with pytest.raises(UserError, match="export the model again with features"):
        vitrail.embed(pixels_file, photos, out=tmp_path / "none")


MISTAKES = {
    "--image-size 64": "is an exported file: export the model again with it",
    "--fast": "--fast is for checkpoints",
    "--max-tokens 9": "is an exported file: leave it out, or give the checkpoint",
    "--engine openvino": "which has a runtime of its own: leave it out, or give the checkpoint",
    "--top 0": "--top must be at least 1",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_what_cannot_be_changed_any_more_is_refused(
    options: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = str(sample_photos()[0])
    assert main(["predict", str(file), photo, *options.split()]) == 2
    assert MISTAKES[options] in capsys.readouterr().err


def test_a_file_that_is_none_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo, wrong = str(sample_photos()[0]), tmp_path / "wrong.onnx"
    assert main(["predict", str(wrong), photo]) == 2
    assert "no such file" in capsys.readouterr().err
    wrong.write_bytes(b"\x08\x07not a model")
    assert main(["predict", str(wrong), photo]) == 2
    assert re.fullmatch(r"vitrail: .*ONNX Runtime cannot read it: .*\n", capsys.readouterr().err)
    assert main(["predict", str(tmp_path / "model.pte"), photo]) == 2
    assert "ExecuTorch files are for devices" in capsys.readouterr().err


DAMAGE = {
    "weights": 0.5,  # where in the file a byte is flipped, as a share of what is before the digits
    "graph": 0.0005,
    "the checksum itself": 1.0,
}


def flip(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - DIGITS))] ^= 0x10
    path.write_bytes(data)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", DAMAGE)
def test_a_damaged_onnx_file_is_refused(
    where: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = Path(shutil.copy(file, tmp_path))
    flip(damaged, DAMAGE[where])
    assert main(["predict", str(damaged), str(sample_photos()[0])]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"vitrail: .*model.onnx: is damaged, or was changed after .*\n", error)
    with pytest.raises(UserError, match="is damaged"):
        vitrail.predict(damaged, str(sample_photos()[0]))


@pytest.mark.parametrize("part", ["model.xml", "model.bin"])
def test_a_damaged_openvino_file_is_refused(part: str, pixels_file: Path, tmp_path: Path) -> None:
    for one in (pixels_file, pixels_file.with_suffix(".bin")):
        shutil.copy(one, tmp_path)
    assert vitrail.predict(tmp_path / "model.xml", str(sample_photos()[0])).label in LABELS
    flip(tmp_path / part, 0.5)
    with pytest.raises(UserError, match=f"{part}: is damaged"):
        vitrail.predict(tmp_path / "model.xml", str(sample_photos()[0]))


def test_a_link_to_a_file_stands_for_it(pixels_file: Path, file: Path, tmp_path: Path) -> None:
    """Its weights lie beside what it stands for."""
    for real in (pixels_file, file):
        link = tmp_path / real.name
        link.symlink_to(real)
        assert vitrail.predict(link, str(sample_photos()[0])).label in LABELS


def test_a_checksum_that_was_cut_off_is_missed(file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "model.onnx"
    cut.write_bytes(file.read_bytes()[: -len(FRAMES[".onnx"][0]) - DIGITS])
    with pytest.raises(UserError, match="the checksum at its end is missing"):
        vitrail.predict(cut, str(sample_photos()[0]))


def test_other_programs_read_a_file_with_its_checksum(file: Path, pixels_file: Path) -> None:
    onnx = pytest.importorskip("onnx")
    proto = onnx.load(file)
    onnx.checker.check_model(proto)
    values = {entry.key: entry.value for entry in proto.metadata_props}
    assert re.fullmatch("[0-9a-f]{8} -{8}", values["vitrail.crc32"])
    assert ElementTree.parse(pixels_file).getroot().tag == "net"


def test_weights_in_a_second_file_have_their_checksum(tmp_path: Path) -> None:
    path, weights = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    path.write_bytes(b"graph")
    assert not has_checksum(path, weights)
    weights.write_bytes(b"weights" * 300_000)
    add_checksum(path, weights)
    assert has_checksum(path, weights)
    flip(weights, 0.9)
    with pytest.raises(UserError, match=r"model\.onnx\.data: is damaged"):
        has_checksum(path, weights)


def test_an_xml_file_of_something_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """OpenVINO would try to read it in every format, and print what each of them says."""
    file = tmp_path / "model.xml"
    file.write_text("not xml", encoding="utf-8")
    file.with_suffix(".bin").touch()
    with pytest.raises(UserError, match="it has no <net> element"):
        OpenVinoFile(file)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_directory_with_the_name_of_a_file_says_what_it_is(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / f"pets{suffix}"
    folder.mkdir()
    with pytest.raises(UserError, match=r"is a directory, .* give a file that vitrail export"):
        open_model(folder)
    (folder / f"inside{suffix}").touch()
    with pytest.raises(UserError, match=re.escape(f"give {folder / 'inside'}{suffix}")):
        open_model(folder)
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    with pytest.raises(UserError, match=rf"is a checkpoint directory, .* without {suffix}"):
        open_model(folder)


def test_the_shell_says_that_a_model_is_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, photo = tmp_path / "pets.onnx", tmp_path / "cat.png"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(photo)
    assert main(["predict", str(folder), str(photo)]) == 2
    assert "is a directory, not an exported file" in capsys.readouterr().err
