"""`vitrail predict` as a person types it: what it prints, what it writes, how it ends."""

import csv
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from PIL import Image
from tests.inference.photos import small_model, write_photos

from vitrail import predict, save
from vitrail.cli.app import main
from vitrail.data.reader import read_image
from vitrail.inference import engine

NEW_HEAD = "note: the model's head is new and untrained: it gives every image the same scores\n"


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    return write_photos(tmp_path / "photos", 19, broken=(5,))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["predict", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_lines_for_people_in_the_order_of_names(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, model, f"{tmp_path}/photos", "--top", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split("  ")[0] for line in lines] == photos
    assert lines[5].endswith("AVIF)")
    label, second = lines[0].split("  ")[1:]
    assert label.endswith("%")
    assert second.endswith("%")


def test_a_file_that_was_named_and_does_not_exist_is_a_mistake(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "labels.csv"
    for words in ([], ["--out", str(out)], ["--json"]):
        code, printed, err = run(capsys, model, photos[0], "gone.jpg", *words)
        told = '{"error": "gone.jpg: no such file", "code": 2}'
        line = told if words == ["--json"] else "vitrail: gone.jpg: no such file"
        assert (code, printed, err) == (2, "", f"{line}\n")
    assert not out.exists()


def test_a_run_that_labels_nothing_has_failed(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], tmp_path: Path
) -> None:
    code, printed, err = run(capsys, model, photos[5])
    assert code == 2
    assert printed.startswith(f"{photos[5]}  no label")
    assert err == "vitrail: none of 1 image could be labelled\n", "the line above says why"
    out = tmp_path / "labels.csv"
    code, printed, err = run(capsys, model, photos[5], "--out", str(out))
    assert code == 2
    assert printed == f"{out}: 1 image, 1 unreadable\n"
    assert out.read_text().count(photos[5]) == 1, "the file has the reason"


def test_a_listed_name_that_does_not_exist_is_a_line_with_its_reason(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"gone.jpg\n{photos[0]}\n"))
    code, out, err = run(capsys, model, "-")
    assert (code, err) == (0, "")
    gone, there = out.splitlines()
    assert gone == "gone.jpg  no label: no such file"
    assert there.startswith(photos[0])


@pytest.mark.parametrize("threads", ["1", "3"])
def test_every_format_says_the_same(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
    threads: str,
) -> None:
    asked = (model, f"{tmp_path}/photos/*.jpg", "--top", "3", "--threads", threads)
    code, out, _ = run(capsys, *asked, "--json")
    assert code == 0
    printed = [json.loads(line) for line in out.splitlines()]
    assert [line["name"] for line in printed] == photos
    assert printed[5]["problem"]
    for suffix in ("jsonl", "csv", "parquet"):
        file = str(tmp_path / f"said.{suffix}")
        code, out, _ = run(capsys, *asked, "--out", file)
        assert (code, out) == (0, f"{file}: 19 images, 1 unreadable\n")
    told = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert told == printed
    with (tmp_path / "said.csv").open(newline="") as file_of_rows:
        table = list(csv.DictReader(file_of_rows))
    assert [row["name"] for row in table] == photos
    rows = pq.read_table(tmp_path / "said.parquet").to_pylist()
    for one, cells, row in zip(printed, table, rows, strict=True):
        assert row["name"] == one["name"]
        assert row["problem"] == one["problem"]
        assert (cells["problem"] or None) == one["problem"]
        assert row["top"] == one["top"]
        if one["problem"] is not None:
            assert one["label"] is one["score"] is row["score"] is None
            assert cells["label"] == cells["score"] == ""
        if one["problem"] is None:
            assert cells["label"] == row["label"] == one["label"]
            assert float(cells["score"]) == row["score"] == one["score"]
            third = {"label": cells["label_3"], "score": float(cells["score_3"])}
            assert third == one["top"][2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [1, 3, 19])
@pytest.mark.parametrize("fast", [False, True])
def test_python_and_the_shell_agree_to_the_bit(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], fast: bool, count: int
) -> None:
    Image.effect_noise((1200, 900), 80).convert("RGB").save(photos[0], quality=90)  # it is scaled
    code, out, _ = run(capsys, model, *photos[:count], "--json", *(["--fast"] if fast else []))
    assert code == 0
    found = predict(small_model(), photos[:count], exact=not fast)
    assert [json.loads(line) for line in out.splitlines()] == [one.facts() for one in found]
    if count == 1:  # the two ways to decode do differ
        assert found != predict(small_model(), photos[:1], exact=fast)
        assert predict(small_model(), photos[0], exact=not fast) == found[0]


def interrupted(names: list[str], after: int) -> Iterator[str]:
    """Lines of standard input, and Ctrl-C while they are read."""
    yield from (f"{name}\n" for name in names[:after])
    raise KeyboardInterrupt


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    out, whole = tmp_path / f"out/labels.{suffix}", tmp_path / f"whole.{suffix}"
    assert run(capsys, model, *photos, "--out", str(whole), "--batch-size", "2")[0] == 0
    asked = (model, "-", "--out", str(out), "--batch-size", "2", "--threads", "1")
    monkeypatch.setattr("sys.stdin", interrupted(photos, 15))
    code, _, err = run(capsys, *asked)
    assert code == 130
    kept = int(err.split("stopped; ")[1].split()[0])
    assert kept >= 8
    assert "repeat the command to resume" in err
    assert not out.exists()

    seen = list[str]()

    def read(path: str, *rest: Any, **options: Any) -> Any:
        seen.append(path)
        return read_image(path, *rest, **options)

    monkeypatch.setattr(engine, "read_image", read)
    Path(photos[2]).write_bytes(Path(photos[3]).read_bytes())  # another image under the same name
    run(capsys, model, *photos, "--out", str(whole), "--batch-size", "2", "--overwrite")
    seen.clear()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(photos)))
    assert run(capsys, *asked)[0] == 0
    assert len(seen) == 19 - kept + 1
    assert {photos[2], photos[5]} <= set(seen), "what changed, and what could not be read"
    assert out.read_bytes() == whole.read_bytes()
    assert list(out.parent.iterdir()) == [out]


def test_another_model_does_not_go_on_with_what_was_kept(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "labels.csv"
    asked = ("-", "--out", str(out), "--batch-size", "1", "--threads", "1")
    monkeypatch.setattr("sys.stdin", interrupted(photos, 9))
    assert run(capsys, model, *asked)[0] == 130
    other = str(save(small_model(1), tmp_path / "other"))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(photos)))
    code, _, err = run(capsys, other, *asked)
    assert code == 2
    assert ".labels.csv.partial: holds the progress of a run with another model" in err
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(photos)))
    assert run(capsys, other, *asked, "--overwrite")[0] == 0
    with out.open(newline="") as file:
        score = float(next(csv.DictReader(file))["score"])
    assert score == predict(small_model(1), photos, batch_size=1)[0].score


def test_a_partial_file_of_somebody_else_is_left_alone(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], tmp_path: Path
) -> None:
    theirs = tmp_path / ".labels.csv.partial"
    theirs.write_text("a download\n")
    asked = (model, photos[0], "--out", str(tmp_path / "labels.csv"), "--overwrite")
    code, _, err = run(capsys, *asked)
    assert code == 2
    assert "was not written by Vitrail" in err
    assert theirs.read_text() == "a download\n"


def test_a_file_is_written_whole_or_not_at_all(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "said"
    folder.mkdir()
    out = folder / "said.csv"
    assert run(capsys, model, photos[0], "--out", str(out))[0] == 0
    before = out.read_bytes()
    code, _, err = run(capsys, model, *photos, "--out", str(out))
    assert code == 2
    assert "already exists" in err
    assert run(capsys, model, photos[1], "--out", str(out), "--overwrite", "--json")[0] == 0
    assert out.read_bytes() != before

    monkeypatch.setattr("sys.stdin", interrupted(photos, 1))
    before = out.read_bytes()
    assert run(capsys, model, "-", "--out", str(out), "--overwrite")[0] == 130
    assert out.read_bytes() == before
    assert list(folder.iterdir()) == [out]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{photo}", "--top", "0"], "top must be at least 1, got 0"),
        (["{photo}", "--threads", "0"], "threads must be at least 1, got 0"),
        (["{photo}", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["{photo}", "--out", "said.txt"], "must be a file that ends in .jsonl, .csv, .parquet"),
        (["{photo}", "--engine", "ray"], "engine ray needs --out FILE"),
        (["{photo}", "--address", "auto"], "use engine ray with it"),
        (["{photo}", "--dry-run"], "--dry-run needs --out FILE"),
        (["{photo}", "-q", "-v"], "contradict"),
        (["nothing-like-*.jpg"], "no file matches"),
        ([], "IMAGES is missing: name files or directories"),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    arguments: list[str],
    sentence: str,
) -> None:
    code, out, err = run(capsys, model, *(word.format(photo=photos[0]) for word in arguments))
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_parquet_without_pyarrow_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    model: str,
    photos: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    code, _, err = run(capsys, model, photos[0], "--out", "said.parquet")
    assert code == 2
    assert "pip install 'vitrail[parquet]'" in err


def test_pixels_are_normalised_as_was_said(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str]
) -> None:
    plain = run(capsys, model, photos[0], "--json")
    same = run(capsys, model, photos[0], "--json", "--mean", "0.5", "--std", "0.5,0.5,0.5")
    other = run(capsys, model, photos[0], "--json", "--mean", "0.2", "--std", "0.3")
    assert plain == same != other
    for words, reason in (
        (["--mean", "half"], "--mean must be numbers like 0.5,0.5,0.5, got 'half'"),
        (["--std", "0.5,0.5"], "std must have 1 or 3 numbers, one for each channel, got 2"),
        (["--std", "0"], "--std must be above 0, got '0'"),
    ):
        code, _, err = run(capsys, model, photos[0], *words)
        assert code == 2
        assert reason in err


def test_no_pictures_at_all_is_a_mistake(
    capsys: pytest.CaptureFixture[str],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = run(capsys, model, f"{tmp_path}/empty", "--out", f"{tmp_path}/said.csv")
    assert (code, err) == (2, f"vitrail: {tmp_path}/empty: no images found\n")
    assert not (tmp_path / "said.csv").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert run(capsys, model, "-")[2] == "vitrail: standard input: no images found\n"
    monkeypatch.setattr("sys.stdin", None)
    assert "standard input, which is closed" in run(capsys, model, "-")[2]


def test_an_answer_that_is_no_number_is_a_problem(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str]
) -> None:
    code, out, _ = run(capsys, model, photos[0], "--mean", "1e300", "--json")
    assert code == 2
    assert json.loads(out)["problem"] == "output is NaN or infinite"


def test_a_new_head_is_told_of(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str]
) -> None:
    code, _, err = run(capsys, model, photos[0], "--set", "num_classes=3")
    assert (code, err) == (0, NEW_HEAD)


@pytest.mark.slow  # tests/cli/test_app.py has a verb that does not import torch
@pytest.mark.parametrize("redirected", [">&-", "> /dev/full"])
def test_an_output_that_nobody_can_read_is_no_bug(
    redirected: str, model: str, photos: list[str]
) -> None:
    if "full" in redirected and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    words = [sys.executable, "-m", "vitrail.cli.app", "predict", model, photos[0]]
    ran = subprocess.run(
        f"{shlex.join(words)} {redirected}", shell=True, capture_output=True, text=True, check=False
    )
    full = "vitrail: standard output cannot be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == ((2, full) if "full" in redirected else (0, ""))


def test_the_directory_of_a_run_names_the_model_in_it(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str], tmp_path: Path
) -> None:
    run_folder = tmp_path / "runs" / "flowers"
    run_folder.mkdir(parents=True)
    (run_folder / "recipe.yaml").write_text("data: flowers\n")
    Path(model).rename(run_folder / "best")
    for words in (["predict", str(run_folder), photos[0]], ["info", str(run_folder)]):
        assert main(words) == 2
        assert f"not a model: use {run_folder / 'best'}" in capsys.readouterr().err
