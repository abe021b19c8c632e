"""`vitrail bench`: what it measures, and that Python and the shell give the same record."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.inference.photos import small_model
from vitrail.cli.app import main
from vitrail.cli.endings import TERMINATED
from vitrail.core.json_text import to_json
from vitrail.inference.benchmark.contender import Contender
from vitrail.inference.benchmark.rounds import Process, to_measured
from vitrail.tasks.bench import Benchmark, BenchRow, to_row

OPTIONS = ["--batch-size", "2", "--engine", "eager", "--threads", "1", "--seconds", "0.05"]
QUICK: Any = {"batch_size": [2], "engine": "eager", "threads": 1, "seconds": 0.05}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def shape_of(value: Any) -> Any:
    """The same for JSON whose numbers differ."""
    if isinstance(value, dict):
        return {name: shape_of(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape_of(one) for one in value]
    return "number" if isinstance(value, int | float) else value


def test_sigterm_leaves_no_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = str(vitrail.save(small_model(), tmp_path / "model")), tmp_path / "speed"
    over = threading.Event()

    def terminate_when_a_draft_is_there() -> None:
        while not over.wait(0.01):
            if out.is_dir() and any(out.iterdir()):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=terminate_when_a_draft_is_there)
    watcher.start()
    try:
        code = main(["bench", model, *OPTIONS[:-1], "600", "--out", str(out)])
    finally:
        over.set()
        watcher.join()
    assert (code, capsys.readouterr().err) == (TERMINATED, "vitrail: stopped by SIGTERM\n")
    assert not out.exists()


@pytest.mark.slow
def test_the_shell_prints_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(vitrail.save(small_model(), tmp_path / "model"))
    out = tmp_path / "speed"
    assert main(["bench", model, *OPTIONS, "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = as_record(printed)
    assert json.loads(to_json(found.facts())) == printed
    assert json.loads((out / "bench.json").read_text(encoding="utf-8")) == printed
    assert "images/s" in (out / "report.html").read_text(encoding="utf-8")
    [row] = found.rows
    assert (row.model, row.engine, row.batch_size, row.problem) == (model, "eager", 2, None)
    assert row.images_per_second is not None
    assert row.quartiles is not None
    assert row.quartiles[0] <= row.images_per_second <= row.quartiles[1]
    assert row.p50_ms is not None
    assert row.p99_ms is not None
    assert 0 < row.p50_ms <= row.p99_ms
    assert row.peak_memory is not None
    assert row.peak_memory > 2**26  # Python and torch alone have that
    assert row.macs == vitrail.info(model).macs
    assert row.load_seconds is not None
    assert row.load_seconds > 0
    assert row.build_seconds == 0
    assert "images/s" in found._repr_html_()


def as_record(facts: dict[str, Any]) -> Benchmark:
    """What Python returns, from what the shell printed."""
    rows = tuple(
        BenchRow(**{**row, "quartiles": row["quartiles"] and tuple(row["quartiles"])})
        for row in facts["rows"]
    )
    return Benchmark(**{**facts, "rows": rows})


@pytest.mark.slow
def test_python_measures_what_the_shell_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(vitrail.save(small_model(), tmp_path / "model"))
    assert main(["bench", model, *OPTIONS, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = vitrail.bench(model, **QUICK)
    assert shape_of(json.loads(to_json(found.facts()))) == shape_of(printed)


@pytest.mark.slow
def test_a_convolutional_network_beside_the_guest_of_its_own_kind() -> None:
    found = vitrail.bench("resnet18", guest="torchvision:resnet18", **QUICK)
    ours, theirs = found.rows
    assert (ours.model, theirs.model) == ("resnet18", "torchvision:resnet18")
    assert ours.problem is theirs.problem is None
    assert ours.images_per_second is not None
    assert theirs.images_per_second is not None
    assert ours.macs == 1_814_073_344


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_models_in_memory_guests_and_accuracy() -> None:
    fields: Any = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2}
    model = vitrail.create("vit_ti_16", num_classes=10, channels=1, **fields)
    found = vitrail.bench(
        model,
        guest="torchvision:mobilenet_v2",
        engine=["eager", "onnxruntime"],
        batch_size=1,
        threads=1,
        seconds=0.1,
        data="digits",
    )
    assert [(row.model, row.engine) for row in found.rows] == [
        ("ViT", "eager"),
        ("ViT", "onnxruntime"),
        ("torchvision:mobilenet_v2", "eager"),
        ("torchvision:mobilenet_v2", "onnxruntime"),
    ]
    assert not [row.problem for row in found.rows if row.problem is not None]
    assert found.rows[0].accuracy == found.rows[1].accuracy is not None
    assert found.rows[2].accuracy is None


def test_what_fails_is_a_row_with_its_problem(tmp_path: Path) -> None:
    """Of a process that ends, and of one that gives a sentence."""
    contender = Contender(str(tmp_path / "missing"), "eager", 1, 1)
    one = to_measured(contender, {"problem": "no such file"})
    row = to_row(one, {contender.source: "missing"}, 1e9, {})
    assert row.problem == "no such file"
    assert row.images_per_second is None
    result = Benchmark(rows=(row,), threads=1, rounds=5, processor="a CPU", peak=1e9)
    titles, [cells] = result.table()
    assert cells[titles.index("images/s")] == "failed"
    assert "no such file" in result._repr_html_()


@pytest.mark.slow
def test_a_process_that_cannot_load_its_model_says_why(tmp_path: Path) -> None:
    process = Process(Contender(str(tmp_path / "missing"), "eager", 1, 1))
    try:
        answer = process.ask(
            {"source": str(tmp_path / "missing"), "engine": "eager", "batch_size": 1, "threads": 1}
        )
    finally:
        process.close()
    assert "missing" in answer["problem"]


def test_clearing_needs_no_model(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    entry = cache / "engines" / ("0" * 64)
    entry.mkdir(parents=True)
    (entry / "record.json").write_text("{}", encoding="utf-8")
    assert main(["bench", "--clear"]) == 0
    assert capsys.readouterr().out == "1 entry removed from the cache\n"
    assert not entry.exists()
    assert vitrail.bench(clear=True).facts()["cleared"] == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "bench needs a model, a guest, or clear"),
        (["m", "--engine", "tensorrt"], "unknown engine 'tensorrt'"),
        (["m", "--engine", "auto"], "bench measures engines by name"),
        (["m", "--guest", "torchvision:mobilenet_v9"], "did you mean torchvision:mobilenet_v"),
        (["m", "--batch-size", "0"], "--batch-size must be whole numbers of at least 1"),
        (["m", "--seconds", "0"], "seconds must be above 0"),
        (["m", "--threads", "0"], "threads must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_row_has_every_column() -> None:
    row = BenchRow(model="m", engine="eager", batch_size=1)
    result = Benchmark(rows=(row,), threads=1, rounds=5, processor="a CPU", peak=1e9, data="d")
    titles, [cells] = result.table()
    assert len(titles) == len(cells)
    assert "accuracy" in titles


@pytest.mark.slow
def test_no_row_at_all_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    assert main(["bench", str(tmp_path / "model"), *OPTIONS]) == 2
    printed = capsys.readouterr()
    assert "failed" in printed.out
    assert "none of 1 row could be measured: eager:" in printed.err


@pytest.mark.slow
def test_int8_and_merged_tokens_have_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.inference.speed_up import SpeedUp
    from vitrail.tasks import bench as task

    monkeypatch.setattr(task, "choose_merging", lambda *args, **options: SpeedUp(2, 1.5))
    options: Any = {**QUICK, "engine": ["eager", "onnxruntime"], "precision": ["float32", "int8"]}
    found = vitrail.bench(small_model(), speed_up=1.5, **options)
    assert [(row.precision, row.merged_tokens, row.engine) for row in found.rows] == [
        ("float32", 0, "eager"),
        ("float32", 0, "onnxruntime"),
        ("int8", 0, "onnxruntime"),
        ("float32", 2, "eager"),
        ("float32", 2, "onnxruntime"),
        ("int8", 2, "onnxruntime"),
    ]
    assert not any(row.problem for row in found.rows)
    assert found.rows[3].macs < found.rows[0].macs  # type: ignore[operator]
    assert 0 < found.rows[2].int8_error < 0.3  # type: ignore[operator]
    assert "int8 error" in found.table()[0]


def test_precisions_that_are_not_measured() -> None:
    with pytest.raises(vitrail.UserError, match="precision must be float32 or int8, got 'fp8'"):
        vitrail.bench("vit_ti_16", precision="fp8")


def test_what_cannot_be_measured_is_refused_at_once() -> None:
    with pytest.raises(
        vitrail.UserError, match=r"int8 is computed by onnxruntime, openvino, got .*eager"
    ):
        vitrail.bench("vit_ti_16", engine="eager", precision="int8")
    with pytest.raises(vitrail.UserError, match="unknown model 'vit_nano'"):
        vitrail.bench("vit_nano")
