"""`vitrail embed` as a person types it: to write, to go on, to search."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.inference.pictures import small_model, write_photos

from vitrail import save
from vitrail.cli.app import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(save(small_model(), tmp_path / "model"))


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    return write_photos(tmp_path / "photos", 12, broken=(5,))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["embed", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_write_go_on_and_search(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = str(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "model", *photos[:8], "--out", out) == (
        0,
        f"{out}: 7 images embedded, 1 cannot be read\n",
        "",
    )
    (facts,) = told(capsys, model, f"{tmp_path}/photos", "--out", out)
    assert facts == {"out": out, "before": 7, "embedded": 4, "broken": 1}
    assert pq.read_table(out)["id"].to_pylist() == photos
    monkeypatch.chdir("/")  # the manifest knows where the model is
    found = told(capsys, "--search", photos[3], out, "--count", "3")
    assert found[0]["id"] == photos[3]
    assert found[0]["cosine"] == pytest.approx(1, abs=1e-5)
    assert len(found) == 3
    assert told(capsys, "--search", photos[3], model, out, "--count", "3") == found
    code, lines, _ = run(capsys, "--search", photos[3], out, "--count", "1")
    assert (code, lines) == (0, f"1.0000  {photos[3]}\n")

    twin = tmp_path / "photos" / "twin.jpg"
    twin.write_bytes(Path(photos[2]).read_bytes())
    assert run(capsys, model, str(twin), "--out", out)[0] == 0
    (found,) = told(capsys, "--duplicates", out, "--threshold", "0.99999")
    assert {"one": photos[2], "other": str(twin)}.items() <= found["pairs"][0].items()
    assert (found["threshold"], found["threshold_source"]) == (0.99999, "given")


def test_no_duplicates_are_told_too(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    assert run(capsys, model, *photos[:3], "--out", out)[0] == 0
    (found,) = told(capsys, "--duplicates", out, "--threshold", "1")
    assert found["pairs"] == []
    code, lines, _ = run(capsys, "--duplicates", out, "--threshold", "1")
    assert (code, lines) == (0, "0 pairs with a cosine of at least 1 (given)\n")


def test_ctrl_c_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def names() -> object:
        yield from (f"{name}\n" for name in photos[:9])
        raise KeyboardInterrupt

    out = str(tmp_path / "out")
    monkeypatch.setattr("sys.stdin", names())
    code, _, err = run(capsys, model, "-", "--out", out, "--batch-size", "1", "--threads", "1")
    assert code == 130
    assert "the same command goes on from there" in err
    written = pq.read_table(out)["id"].to_pylist()
    assert written == photos[: len(written)]
    assert len(written) >= 6
    (facts,) = told(capsys, model, *photos, "--out", out, "--batch-size", "1")
    assert facts["before"] == len(written) - 1, "the broken one is tried again"
    assert pq.read_table(out)["id"].to_pylist() == photos


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{model}", "x.jpg"], "missing --out DIR"),
        (["{model}", "--out", "{new}"], "no pictures"),
        (
            ["{model}", "x.jpg", "--out", "{new}", "--batch-size", "0"],
            "--batch-size must be at least 1",
        ),
        (["{model}", "x.jpg", "--out", "{new}", "--address", "auto"], "add --engine ray"),
        (
            ["{model}", "x.jpg", "--out", "{new}", "--threads", "0"],
            "--threads must be at least 1, got 0",
        ),
        (["--search", "{photo}", "{model}"], "holds no embeddings"),
        (["--search", "{photo}", "{out}", "--duplicates"], "ask one"),
        (["--search", "{photo}", "{out}", "--count", "0"], "--count is 0"),
        (["--search", "gone.jpg", "{out}"], "gone.jpg: cannot be read"),
        (["--search", "{photo}", "{model}", "{out}", "{out}"], "expected one directory"),
        (["--search", "{photo}", "{tokens}"], "holds tokens"),
        (["--duplicates", "{tokens}"], "holds tokens"),
        (["--duplicates", "{out}", "--threshold", "3"], "between -1 and 1"),
        (["{model}", "{photo}", "--out", "{out}", "--tokens"], "output pooled, not tokens"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_written(
    capsys: pytest.CaptureFixture[str], written: Path, arguments: list[str], sentence: str
) -> None:
    before = states(written)
    names = {"photo": "photos/00000.jpg"} | {n: n for n in ("model", "out", "tokens", "new")}
    places = {key: str(written / name) for key, name in names.items()}
    code, printed, err = run(capsys, *(word.format(**places) for word in arguments))
    assert (code, printed) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert states(written) == before


def states(folder: Path) -> dict[Path, int]:
    """Every file, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, images, and what was embedded of one of them: pooled in `out`, and as tokens."""
    folder = tmp_path_factory.mktemp("written")
    model = str(save(small_model(), folder / "model"))
    photo = write_photos(folder / "photos", 12, broken=(5,))[0]
    assert main(["embed", model, photo, "--out", str(folder / "out")]) == 0
    assert main(["embed", model, photo, "--out", str(folder / "tokens"), "--tokens"]) == 0
    return folder


@pytest.mark.parametrize("asked", [{"set": 5}, {"grid": 3}, {"colour": "red"}])
def test_a_manifest_that_somebody_wrote_is_checked(
    asked: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert run(capsys, model, photos[0], "--out", str(out))[0] == 0
    told = json.loads((out / "_manifest.json").read_text())
    (out / "_manifest.json").write_text(json.dumps({**told, "asked": asked}))
    code, _, err = run(capsys, "--search", photos[0], str(out))
    assert code == 2
    assert err.startswith(f"vitrail: {out}/_manifest.json: ")
