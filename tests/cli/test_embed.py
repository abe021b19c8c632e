"""`vitrail embed` as a person types it: to write, to go on, to search."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.inference.photos import small_model, write_photos

from vitrail import save
from vitrail.cli.app import main


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    return write_photos(tmp_path / "photos", 12, broken=(5,))


def run(
    capsys: pytest.CaptureFixture[str], *arguments: str, verb: str = "embed"
) -> tuple[int, str, str]:
    code = main([verb, *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def told(capsys: pytest.CaptureFixture[str], *arguments: str, verb: str = "embed") -> list[Any]:
    code, out, err = run(capsys, *arguments, "--json", verb=verb)
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
        f"{out}: 7 images embedded, 1 unreadable\n",
        "",
    )
    (facts,) = told(capsys, model, f"{tmp_path}/photos", "--out", out)
    broken = facts.pop("broken")
    costs = {"speed_up": None, "quantisation": None}
    assert facts == {"out": out, "before": 7, "embedded": 4, **costs}
    assert [one["image"] for one in broken] == [str(photos[5])]
    assert pq.read_table(out)["id"].to_pylist() == photos
    monkeypatch.chdir("/")  # the manifest knows where the model is
    found = told(capsys, out, photos[3], "-k", "3", verb="search")[0]["matches"]
    assert found[0]["id"] == photos[3]
    assert found[0]["cosine"] == pytest.approx(1, abs=1e-5)
    assert len(found) == 3
    (again,) = told(capsys, out, photos[3], "-k", "3", "--checkpoint", model, verb="search")
    assert again["matches"] == found
    code, lines, _ = run(capsys, out, photos[3], "--k", "1", verb="search")
    assert (code, lines) == (0, f"1.0000  {photos[3]}\n")

    twin = tmp_path / "photos" / "twin.jpg"
    twin.write_bytes(Path(photos[2]).read_bytes())
    assert run(capsys, model, str(twin), "--out", out)[0] == 0
    (found,) = told(capsys, out, "--threshold", "0.99999", verb="duplicates")
    assert {"one": photos[2], "other": str(twin)}.items() <= found["pairs"][0].items()
    assert (found["threshold"], found["threshold_source"]) == (0.99999, "given")


def test_no_duplicates_are_told_too(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    assert run(capsys, model, *photos[:3], "--out", out)[0] == 0
    (found,) = told(capsys, out, "--threshold", "1", verb="duplicates")
    assert found["pairs"] == []
    code, lines, _ = run(capsys, out, "--threshold", "1", verb="duplicates")
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
    assert "repeat the command to resume" in err
    written = pq.read_table(out)["id"].to_pylist()
    assert written == photos[: len(written)]
    assert len(written) >= 6
    (facts,) = told(capsys, model, *photos, "--out", out, "--batch-size", "1")
    assert facts["before"] == len(written) - 1, "the broken one is tried again"
    assert pq.read_table(out)["id"].to_pylist() == photos


NEW = ["embed", "{model}", "{photo}", "--out", "{new}"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["embed", "{model}", "x.jpg"], "missing --out DIR"),
        (["embed", "{model}", "--out", "{new}"], "IMAGES is missing: name files or directories"),
        (["embed", "{model}", "gone.jpg", "--out", "{new}"], "gone.jpg: no such file"),
        ([*NEW, "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        ([*NEW, "--address", "auto"], "use engine ray with it"),
        ([*NEW, "--threads", "0"], "threads must be at least 1, got 0"),
        ([*NEW, "--device", "tpu"], "device must be auto, cpu, cuda, cuda:N or mps, got 'tpu'"),
        (["search", "{model}", "{photo}"], "holds no embeddings"),
        (["search", "{out}", "{photo}", "-k", "0"], "k must be at least 1, got 0"),
        (["search", "{out}", "gone.jpg"], "gone.jpg: no such file"),
        (["search", "{tokens}", "{photo}"], "holds tokens"),
        (["search", "{out}", "{photo}", "--checkpoint", "{other}"], "are of another model than"),
        (["duplicates", "{tokens}"], "holds tokens"),
        (["duplicates", "{out}", "--threshold", "3"], "at least -1 and at most 1"),
        (
            ["embed", "{model}", "{photo}", "--out", "{out}", "--tokens"],
            "pooled, not tokens",
        ),
        (["embed", "--search", "{photo}", "{out}"], "use vitrail search DIR IMAGE"),
        (["embed", "--duplicates", "{out}"], "use vitrail duplicates DIR"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_written(
    capsys: pytest.CaptureFixture[str], written: Path, arguments: list[str], sentence: str
) -> None:
    before = states(written)
    names = {"photo": "photos/00000.jpg"} | {
        n: n for n in ("model", "other", "out", "tokens", "new")
    }
    places = {key: str(written / name) for key, name in names.items()}
    verb, *words = (word.format(**places) for word in arguments)
    code, printed, err = run(capsys, *words, verb=verb)
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
    save(small_model(seed=1), folder / "other")
    photo = write_photos(folder / "photos", 12, broken=(5,))[0]
    assert main(["embed", model, photo, "--out", str(folder / "out")]) == 0
    assert main(["embed", model, photo, "--out", str(folder / "tokens"), "--tokens"]) == 0
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loading", [{"changes": 5}, {"grid": 3}, {"colour": "red"}])
def test_a_manifest_that_somebody_wrote_is_checked(
    loading: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert run(capsys, model, photos[0], "--out", str(out))[0] == 0
    told = json.loads((out / "_manifest.json").read_text())
    (out / "_manifest.json").write_text(json.dumps({**told, "loading": loading}))
    code, _, err = run(capsys, str(out), photos[0], verb="search")
    assert code == 2
    assert err.startswith(f"vitrail: {out}/_manifest.json: ")
