"""`vitrail report` compares runs as their directories tell them."""

import json
from pathlib import Path

import pytest

import vitrail
from tests.pages.html import NASTY, check_page
from tests.pages.values import lines_of
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.core.json_text import to_json
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_file import write_recipe

NAME = NASTY.replace("\udcff", "").replace("/", "-")


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Two runs that differ in their seed; one of them is finished."""
    paths = []
    for place, name in enumerate((NAME, "b")):
        out = tmp_path / "runs" / name
        out.mkdir(parents=True)
        write_recipe(Recipe(data="digits", model="vit_ti_16", seed=place), out)
        lines = "".join(json.dumps(line) + "\n" for line in lines_of(seed=20 * place))
        (out / "metrics.jsonl").write_text(lines, encoding="utf-8")
        paths.append(str(out))
    (Path(paths[0]) / "outcome.json").write_text("{}", encoding="utf-8")
    return paths


def test_runs_are_compared(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["report", *runs, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.splitlines())
    assert "seed: 0 | 1" in printed
    read = check_page((out / "report.html").read_text(encoding="utf-8"))
    assert read.charts == 7
    assert ["seed", "0", "1"] in read.tables["full"]
    assert "not finished" in read.text
    assert main(["report", *runs, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    found = vitrail.report(*runs)
    assert facts == json.loads(to_json(found.facts()))
    assert facts == json.loads((out / "runs.json").read_text(encoding="utf-8"))
    value, step = max((line["accuracy"], line["step"]) for line in lines_of() if "accuracy" in line)
    best = {"value": value, "step": step, "epoch": None}
    assert facts["runs"][0]["best"]["accuracy"] == best
    assert f"(step {step:,})" in printed
    assert f"step {step:,}" in read.text
    assert "srcdoc" in found._repr_html_()
    assert "best accuracy" in repr(found)


def test_mistakes(runs: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be the directory of a training run"):
        vitrail.report(tmp_path)
    with pytest.raises(UserError, match="given twice"):
        vitrail.report(runs[0], f"{runs[0]}/")
    with pytest.raises(UserError, match="at least one"):
        vitrail.report()
    vitrail.report(*runs, out=tmp_path / "out")
    with pytest.raises(UserError, match="already contains results of vitrail report"):
        vitrail.report(*runs, out=tmp_path / "out")
    vitrail.report(*runs, out=tmp_path / "out", overwrite=True)
