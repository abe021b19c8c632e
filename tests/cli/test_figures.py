"""`vitrail figures` as a person types it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.golden import golden
from tests.models.kinds import SMALL

import vitrail
from vitrail import save
from vitrail.cli.app import main
from vitrail.models.catalogue import build


def saved(tmp_path: Path, **changes: object) -> str:
    torch.manual_seed(0)
    return str(save(build(replace(SMALL, **changes)), tmp_path / "model"))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_page_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = saved(tmp_path), tmp_path / "out"
    words = ["figures", model, "digits", "--out", str(out), "--ablated", "0"]
    assert main([*words, "--max-images", "8"]) == 0
    told = capsys.readouterr().out
    assert {path.suffix for path in out.glob("[!.]*")} == {".html", ".json", ".npz", ".svg", ".png"}
    assert "Mean attention distance: A dot for each head, over 8 images" in told
    assert "use at least 32" in told  # than the similarity of layers needs
    assert f"report: {out / 'report.html'}" in told


@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_same_photos_serve_on_every_machine_where_no_data_is_given(
    installed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever else is installed, scikit-image for one."""
    if not installed:
        monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    words = ["--out", str(tmp_path / "out"), "--ablated", "0", "--json"]
    assert main(["figures", saved(tmp_path), *words]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert printed.err == ""
    assert facts["facts"]["images"] == 10
    assert facts["figures"]["filters"]["components"] == 28
    assert len(facts["figures"]["distance"]["blocks.0.attention"]["heads"]) == 4
    assert facts["figures"]["cka"]["drawn"]
    assert not facts["figures"]["ablation"]["drawn"]


def test_more_channels_than_photos_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path / "out"), "--json"]
    assert main(["figures", saved(tmp_path, channels=13), *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["figures"]["positions"]["drawn"]
    assert "give DATA" in facts["figures"]["distance"]["caption"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["digits", "--max-images", "0"], "images must be at least 1, got 0"),
        (["digits", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["digits", "--split", "tset"], "digits has no split 'tset'"),
        (["no-such-data"], "no-such-data"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figures", saved(tmp_path), *words, "--out", str(tmp_path / "out")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_that_somebody_trained_on_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its filters are few waves, its digits lie in the middle, and its layers grow apart."""
    data = golden("mnist")
    model, out = data / "mnist_vit_researchase.pt", tmp_path / "out"
    words = ["--set", "heads=4", "--out", str(out), "--max-images", "32", "--json"]
    assert main(["figures", str(model), str(data), *words]) == 0
    found = json.loads(capsys.readouterr().out)["figures"]
    variance = found["filters"]["variance"]
    assert len(variance) == 16
    assert sum(variance[:6]) > 0.6
    alike = np.array(found["cka"]["cka"])
    assert alike[0, -1] < alike[-2, -1]
    with np.load(out / "figures.npz") as arrays:
        changes = arrays["ablation/ablation"].mean(axis=0)
    assert changes[2:5, 2:5].mean() > 2 * np.r_[changes[0], changes[-1]].mean()


@pytest.mark.slow  # tests/explanation/test_figures.py has a small one
def test_a_hybrid_says_that_it_has_a_stem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = golden("hybrid-ocr") / "encoder_fp16.safetensors"
    words = ["--set", "heads=8", "--image-size", "192x672", "--ablated", "0", "--json"]
    assert main(["figures", str(model), *words, "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)["figures"]
    assert found["filters"]["layer"] == "stem.root.conv"
    assert "begins with convolutions" in found["filters"]["caption"]
    assert found["positions"]["grid"] == [12, 42]


@pytest.mark.slow
def test_a_record_shows_its_figures(tmp_path: Path) -> None:
    """That Python and the shell give the same is tested with the other verbs, in tests/tasks."""
    found = vitrail.figures(saved(tmp_path), "digits", ablated=0, max_images=5)
    assert [panel.name for panel in found][:2] == ["filters", "positions"]
    assert found["distance"].figure is not None
    assert found._repr_html_().startswith("<iframe ")
    with pytest.raises(vitrail.UserError, match="no figure is called 'distanse', did you mean"):
        found["distanse"]
