"""`vitrail predict` as a person types it: what it prints, what it writes, how it ends."""

import csv
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.infer.pictures import small_model, write_photos

from vitrail import predict, save
from vitrail.cli.app import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(save(small_model(), tmp_path / "model"))


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
    code, out, err = run(capsys, model, f"{tmp_path}/photos", "gone.jpg", "--top", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [*photos, "gone.jpg"]
    assert lines[5].endswith("AVIF")
    assert lines[-1] == "gone.jpg  no label: cannot be read: No such file or directory"
    label, second = lines[0].split("  ")[1:]
    assert label.endswith("%")
    assert second.endswith("%")


def test_a_name_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\x1b[2Jevil.jpg\n"))
    code, out, _ = run(capsys, model, "-")
    assert code == 0
    assert out.startswith("\\x1b[2Jevil.jpg  no label")


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
        assert (code, out) == (0, f"{file}: 19 pictures, 1 cannot be read\n")
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
        if one["problem"] is None:
            assert cells["label"] == row["label"] == one["label"]
            assert float(cells["score"]) == row["score"] == one["score"]
            third = {"label": cells["label_3"], "score": float(cells["score_3"])}
            assert third == one["top"][2]


def test_exact_is_what_python_says(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str]
) -> None:
    code, out, _ = run(capsys, model, *photos, "--exact", "--json")
    assert code == 0
    for line, one in zip(out.splitlines(), predict(small_model(), photos), strict=True):
        said = json.loads(line)
        assert (said["label"], said["problem"]) == (one.label, one.problem)
        assert said["score"] == pytest.approx(one.score, rel=1e-5)


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
    assert "exists already" in err
    assert run(capsys, model, photos[1], "--out", str(out), "--overwrite", "--json")[0] == 0
    assert out.read_bytes() != before

    def names() -> object:
        yield f"{photos[0]}\n"
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", names())
    before = out.read_bytes()
    assert run(capsys, model, "-", "--out", str(out), "--overwrite")[0] == 130
    assert out.read_bytes() == before
    assert list(folder.iterdir()) == [out]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["x.jpg", "--top", "0"], "--top is 0"),
        (["x.jpg", "--threads", "0"], "--threads is 0"),
        (["x.jpg", "--batch-size", "0"], "--batch-size is 0"),
        (["x.jpg", "--out", "said.txt"], "expected a file that ends in .jsonl, .csv, .parquet"),
        (["x.jpg", "--engine", "ray"], "--engine ray needs --out"),
        (["x.jpg", "--address", "auto"], "say --engine ray too"),
        (["nothing-like-*.jpg"], "no file matches"),
        ([], "no pictures"),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str], model: str, arguments: list[str], sentence: str
) -> None:
    code, out, err = run(capsys, model, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_parquet_without_pyarrow_is_one_sentence(
    capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    code, _, err = run(capsys, model, "x.jpg", "--out", "said.parquet")
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
        (["--mean", "half"], "--mean is 'half', expected numbers"),
        (["--std", "0.5,0.5"], "--std has 2 numbers, but the model has 3 channels"),
        (["--std", "0"], "--std is '0', but a deviation is above 0"),
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
    assert (code, err) == (2, f"vitrail: no pictures: {tmp_path}/empty holds none\n")
    assert not (tmp_path / "said.csv").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert run(capsys, model, "-")[2] == "vitrail: no pictures: standard input holds none\n"
    monkeypatch.setattr("sys.stdin", None)
    assert "standard input, which is closed" in run(capsys, model, "-")[2]


def test_an_answer_that_is_no_number_is_a_problem(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str]
) -> None:
    code, out, _ = run(capsys, model, photos[0], "--mean", "1e300", "--json")
    assert code == 0
    assert json.loads(out)["problem"] == "what the model says of it is not a number"


def test_a_new_head_is_told_of(
    capsys: pytest.CaptureFixture[str], model: str, photos: list[str]
) -> None:
    code, _, err = run(capsys, model, photos[0], "--set", "num_classes=3")
    assert (code, err) == (0, "note: the model's head is new, and says the same of every picture\n")


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
