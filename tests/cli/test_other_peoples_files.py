"""No verb deletes or overwrites what Vitrail did not write; its own results it replaces whole."""

import os
import stat
from pathlib import Path

import pytest
from tests.inference.photos import small_model, write_photos

from vitrail import save
from vitrail.cli.app import main

# Names that Vitrail writes too, and others.
THEIRS = (
    "config.json",
    "model.safetensors",
    "README.md",
    "manifest.json",
    "recipe.yaml",
    "metrics.jsonl",
    "report.html",
    "best/model.safetensors",
    "last/notes.txt",
    "steps/step-000000001/notes.txt",
    "digits/recipe.yaml",
    "digits/notes.txt",
    "explained/report.html",
    "evaluation.json",
    "predictions.csv",
    "probe.json",
    "doctor.json",
    "maps.npz",
    "00000.attribution.png",
    "00000.layers.png",
    "panel.png",
    "figures.json",
    "filters.svg",
    "_manifest.json",
    "part-000000.parquet",
    "labels.parquet",
    "labels.csv",
    ".labels.csv.partial",
    "labels.safetensors",
    "notes.txt",
)
VERBS = {
    "train": ("train digits --steps 2 --batch-size 8 --set monitor.examine_data=false --out {out}"),
    "pretrain": "pretrain digits --steps 2 --batch-size 8 --out {out}",
    "evaluate": "evaluate {model} {data} --out {out}",
    "probe": "probe {model} {data} --method knn --neighbours 1 --no-cache --out {out}",
    "doctor": "doctor {data} --out {out}",
    "predict": "predict {model} {photo} --out {out}/labels.csv",
    "embed": "embed {model} {photo} --out {out}",
    "explain": "explain {model} {photo} --checks 0 --out {out}",
    "figures": "figures {model} {data} --max-images 2 --ablated 0 --out {out}",
    "convert": "convert {model} {out}",
    "convert to a file": "convert {model} {out}/labels.safetensors --to timm",
    "demo": "demo --epochs 1 --out {out}",
}
NAMED = {"convert to a file": "labels.safetensors"}
NO_OVERWRITE = ("train", "pretrain", "embed")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("inputs")
    photos = [
        name
        for part in ("train", "val")
        for label in ("ant", "bee")
        for name in write_photos(folder / "data" / part / label, 3)
    ]
    model = save(small_model(), folder / "model")
    return {"model": str(model), "data": str(folder / "data"), "photo": photos[0]}


def run(verb: str, places: dict[str, str], out: Path, *more: str) -> int:
    return main([*(word.format(**places, out=out) for word in VERBS[verb].split()), *more])


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def fill(folder: Path, names: tuple[str, ...] = THEIRS) -> dict[str, bytes]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"somebody's {name}")
    return contents(folder)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to a default place goes nowhere near the repository."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_files_of_others_are_left_alone(
    verb: str,
    overwrite: bool,
    places: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused in one sentence; with --overwrite too, but for the file or directory that it names
    itself."""
    if overwrite and verb in NO_OVERWRITE:
        pytest.skip("this verb has no --overwrite")
    out = tmp_path / "out"
    before = fill(out)
    code = run(verb, places, out, *(["--overwrite"] if overwrite else []))
    err = capsys.readouterr().err
    after = contents(out)
    if overwrite and verb in NAMED:  # that very file was named
        assert code == 0
        del before[NAMED[verb]], after[NAMED[verb]]
    else:
        assert code == 2
        assert err.startswith("vitrail: ")
        assert err.count("\n") == 1
    assert after == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "report.html", "best/notes.txt", "steps/notes.txt"]
)
@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_a_run_begins_only_where_none_of_its_names_is_taken(
    verb: str,
    name: str,
    places: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    before = fill(out, (name,))
    assert run(verb, places, out) == 2
    taken = name.split("/")[0]
    assert f"{out / taken}: already exists: choose another out" in capsys.readouterr().err
    assert contents(out) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", VERBS)
def test_other_names_may_stay_where_results_go(
    verb: str, places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written beside them, or refused; they stay in either case."""
    out = tmp_path / "out"
    before = fill(out, ("notes.txt", "labels.parquet", "mine/best/notes.txt"))
    run(verb, places, out)
    after = contents(out)
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["evaluate", "probe", "doctor", "explain", "figures"])
def test_results_are_replaced_as_a_whole_and_only_when_asked(
    verb: str, places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(verb, places, out) == 0
    first = contents(out)
    assert run(verb, places, out) == 2
    assert "or pass --overwrite" in capsys.readouterr().err
    assert contents(out) == first
    (out / "notes.txt").write_text("mine")
    other = {**places, "photo": places["photo"].replace("00000", "00001")}
    assert run(verb, other, out, "--overwrite") == 0
    second = contents(out)
    assert second.pop("notes.txt") == b"mine"
    if verb == "explain":  # none of the first run's files is left among those of the second
        assert {name for name in second if "00000" in name} == set()
        assert {name.replace("00001", "00000") for name in second} == set(first)
    else:
        assert second.keys() == first.keys()

    changed = next(name for name in sorted(second) if not name.startswith("."))
    (out / changed).write_text("edited by hand")
    assert run(verb, places, out, "--overwrite") == 2
    assert (
        f"{changed} was changed since vitrail {verb} wrote it and was not replaced"
        in capsys.readouterr().err
    )
    assert (out / changed).read_text() == "edited by hand"


# figures are written as explanations are
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(verb, marks=pytest.mark.slow if verb == "figures" else ())
        for verb in VERBS
        if verb != "demo"
    ],
)
def test_files_have_the_mode_that_the_umask_says(
    verb: str, places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    before = os.umask(0o027)
    try:
        assert run(verb, places, out) == 0
    finally:
        os.umask(before)
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    wrong = {
        name: oct(mode)
        for name, mode in modes.items()
        if mode != (0o750 if (tmp_path / name).is_dir() else 0o640)
    }
    assert not wrong


def test_embed_leaves_parquet_of_others_where_its_own_is(
    places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("embed", places, out) == 0
    others = ("labels.parquet", "part-0-spark.parquet", "part-x.parquet", "8f3c_000004.parquet")
    before = fill(out, others)
    more = places["photo"].replace("00000", "00001")
    assert run("embed", places, out, more) == 0
    after = contents(out)
    assert {name: after[name] for name in before} == before
    assert "part-000001.parquet" in after
