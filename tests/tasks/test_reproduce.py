"""Claims put to the test: their runs, what resumes and what is refused, and public weights."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.pages.html import check_page
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.evaluation.findings import Verdict
from vitrail.tasks.claims import (
    attention_distance,
    catalogue,
    claim,
    lab,
    pooling,
    positions,
)
from vitrail.tasks.claims.claim import Citation, Scale, Setting, bare_setting
from vitrail.tasks.claims.lab import run_name, steps_of
from vitrail.tasks.claims.public_weights import PublicWeights, claim_of
from vitrail.tasks.dry_run import DryRun
from vitrail.weights.files import digest

TINY = Scale(name="quick", steps=2, pretrain_steps=2, batch_size=8, dim=32, depth=2, images=16)
TRAINED = [name for name, one in catalogue.CLAIMS.items() if one.data]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(claim.SCALES, "quick", TINY)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return bare_setting("digits", seeds=2, scale="quick", out=tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("name", TRAINED)
def test_every_claim_has_runs_whose_models_can_be_built(name: str, setting: Setting) -> None:
    steps = list(steps_of(catalogue.CLAIMS[name].stages(setting)))
    names = [run_name(*step) for step in steps]
    assert len(set(names)) == len(names) > 1
    for _stage, cell in steps:
        if cell is not None:
            assert cell.model.config(cell.size).channels == 1
            start = cell.model.start  # begins from a run that comes before
            assert start is None or Path(start).parent.name in names[: names.index(cell.name)]


def test_claims_are_listed_with_their_source() -> None:
    rows = vitrail.reproduce().facts()["claims"]
    assert len(rows) == 17
    assert len({row["claim"] for row in rows}) == 17
    for row in rows:
        assert row["sentence"].endswith(".")
        assert row["source"]["arxiv"]
        assert row["source"]["where"]
        assert row["minutes"]["quick"] <= row["minutes"]["full"]


def test_a_dry_run_lists_runs_and_writes_nothing(tmp_path: Path, tiny: None) -> None:
    found = vitrail.reproduce("masks", data="digits", seeds=1, out=tmp_path / "out", dry_run=True)
    assert isinstance(found, DryRun)
    runs = [one["run"] for one in found.details["runs"]]
    assert runs[:3] == ["tokenizer", "beit-blockwise-seed0", "beit-random-seed0"]
    assert len(runs) == 6
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_claim_end_to_end(
    tmp_path: Path, tiny: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    line = ["reproduce", "positions", "--data", "digits", "--seeds", "2", "--threads", "1"]
    assert main([*line, "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert printed["verdict"] in ("shown", "not shown at this scale", "contradicted")
    assert len(printed["runs"]) == 8
    assert {one["sentence"]: one["verdict"] for one in printed["findings"]}
    check_page((out / "report.html").read_text(encoding="utf-8"))

    def refuse(*_: Any) -> None:
        raise AssertionError("a finished run must not be repeated")

    monkeypatch.setattr(lab, "run_cell", refuse)
    again = vitrail.reproduce("positions", data="digits", seeds=2, threads=1, out=out)
    assert again.facts() == printed
    assert again.save_html(tmp_path / "page.html").stat().st_size < 300_000
    assert again._repr_html_().startswith("<iframe")
    assert len(repr(again)) < 800
    with pytest.raises(UserError, match="holds the result of positions"):
        vitrail.reproduce("hybrid", data="digits", out=out)
    monkeypatch.setitem(claim.SCALES, "quick", Scale(name="quick", steps=3, pretrain_steps=2))
    with pytest.raises(UserError, match="was begun with"):
        vitrail.reproduce("positions", data="digits", seeds=2, out=out)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINED if name != "positions"])
def test_every_claim_comes_to_a_verdict(name: str, tmp_path: Path, tiny: None) -> None:
    found = vitrail.reproduce(name, data="digits", seeds=2, threads=1, out=tmp_path / "out")
    assert found.verdict in ("shown", "not shown at this scale", "contradicted")
    assert found.findings
    assert found.evidence.tables
    assert found.evidence.drawings
    check_page(found.html())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"claim": "position"}, "unknown claim 'position', did you mean positions?"),
        ({"claim": "cost", "data": "digits"}, "cost reads no data: leave data out"),
        ({"claim": "positions", "weights": "x"}, "positions trains its models: leave weights out"),
        ({"claim": "positions", "scale": "huge"}, "scale must be one of quick, full, got 'huge'"),
        ({"claim": "positions", "seeds": [1, 1]}, "seeds must be different"),
        ({"claim": "imagenet-swin-t"}, "imagenet-swin-t needs data: give data=DIR"),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        vitrail.reproduce(**arguments, out=tmp_path / "out")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_rows_and_columns_are_found_where_they_are() -> None:
    side = 6
    row, column = np.arange(side * side) // side, np.arange(side * side) % side
    crossed = ((row[:, None] == row) * 1.0 + (column[:, None] == column)) / 2
    assert positions.rows_and_columns([crossed]).verdict == "shown"
    noise = np.random.default_rng(0).normal(size=(side * side, 16))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    assert positions.rows_and_columns([noise @ noise.T]).verdict == "not shown at this scale"
    diagonal = np.where((row[:, None] != row) & (column[:, None] != column), 1.0, 0.0)
    assert positions.rows_and_columns([diagonal]).verdict == "contradicted"


def test_heads_of_one_run_are_not_counted_as_chance() -> None:
    assert attention_distance.depth_correlation([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) > 0.9
    over_seeds = partial(attention_distance.over_seeds, "a", how="made")
    assert over_seeds([0.5, 0.6, 0.7]).verdict == "shown"
    assert over_seeds([-0.5, -0.6, -0.7]).verdict == "contradicted"
    assert over_seeds([0.9]).verdict == "not shown at this scale"


def test_the_best_rate_is_chosen_on_even_images() -> None:
    first, second = np.zeros((1, 6), dtype=bool), np.zeros((1, 6), dtype=bool)
    first[:, ::2], second[:, 1::2] = True, True
    assert pooling.choose([second, first]) == 1


CITED = Citation(paper="none", arxiv="0000.00000", where="nowhere")


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of three classes, and twelve images in class folders, nine as it predicts them."""
    root = tmp_path_factory.mktemp("public")
    shape = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 16}
    model = vitrail.create("vit_ti_16", num_classes=3, **shape)
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    weights = vitrail.save(model, root / "weights")
    generator = np.random.default_rng(0)
    for number in range(12):
        pixels = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
    for number in range(12):
        scores = model(model.preprocess([root / f"{number}.png"]))
        place = int(scores.argmax())
        wrong = (
            1 + number // 4 % 2 if number % 4 == 0 else 0
        )  # three of them, in both other classes
        folder = root / "images" / f"n{(place + wrong) % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / f"{number}.png", folder)
    return Path(weights), root / "images"


def public(**changes: Any) -> PublicWeights:
    values = {"name": "tiny", "model": "tiny", "address": "hf-hub:nobody/nothing"}
    return PublicWeights(**{**values, "accuracy": 0.75, "citation": CITED, "images": 12, **changes})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "shown"),
        ({"accuracy": 0.9}, "contradicted"),
        ({"images": 50_000}, "not shown at this scale"),  # of so few images an interval is wide
    ],
)
def test_public_weights_have_their_accuracy(
    changes: dict[str, Any],
    verdict: Verdict,
    laid_out: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights, images = laid_out
    monkeypatch.setitem(catalogue.CLAIMS, "tiny", claim_of(public(**changes)))
    words = ["reproduce", "tiny", "--data", str(images), "--weights", str(weights)]
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdict"] == verdict
    assert printed["findings"][0]["estimate"] == 0.75
    assert len(printed["details"]["sha256"]) == 64
    assert printed["details"]["published sha256"] == "none was published"
    again = vitrail.reproduce("tiny", data=images, weights=weights, out=tmp_path / "out")
    assert again.facts() == printed


def test_other_weights_than_those_that_were_published_are_refused(
    laid_out: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, images = laid_out
    monkeypatch.setitem(catalogue.CLAIMS, "tiny", claim_of(public(sha256="0" * 64)))
    with pytest.raises(UserError, match="SHA-256 must be 0000"):
        vitrail.reproduce("tiny", data=images, weights=weights, out=tmp_path / "out")


def in_hub_cache(weights: Path, root: Path, sha256: str) -> Path:
    """A snapshot as huggingface_hub lays it out: links to files that are named after digests."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in weights.iterdir():
        blob = blobs / (sha256 if file.suffix == ".safetensors" else file.name)
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    return snapshot


@pytest.mark.parametrize("right", [True, False])
def test_a_file_from_the_hub_must_have_the_digest_that_the_hub_has(
    right: bool, laid_out: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, images = laid_out
    sha256 = digest(weights / "model.safetensors") if right else "a" * 64
    snapshot = in_hub_cache(weights, tmp_path / "hub", sha256)
    monkeypatch.setattr("vitrail.tasks.claims.public_weights.located", lambda address: snapshot)
    monkeypatch.setitem(catalogue.CLAIMS, "tiny", claim_of(public()))
    if not right:
        with pytest.raises(UserError, match="SHA-256 must be aaaa"):
            vitrail.reproduce("tiny", data=images, out=tmp_path / "out")
        return
    found = vitrail.reproduce("tiny", data=images, out=tmp_path / "out")
    assert found.facts()["details"]["published sha256"] == sha256


def test_a_file_that_ends_with_other_digits_than_its_digest_is_refused(
    laid_out: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, images = laid_out
    file = tmp_path / "tiny-0123abcd.safetensors"
    shutil.copy(weights / "model.safetensors", file)
    monkeypatch.setitem(catalogue.CLAIMS, "tiny", claim_of(public()))
    with pytest.raises(UserError, match="SHA-256 must be 0123abcd"):
        vitrail.reproduce("tiny", data=images, weights=file, out=tmp_path / "out")


def test_offline_is_one_sentence(
    laid_out: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    words = ["reproduce", "imagenet-swin-t", "--data", str(laid_out[1])]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "imagenet-swin-t needs a network to fetch hf-hub:timm/swin_tiny" in said
    assert "--weights" in said
