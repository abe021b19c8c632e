"""The page that `--to web` writes: its files, its runtime, and its arithmetic against Python's."""

import base64
import io
import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.exporters.table import placeholder_runtime
from tests.parity.test_every_family import SHALLOW, make
from vitrail import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.framing import frame_image, normalise_pixels
from vitrail.evaluation.fewshot import fit_ridge
from vitrail.exporters import export as exporting
from vitrail.exporters.export import Export
from vitrail.exporters.web import runtime
from vitrail.exporters.web.target import SITE, device_pattern, vertical_first
from vitrail.inference.onnx_file import OnnxFile
from vitrail.models.model import Model

APP = SITE / "app"
ADDRESS = re.compile(r"(?:https?:)?//[a-z0-9-]+\.[a-z]{2,}", re.IGNORECASE)
TEXT = (".html", ".css", ".js", ".json", ".webmanifest")
NODE = shutil.which("node")

needs_node = pytest.mark.skipif(
    NODE is None, reason="node is not installed: it runs the page's code"
)


@pytest.fixture(scope="module")
def model() -> Model:
    made = make("vit", configs=SHALLOW)
    made.passport = replace(made.passport, labels=("cat", "dog", "Pferd", "고양이", "<b>"))
    return made


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files by the names of ONNX Runtime Web's, which nobody runs."""
    folder = placeholder_runtime(tmp_path_factory.mktemp("runtime"))
    (folder / "dist" / "ort.all.min.js").write_text("// nobody needs this one")
    return folder


@pytest.fixture(scope="module")
def page(model: Model, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("web") / "page"
    done = vitrail.export(model, out, to="web", runtime=dist)
    assert isinstance(done, Export)
    assert done.check is not None
    assert done.check.label_agreement == 1
    return out


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and no npm."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("shutil.which", lambda name: None)


def run_node(code: str, given: Any) -> Any:
    """What a module prints as JSON; `given` is the global of this name."""
    assert NODE is not None
    head = 'import fs from "fs"; const given = JSON.parse(fs.readFileSync(0, "utf-8"));\n'
    line = [
        NODE,
        "--experimental-vm-modules",
        "--no-warnings",
        "--input-type=module",
        "-e",
        head + code.replace("APP", APP.as_uri()),
    ]
    done = subprocess.run(line, input=json.dumps(given), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def base64_of(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


@pytest.mark.slow
def test_the_folder_holds_what_a_page_needs(page: Path, model: Model) -> None:
    record = json.loads((page / "export.json").read_text())
    found = exporting.files_in(page)
    assert {*found} == {*record["files"], "export.json"}
    assert {f"app/{file.name}" for file in APP.iterdir()} <= {*found}
    assert {f"runtime/{name}" for name in (*runtime.EVERY, "LICENSE.txt")} <= {*found}
    assert "runtime/ort.all.min.js" not in found
    assert record["target"] == "web"
    maps = ["maps.blocks.0.attention"]
    assert record["outputs"] == ["logits", "pooled", *maps]
    assert record["max_difference"] < 1e-5
    facts = json.loads((page / "model.json").read_text(encoding="utf-8"))
    assert facts["labels"] == list(model.passport.labels or ())
    assert facts["preprocessing"]["size"] == [32, 48]
    assert [one["name"] for one in facts["maps"]] == maps
    assert facts["runtime"] == "onnxruntime-web 9.9.9"
    manifest = json.loads((page / "manifest.webmanifest").read_text())
    for icon in manifest["icons"]:
        with Image.open(page / icon["src"]) as image:
            assert icon["sizes"] == f"{image.width}x{image.height}"


@pytest.mark.slow
def test_the_service_worker_knows_every_file(page: Path) -> None:
    code = (page / "sw.js").read_text()
    listed = re.search(r"const FILES = (\[.*?\]);", code, re.DOTALL)
    assert listed is not None
    assert {*json.loads(listed[1])} == {*exporting.files_in(page)} - {"sw.js", "export.json"}
    assert re.match(r'const BUILD = "[0-9a-f]{16}";', code)


def test_no_file_has_an_address_of_elsewhere(page: Path) -> None:
    ours = [
        file for file in page.rglob("*") if file.suffix in TEXT and file.parent.name != "runtime"
    ]
    assert len(ours) > 15
    assert not {file.name: ADDRESS.findall(file.read_text(encoding="utf-8")) for file in ours
                if ADDRESS.search(file.read_text(encoding="utf-8"))}  # fmt: skip


def test_the_policy_permits_its_own_files_and_wasm_alone(page: Path) -> None:
    html = (page / "index.html").read_text()
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert found is not None
    rules = dict(rule.strip().split(" ", 1) for rule in found[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert not [rule for rule in rules.values() if "unsafe-inline" in rule or "*" in rule]
    joined = re.search(r"const POLICY =\s*\"(.*?)\" \+\s*\"(.*?)\";", (SITE / "sw.js").read_text())
    assert joined is not None
    assert joined[1] + joined[2] == found[1]
    assert not re.search(r"<style|<script(?! type=\"module\" src)| style=| on\w+=", html)


def test_both_languages_say_everything() -> None:
    texts = json.loads((SITE / "strings.json").read_text(encoding="utf-8"))
    english, korean = texts["en"], texts["ko"]
    assert list(english) == list(korean)
    holes = re.compile(r"\{(\w+)\}")
    for key in english:
        assert {*holes.findall(english[key])} == {*holes.findall(korean[key])}, key
        assert korean[key].strip(), key
        assert english[key].strip(), key
    code = "".join(
        file.read_text(encoding="utf-8") for file in [*APP.iterdir(), SITE / "index.html"]
    )
    quoted = {*re.findall(r"[\"']([a-z]+(?:\.[a-z]+)+)[\"']", code)}
    html = {*re.findall(r'data-(?:text|label|placeholder)="([^"]+)"', code)}
    assert html <= english.keys()
    assert not english.keys() - quoted


def test_every_text_in_the_page_comes_from_the_catalogue() -> None:
    html = re.sub(
        r"<(head|h1)[\s>].*?</\1>", "", (SITE / "index.html").read_text(), flags=re.DOTALL
    )
    assert not re.sub(r"<[^>]*>", "", html).strip()


@needs_node
def test_the_scripts_are_valid(page: Path) -> None:
    """Parsed by node, not run: they need a browser."""
    code = """
    import vm from "vm";
    for (const [identifier, text] of Object.entries(given)) {
      new vm.SourceTextModule(text, { identifier });
    }
    console.log(Object.keys(given).length);
    """
    files = [*sorted((page / "app").iterdir()), page / "sw.js"]
    assert run_node(code, {file.name: file.read_text(encoding="utf-8") for file in files}) > 10
    with pytest.raises(AssertionError, match=r"broken\.js"):
        run_node(code, {"broken.js": "const = 1"})


RESIZE = """
import { frame, normalise } from "APP/preprocess.js";
const text = (array) => Buffer.from(array.buffer).toString("base64");
console.log(JSON.stringify(given.map(({ width, height, data, how }) => {
  const bytes = Buffer.from(data, "base64");
  const read = (top, rows) => bytes.subarray(top * width * 4, (top + rows) * width * 4);
  const pixels = frame({ width, height, read }, how);
  return [text(pixels), text(normalise(pixels, how))];
})));
"""


def some_preprocessing(place: int, draw: np.random.Generator) -> Preprocessing:
    """Every filter, way to fit, crop, number and order of channels."""
    size = tuple(draw.integers(1, 120, 2).tolist())
    larger = (size[0] + int(draw.integers(0, 30)), size[1] + int(draw.integers(0, 30)))
    channels = (3, 3, 1)[place % 3]
    return Preprocessing(
        size=size,
        resize=(None, larger)[place % 2],
        squeeze=place % 5 == 0,
        crop=("rounded", "floored")[place // 2 % 2],
        interpolation=("bilinear", "bicubic", "lanczos", "nearest")[place % 4],
        mean=(0.485, 0.456, 0.406)[:channels],
        std=(0.229, 0.224, 0.225)[:channels],
        channel_order=("rgb", "bgr")[place // 3 % 2] if channels == 3 else "rgb",
    )


@pytest.mark.slow
@needs_node
def test_pixels_equal_pillows_to_the_byte() -> None:
    draw = np.random.default_rng(0)
    cases, expected = [], []
    for place in range(96):
        how = some_preprocessing(place, draw)
        height, width = draw.integers(1, 200, 2).tolist()
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        pixels = np.where(pixels > 128, 255, 0).astype(np.uint8) if place % 3 == 0 else pixels
        rgba = np.pad(pixels, ((0, 0), (0, 0), (0, 1)), constant_values=255)
        settings = asdict(how) | {"vertical_first": vertical_first()}
        cases.append({"width": width, "height": height, "data": base64_of(rgba), "how": settings})
        framed = frame_image(pixels, how)
        rgb = framed[::-1] if how.channel_order == "bgr" else framed
        expected.append((rgb.transpose(1, 2, 0).tobytes(), normalise_pixels(framed, how).tobytes()))
    found = run_node(RESIZE, cases)
    assert [tuple(map(base64.b64decode, pair)) for pair in found] == expected


@pytest.mark.sampled(2)
@needs_node
@pytest.mark.parametrize(("classes", "photos", "width"), [(2, 1, 8), (3, 5, 192), (5, 7, 16)])
def test_the_few_shot_head_is_that_of_the_probe(classes: int, photos: int, width: int) -> None:
    """In float64; also for more photos than features."""
    draw = np.random.default_rng(classes)
    targets = np.repeat(np.arange(classes), photos)
    features = (3 * draw.standard_normal((len(targets), width)) + targets[:, None]).astype(
        np.float32
    )
    asked = draw.standard_normal((4, width)).astype(np.float32)
    code = """
    import { fitHead, scoreHead } from "APP/fewshot.js";
    const features = given.features.map((row) => Float32Array.from(row));
    const head = fitHead(features, given.targets, given.classes);
    const scores = given.asked.map((row) => Array.from(scoreHead(head, Float32Array.from(row))));
    console.log(JSON.stringify({ scores, leftOut: head.leftOut }));
    """
    given = {"features": features.tolist(), "targets": targets.tolist(), "classes": classes}
    found = run_node(code, given | {"asked": asked.tolist()})
    ridge = fit_ridge(features, targets, classes)
    np.testing.assert_allclose(found["scores"], ridge.scores(asked), rtol=0, atol=1e-10)
    assert found["leftOut"] == {
        "right": left_out(features, targets, classes),
        "count": len(targets),
    }


def left_out(features: np.ndarray, targets: np.ndarray, classes: int) -> int:
    """How many get their own label where the head is solved again without each of them, with the
    mean and deviation of all."""
    whole = fit_ridge(features, targets, classes)
    x = np.pad((features.astype(np.float64) - whole.mean) / whole.deviation, ((0, 0), (0, 1)),
               constant_values=100.0)  # fmt: skip
    y = 2.0 * (targets[:, None] == np.arange(classes)) - 1.0
    right = 0
    for place, own in enumerate(targets):
        others = np.arange(len(targets)) != place
        gram = x[others].T @ x[others] + 1024 * np.eye(x.shape[1])
        scores = x[place] @ np.linalg.solve(gram, x[others].T @ y[others])
        right += int(scores.argmax() == own)
    return right


# As the first version of the page wrote it: such files must still open.
FIRST_FILE = (
    '{"format":"vitrail-few-shot","version":1,"model":"d","classes":'
    '[{"name":"고양이","features":["AADAPwAAAMCwD6E0"]}],"head":null}'
)


@needs_node
def test_a_file_of_classes_is_read_back_and_others_are_refused(tmp_path: Path) -> None:
    code = """
    import { readClasses, writeClasses } from "APP/fewshot_file.js";
    const facts = { digest: "d", features: 3 };
    const photos = [{ feature: Float32Array.from([1.5, -2, 3e-7]), picture: null }];
    const words = writeClasses(facts, [{ name: "고양이", photos }], null);
    const read = async (text, model = facts) => {
      try {
        return await readClasses(new Blob([text]), model);
      } catch (error) { return error.message; }
    };
    const [back] = await read(words);
    const [first] = await read(given);
    const wrong = [
      await read("{"), await read("null"), await read("{}"),
      await read(words.replace("고양이", " ")), await read(words, { digest: "d", features: 4 }),
      await read(words, { digest: "e", features: 3 }),
    ];
    const named = ({ name, photos }) => [name, Array.from(photos[0].feature)];
    console.log(JSON.stringify([named(back), named(first), wrong]));
    """
    back, first, wrong = run_node(code, FIRST_FILE)
    assert back == first == ["고양이", np.array([1.5, -2, 3e-7], np.float32).tolist()]
    assert wrong == ["bad"] * 5 + ["other"]


@needs_node
def test_a_device_tests_itself_on_the_image_that_was_computed_here(
    page: Path, model: Model
) -> None:
    code = """
    import { testPattern } from "APP/preprocess.js";
    console.log(JSON.stringify(Array.from(testPattern(given))));
    """
    facts = json.loads((page / "model.json").read_text(encoding="utf-8"))
    pixels = device_pattern((32, 48), 3)
    assert run_node(code, facts["preprocessing"]) == pixels.transpose(1, 2, 0).flatten().tolist()
    how = model.passport.preprocessing
    logits = OnnxFile(page / "model.onnx").run(normalise_pixels(pixels, how)[None])["logits"][0]
    np.testing.assert_allclose(facts["test"]["values"], logits, atol=1e-6)


def test_the_graph_in_the_folder_predicts_like_the_model(page: Path, model: Model) -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    (ours,), (theirs,) = (
        vitrail.predict(model, [photo]),
        vitrail.predict(page / "model.onnx", [photo]),
    )
    assert theirs.label == ours.label
    assert theirs.score == pytest.approx(ours.score, abs=1e-5)


def test_only_what_an_export_wrote_is_replaced(
    model: Model, dist: Path, page: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page"
    shutil.copytree(page, out)

    def plan(**options: Any) -> None:
        vitrail.export(model, out, to="web", runtime=dist, dry_run=True, **options)

    with pytest.raises(UserError, match="already exists"):
        plan()
    plan(overwrite=True)
    (out / "app" / "mine.js").write_text("mine")
    with pytest.raises(
        UserError, match=re.escape("would delete app/mine.js, which no export wrote")
    ):
        plan(overwrite=True)
    (out / "export.json").unlink()
    with pytest.raises(UserError, match="was not written by an export"):
        plan(overwrite=True)
    shutil.rmtree(out)
    out.mkdir()
    plan()  # an empty folder will do
    out.rmdir()
    out.write_text("a file")
    with pytest.raises(UserError, match="is a file"):
        plan(overwrite=True)


def test_a_graph_that_differs_leaves_no_folder(
    model: Model, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(_: object, __: object, ___: object, draft: Path) -> None:
        (draft / "model.onnx").write_bytes(b"half")
        raise UserError("logits must equal the model's")

    monkeypatch.setattr(exporting, "convert", fill)
    with pytest.raises(UserError, match="must equal"):
        vitrail.export(model, tmp_path / "page", to="web", runtime=dist)
    assert not list(tmp_path.iterdir())


def test_without_npm_or_a_runtime_it_is_one_sentence(
    model: Model, tmp_path: Path, no_network: None
) -> None:
    with pytest.raises(UserError, match="npm, which is not installed: install npm, or give"):
        vitrail.export(model, tmp_path / "page", to="web", dry_run=True)


def pack(folder: Path, out: Path, names: dict[str, str] | None = None) -> Path:
    """An npm package: a .tgz with everything below package/."""
    with tarfile.open(out, "w:gz") as tar:
        tar.add(folder, "package")
        for name, text in (names or {}).items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return out


@pytest.fixture
def places(dist: Path, tmp_path: Path) -> dict[str, Path]:
    return {
        "package": dist,
        "dist": dist / "dist",
        "tgz": pack(dist, tmp_path / "runtime.tgz"),
        "escaping": pack(dist, tmp_path / "bad.tgz", {"package/LICENSE/../../../escaped": "!"}),
    }


@pytest.mark.parametrize("kind", ["package", "dist", "tgz"])
def test_a_runtime_is_taken_from_where_it_is(
    kind: str, places: dict[str, Path], tmp_path: Path, no_network: None
) -> None:
    version = runtime.copy_runtime(places[kind], tmp_path / "out")
    assert version == "onnxruntime-web 9.9.9"
    assert {file.name for file in (tmp_path / "out").iterdir()} == {*runtime.EVERY, "LICENSE.txt"}
    assert "MIT License" in (tmp_path / "out" / "LICENSE.txt").read_text()


def test_a_runtime_that_is_none_is_one_sentence(
    places: dict[str, Path], tmp_path: Path, no_network: None
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.tgz").write_text("no archive")
    for given, sentence in (
        (tmp_path / "empty", "ort.wasm.min.mjs is missing"),
        (tmp_path / "no.tgz", "cannot be read as an npm package"),
        (places["escaping"], "cannot be read as an npm package"),
    ):
        with pytest.raises(UserError, match=sentence):
            runtime.copy_runtime(given, tmp_path / f"out-{given.name}")
    assert not list(tmp_path.rglob("escaped"))
    with pytest.raises(UserError, match="no such directory"):
        runtime.check_runtime(tmp_path / "absent")


def test_a_package_with_another_digest_is_not_used(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    fetched = pack(dist, tmp_path / "fetched.tgz")
    monkeypatch.setattr(runtime, "npm_pack", lambda place: fetched)
    with pytest.raises(UserError, match="must have the SHA-512"):
        runtime.fetch_archive()
    assert not runtime.archive_path().exists()
    monkeypatch.setattr(runtime, "SHA512", runtime.digest(fetched))
    kept = runtime.fetch_archive()
    monkeypatch.setattr(runtime, "npm_pack", lambda place: pytest.fail("is in the cache"))
    assert runtime.fetch_archive() == kept


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"preprocessing": True}, "preprocessing must be off for the web"),
        ({"to": "onnx"}, r"must end in \.onnx"),
        ({"precision": "int4"}, "precision must be float32 or float16 or int8 for Web"),
    ],
)
def test_what_a_page_cannot_do_is_one_sentence(
    options: dict[str, Any], sentence: str, model: Model, dist: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        vitrail.export(model, tmp_path / "page", **{"to": "web", "runtime": dist, **options})
    with pytest.raises(UserError, match=r"must not end in \.onnx"):
        vitrail.export(model, tmp_path / "page.onnx", to="web")
    with pytest.raises(UserError, match="runtime must be left out for ONNX"):
        vitrail.export(model, tmp_path / "model.onnx", runtime=dist)
    assert not list(tmp_path.iterdir())


def test_a_model_of_16_bits_is_refused(dist: Path, tmp_path: Path) -> None:
    """A browser decodes every photo to 8 bits, also the files that Python reads with 16."""
    photo = tmp_path / "photo.png"
    values = np.random.default_rng(0).integers(0, 2**16, (40, 40), dtype=np.uint16)
    Image.fromarray(values).save(photo)
    made = vitrail.create("vit_ti_16", depth=1, channels=1, image_size=32)
    how = replace(made.passport.preprocessing, bits=16)
    made.passport = replace(made.passport, preprocessing=how)
    with pytest.raises(UserError, match=r"1 channels of 16 bits, a page reads .* to onnx"):
        vitrail.export(made, tmp_path / "page", to="web", runtime=dist, images=[photo])
    assert [file.name for file in tmp_path.iterdir()] == ["photo.png"]
