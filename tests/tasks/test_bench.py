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
from vitrail.cli.bench import print_benchmark
from vitrail.cli.endings import TERMINATED
from vitrail.core.json_text import to_json
from vitrail.inference.benchmark.contender import Contender
from vitrail.inference.benchmark.rounds import Measured, Process, to_measured
from vitrail.inference.merging import merge_tokens
from vitrail.inference.speed_up import SpeedUp
from vitrail.tasks import bench as task
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


def fake_measuring(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> list[Contender]:
    """Every contender computes 100 images per second; who was measured is listed."""
    seen: list[Contender] = []

    def measure(contenders: list[Contender], **options: Any) -> tuple[list[Measured], list[float]]:
        seen.extend(contenders)
        values: Any = {"speeds": [100.0], "times": [0.01], "macs": 1, **facts}
        return [Measured(one, **values) for one in contenders], [1e9]

    monkeypatch.setattr(task, "measure_in_turns", measure)
    return seen


def test_a_model_in_memory_is_measured_with_the_tokens_that_it_merges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = fake_measuring(monkeypatch)
    merged = merge_tokens(small_model(), 2)
    [row] = vitrail.bench(merged, **QUICK).rows
    assert row.merged_tokens == 2
    assert [one.merged for one in measured] == [merged.merged_tokens]


def test_a_family_that_cannot_merge_is_a_row_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_measuring(monkeypatch)
    first, second = vitrail.bench("mobilevit_xxs", speed_up=1.5, **QUICK).rows
    assert (first.problem, first.images_per_second) == (None, 100.0)
    assert second.problem is not None
    assert "token merging needs a ViT" in second.problem


def test_a_model_without_a_head_is_merged_by_its_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []

    def choose(model: Any, speed_up: float, *, output: str, **options: Any) -> SpeedUp:
        outputs.append(output)
        return SpeedUp(2, 1.5)

    monkeypatch.setattr(task, "choose_merging", choose)
    fake_measuring(monkeypatch)
    headless = vitrail.load(small_model(), num_classes=0)
    assert [row.merged_tokens for row in vitrail.bench(headless, speed_up=1.5, **QUICK).rows] == [
        0,
        2,
    ]
    assert outputs == ["pooled"]


def test_data_that_is_not_there_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = fake_measuring(monkeypatch)
    with pytest.raises(vitrail.UserError, match="no-such-data"):
        vitrail.bench(small_model(), data="no-such-data", **QUICK)
    assert not measured


def test_a_model_that_cannot_be_evaluated_keeps_its_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_measuring(monkeypatch)
    found = vitrail.bench(small_model(), data="digits", **QUICK)  # five classes in place of ten
    [row] = found.rows
    assert row.images_per_second == 100.0
    assert row.problem is not None
    assert row.problem.startswith("no accuracy: ")
    titles, [cells] = found.table()
    assert cells[titles.index("images/s")] == "100"
    print_benchmark(found, cleared=False)
    assert "no accuracy: " in capsys.readouterr().out


def test_what_was_built_to_be_measured_does_not_fill_the_cache(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    keys = ["0" * 64, "1" * 64]
    for key in keys:
        (cache / "engines" / key).mkdir(parents=True)
    fake_measuring(monkeypatch, new_entry=keys[0])
    vitrail.bench(small_model(), **QUICK)
    assert [path.name for path in (cache / "engines").iterdir()] == keys[1:]


def test_a_page_that_exists_is_kept_unless_overwritten(tmp_path: Path) -> None:
    row = BenchRow(model="m", engine="eager", batch_size=1, images_per_second=3.0)
    result = Benchmark(rows=(row,), threads=1, rounds=5, processor="a CPU", peak=1e9)
    file = tmp_path / "speed.html"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(vitrail.UserError, match="already exists"):
        result.save_html(file)
    assert file.read_text(encoding="utf-8") == "mine"
    result.save_html(file, overwrite=True)
    assert "images/s" in file.read_text(encoding="utf-8")


def test_problems_of_a_model_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(
        BenchRow(model="m", engine="openvino", batch_size=1, precision=precision,
                 merged_tokens=merged, problem=f"{precision} and {merged}")
        for precision in ("float32", "int8") for merged in (0, 8)
    )  # fmt: skip
    found = Benchmark(rows=rows, threads=1, rounds=5, processor="a CPU", peak=1e9)
    assert all(str(row.problem) in found.html() for row in rows)
    print_benchmark(found, cleared=False)
    assert "m, openvino, int8, r=8, batch 1: int8 and 8\n" in capsys.readouterr().out
