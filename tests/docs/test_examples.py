"""The scripts and notebooks of examples/ run, on tiny data."""

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.docs.stand_ins import photos, small_model
from vitrail import save

EXAMPLES = ROOT / "examples"
STORIES = ("fine_tune_a_folder", "explain_a_mistake", "embed_and_search")


def run_script(name: str, *words: str) -> str:
    """What a script prints, run as `python examples/NAME.py WORDS` is."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return out.getvalue()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos")
    return tmp_path


def test_every_story_has_script_and_notebook() -> None:
    for suffix in ("py", "ipynb"):
        assert sorted(path.stem for path in EXAMPLES.glob(f"*.{suffix}")) == sorted(STORIES)


@pytest.mark.slow
def test_fine_tune_a_folder(here: Path) -> None:
    save(small_model(), here / "model")
    printed = run_script("fine_tune_a_folder", "photos", "--start", "model", "--epochs", "2")
    assert "with 95 % confidence" in printed
    assert (here / "runs/tuned/evaluation.html").exists()


@pytest.mark.slow
def test_explain_a_mistake(here: Path) -> None:
    save(small_model(), here / "model")  # random, so that it is wrong somewhere
    printed = run_script("explain_a_mistake", "model", "photos", "--count", "1", "--out", "maps")
    assert "predicted as" in printed
    assert printed.count("evidence for") == 2
    assert len(list((here / "maps").glob("0-*.png"))) == 2


@pytest.mark.slow
def test_embed_and_search(here: Path) -> None:
    save(small_model(), here / "model")
    printed = run_script("embed_and_search", "model", "photos", "photos/cat/0.jpg", "-k", "2")
    assert "1.000  " in printed
    assert "cat/0.jpg" in printed
    assert "nearly the same" in printed


def cells(name: str) -> list[dict[str, Any]]:
    book = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    found: list[dict[str, Any]] = book["cells"]
    return found


@pytest.mark.parametrize("name", STORIES)
def test_notebooks_are_clean(name: str) -> None:
    """Valid, without outputs, and every cell of code compiles."""
    found = cells(name)
    assert len({cell["id"] for cell in found}) == len(found)
    assert found[0]["cell_type"] == "markdown"
    for cell in found:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            compile("".join(cell["source"]), f"{name}:{cell['id']}", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell in order, in one namespace; what a cell ends with is shown as notebooks do."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(name):
        if cell["cell_type"] == "code":
            shown = run_cell("".join(cell["source"]), names)
            if hasattr(shown, "_repr_html_"):
                assert "<" in shown._repr_html_()
    assert os.listdir(tmp_path), "a story leaves files behind"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """The value of a cell's last line, if that is an expression."""
    import ast

    tree = ast.parse(source)
    last = tree.body.pop()
    if not isinstance(last, ast.Expr):
        tree.body.append(last)
    exec(compile(tree, "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
