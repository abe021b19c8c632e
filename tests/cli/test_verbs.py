"""Each verb as a person types it: what it prints, what it writes, how it ends."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.kinds import SMALL

from vitrail import load, save
from vitrail.cli.app import VERBS, main
from vitrail.models.catalogue import build


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def native(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save(build(SMALL), tmp_path / "native")


def test_models_lists_variants_with_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "models", "vit_b_*")
    assert code == 0
    assert "vit_b_16  86,567,656        17.56 G     197  224x224" in out
    assert asked(capsys, "models", "vit_b_16") == [
        {
            "family": "vit",
            "model": "vit_b_16",
            "params": 86_567_656,
            "macs": 17_563_828_224,
            "tokens": 197,
            "image_size": [224, 224],
        }
    ]


def test_info_prints_the_layer_table_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", "vit_ti_16", "--image-size", "224x160", "--batch-size", "4")
    assert code == 0
    assert "blocks.11      Block             4 x 141 x 192" in out
    assert "parameters    5,706,664 (21.8 MiB in float32)" in out
    facts = asked(capsys, "info", "vit_ti_16", "--image-size", "224x160", "--batch-size", "4")
    assert facts["macs"] == 3_443_736_576
    top = [layer for layer in facts["layers"] if "." not in layer["name"]]
    blocks = [layer for layer in facts["layers"] if layer["name"].count(".") == 1]
    blocks = [layer for layer in blocks if layer["name"].startswith("blocks")]
    assert sum(layer["params"] for layer in (*top, *blocks)) == facts["params"] == 5_706_664
    assert sum(layer["macs"] for layer in (*top, *blocks)) == facts["macs"]


@pytest.mark.slow
def test_info_explains_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    """Batches of two: 1.65 G is what torchinfo prints for ViT-H/14, where there are 334.6 G."""
    code, out, _ = run(capsys, "info", "vit_h_14", "--why", "blocks.0", "--batch-size", "2")
    assert code == 0
    assert "blocks.0: 19,677,440 parameters =" in out
    assert "4,915,200  attention.qkv.weight (3840 x 1280)" in out
    assert "334,590,218,240" in out
    assert "torchinfo would print 1.65 G" in out
    facts = asked(capsys, "info", "vit_ti_16", "--why", "blocks.0")
    assert sum(term["params"] for term in facts["terms"]) == facts["params"] == 444_864


def test_info_prints_what_torchinfo_would(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "info", "vit_ti_16", "--batch-size", "2")
    expected = "input 1.20 + forward/backward 81.11 + params 22.72 = 105.03"
    assert out.splitlines()[-1] == f"torchinfo     68.94 M multiply-adds; in MB: {expected}"
    facts = asked(capsys, "info", "vit_ti_16", "--batch-size", "2")["torchinfo"]
    assert facts["total_size"] == facts["input_size"] + facts["pass_size"] + facts["params_size"]


def test_info_prints_how_weights_start(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", "beit_b_16", "--set", "dim=48", "--set", "depth=3", "--init")
    assert code == 0
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["blocks.*.norm1.weight"] == ["48", "3", "1.0000", "0", "1"]
    assert lines["blocks.*.mlp.fc2.weight"][-3] == "to", "deeper blocks start smaller"
    assert lines["head.classes.weight"][-3:] == ["0.0000", "0", "0"]
    assert "as the family documents it:" in out
    assert "LayerScale" in out.partition("documents it:")[2]
    facts = asked(capsys, "info", "vit_ti_16", "--set", "depth=1", "--init")
    assert facts["rules"][1] == ["MLP biases", "N(0, 1e-6)"]
    assert facts["tensors"][0]["name"] == "cls"


def test_info_counts_nothing_twice_at_its_usual_depth(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "info", "swin_t")
    table = out.partition("\n\n")[0].splitlines()[1:]
    assert sum(int(line.split()[-2].replace(",", "")) for line in table) == 28_288_354


def test_info_measures_what_autograd_really_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fused attention, as it says."""
    from vitrail.models.measure import measure

    monkeypatch.setattr("vitrail.layers.attention.SHORT", 0)
    model, kept = build(SMALL), dict[int, int]()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(torch.randn(2, 3, 32, 48))
    assert output.requires_grad
    assert measure(SMALL, 2).activation_memory == pytest.approx(sum(kept.values()), rel=0.1)


def memory(name: str) -> int:
    """A figure of this process, in megabytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) // 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own figures")
def test_info_of_the_largest_model_takes_little_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, "info", "vit_ti_16")[0] == 0  # what is imported does not count
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = memory("VmRSS")
    code, printed, _ = run(capsys, "info", "vit_G_14")
    assert code == 0
    assert "parameters    1,844,440,680" in printed
    assert memory("VmHWM") - before < 200


def test_info_of_a_native_checkpoint(capsys: pytest.CaptureFixture[str], native: Path) -> None:
    facts = asked(capsys, "info", str(native))
    assert facts["checkpoint"]["dialect"] == "vitrail"
    assert facts["config"]["image_size"] == [32, 48]
    assert facts["passport"]["preprocessing"]["size"] == [32, 48]


def test_info_of_a_foreign_file_tells_coverage(
    capsys: pytest.CaptureFixture[str], native: Path, tmp_path: Path
) -> None:
    out = tmp_path / "timm.safetensors"
    assert run(capsys, "convert", str(native), str(out), "--to", "timm")[0] == 0
    tensors = load_file(out)
    save_file(tensors | {"pre_logits.fc.weight": torch.zeros(2, 2)}, out)
    options = ("--set", "heads=4", "--grid", "4x6", "--image-size", "64x96")
    facts = asked(capsys, "info", str(out), *options)
    assert facts["checkpoint"]["used"] == len(tensors)
    assert [row["tensors"] for row in facts["checkpoint"]["dropped"]] == [["pre_logits.fc.weight"]]
    assert "positions resized from 4x6 to 8x12 (timm)" in facts["passport"]["origin"]["changes"]
    code, printed, _ = run(capsys, "info", str(out), *options)
    assert code == 0
    assert "dialect       timm" in printed
    assert "dropped       1 (pre_logits.fc.weight" in printed


def test_convert_there_and_back_keeps_every_bit(
    capsys: pytest.CaptureFixture[str], native: Path, tmp_path: Path
) -> None:
    there, back = tmp_path / "timm", tmp_path / "back"
    assert run(capsys, "convert", str(native), str(there), "--to", "timm")[0] == 0
    facts = asked(capsys, "convert", str(there), str(back), "--to", "vitrail")
    assert facts["from"] == "timm"
    before, after = load_file(native / "model.safetensors"), load_file(back / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert load(back).config == load(native).config


def test_convert_can_change_size_on_the_way(
    capsys: pytest.CaptureFixture[str], native: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "resized")
    code, printed, _ = run(
        capsys, "convert", str(native), out, "--image-size", "64", "--set", "num_classes=3"
    )
    assert code == 0
    assert "note: positions resized from 4x6 to 8x8 (paper)" in printed
    assert "note: new head for 3 classes" in printed
    assert load(out)(torch.zeros(1, 3, 64, 64)).shape == (1, 3)


def test_convert_warns_where_the_other_computes_differently(
    capsys: pytest.CaptureFixture[str], native: Path, tmp_path: Path
) -> None:
    changed = str(tmp_path / "tanh")
    run(capsys, "convert", str(native), changed, "--set", "activation=gelu_tanh")
    square = ("--image-size", "32", "--to", "torchvision")
    code, printed, _ = run(capsys, "convert", changed, str(tmp_path / "tv.pth"), *square)
    assert code == 0
    expected = "activation is 'gelu_tanh' in these weights, but torchvision will assume 'gelu'"
    assert f"caution: {expected}" in printed
    assert "caution: the format does not store preprocessing" in printed


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["info", "vit_b_61"], "unknown model 'vit_b_61', did you mean vit_b_16?"),
        (["info", "nowhere/at/all"], "nowhere/at/all: no such file or directory"),
        (["info", "vit_b_16", "--image-size", "big"], "--image-size must be a side like 224"),
        (["info", "vit_b_16", "--image-size", "225"], "not a multiple of patch 16: use 224 or 240"),
        (["info", "vit_b_16", "--set", "pool"], "--set must be field=value"),
        (["info", "vit_b_16", "--set", "pol=mean"], "unknown field 'pol', did you mean pool?"),
        (["info", "vit_b_16", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (
            ["info", "vit_b_16", "--why", "block.0"],
            "unknown module 'block.0', did you mean blocks.0?",
        ),
        (
            ["info", "vit_b_16", "--init", "--why", "blocks.0"],
            "--init and --why contradict each other: give one",
        ),
        (["info", "{native}", "--dialect", "timm"], "this is a Vitrail checkpoint"),
        (
            ["convert", "{native}", "{out}", "--to", "tim"],
            "unknown dialect 'tim', did you mean timm?",
        ),
        (["convert", "{native}", "{native}", "--to", "tim"], "unknown dialect 'tim'"),
        (
            ["convert", "{native}", "{native}"],
            "already exists: choose another name, or pass --overwrite",
        ),
        (["predict", "digits", "{native}"], "expected MODEL, then DATA"),
        (["embed", "digits", "{native}", "--out", "{out}"], "expected MODEL, then DATA"),
        (["explain", "digits", "{native}", "--out", "{out}"], "expected MODEL, then DATA"),
        (["figures", "digits", "{native}", "--out", "{out}"], "expected MODEL, then DATA"),
        (["convert", "{native}", "{out}.foo"], "unknown suffix '.foo': use .safetensors, .npz"),
        (["convert", "{native}", "{out}.npz"], "is a directory"),
        (
            ["convert", "{native}", "{out}.pth", "--to", "torchvision"],
            "use another dialect, such as",
        ),
        (["convert", "{native}/README.md", "{out}"], "unknown format '.md'"),
        (
            ["train", "digits", "--dry-run", "--set", "optimiser.lrr=1"],
            "unknown field 'optimiser.lrr', did you mean optimiser.lr?",
        ),
        (["models", "zebra*"], "no model matches 'zebra*'"),
        (["nosuch"], "unknown command 'nosuch' (see vitrail --help)"),
        (
            ["explain", "{native}", "--out", "{out}"],
            "IMAGES is missing: name files or directories (see vitrail explain --help)",
        ),
        (["report"], "RUNS is missing (see vitrail report --help)"),
        (["resume", "runs/pets"], "Use vitrail train DATA --out RUN --resume"),
        (["infos"], "unknown command 'infos'. Did you mean info?"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_written(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    native: Path,
    tmp_path: Path,
) -> None:
    before = sorted(tmp_path.rglob("*"))
    filled = [a.format(native=native, out=tmp_path / "out") for a in arguments]
    code, out, err = run(capsys, *filled)
    assert code == 2
    assert sentence in err
    assert err.startswith("vitrail: ")
    assert err.count("\n") == 1
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_demo_trains_judges_and_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    words = ("demo", "--out", str(out), "--threads", "1", "--epochs", "4")
    code, told, _ = run(capsys, *words)
    assert code == 0
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "already contains results of vitrail demo" in err
    assert "359 images of val" in told
    scores = [float(score) for score in re.findall(r"\baccuracy +(0\.\d+)", told)]
    assert scores[-1] > 0.3
    assert "this map" in told
    assert (out / "explained" / "report.html").is_file()
    assert (out / "window.html").absolute().as_uri() in told
    assert (out / "window.html").read_text(encoding="utf-8").count('"packed":') == 10
    page = (out / "digits" / "report.html").read_text(encoding="utf-8")
    assert "359" in page
    assert "<svg" in page


@pytest.mark.slow  # tests/cli/test_other_peoples_files.py replaces what cheaper verbs wrote
def test_another_demo_takes_the_place_of_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "demo"
    words = ("demo", "--out", str(out), "--threads", "1", "--epochs", "1", "--quiet")
    assert run(capsys, *words)[::2] == (0, "")
    before = (out / "digits" / "report.html").stat().st_mtime_ns
    assert run(capsys, *words, "--overwrite")[0] == 0
    assert (out / "digits" / "report.html").stat().st_mtime_ns > before


WRONG = {
    "models": ["zebra*"],
    "info": ["no-such-model"],
    "convert": ["no-such-model", "{out}"],
    "check": ["{out}.py:ViT"],
    "export": ["no-such-model", "--out", "{out}.onnx"],
    "adopt": ["no-such-file.pth", "--out", "{out}"],
    "doctor": ["no-such-data"],
    "train": ["no-such-data", "--out", "{out}"],
    "pretrain": ["no-such-data", "--out", "{out}"],
    "evaluate": ["no-such-model", "digits"],
    "probe": ["no-such-model", "digits"],
    "predict": ["no-such-model", "{out}.png"],
    "embed": ["no-such-model", "{out}.png", "--out", "{out}"],
    "search": ["no-such-vectors", "{out}.png"],
    "duplicates": ["no-such-vectors"],
    "explain": ["no-such-model", "{out}.png", "--out", "{out}"],
    "figures": ["no-such-model", "--out", "{out}"],
    "report": ["no-such-run"],
    "plan": ["no-such-model", "--gpus", "8"],
    "compare": ["no-such-data", "--models", "vit_ti_16", "--out", "{out}"],
    "reproduce": ["no-such-claim", "--out", "{out}"],
    "bench": ["vit_ti_16", "--batch-size", "0"],
    "demo": ["--epochs", "0", "--out", "{out}"],
    "serve": ["no-such-model", "--batch-size", "0"],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", [verb.__name__ for verb in VERBS.values()])
def test_an_error_is_json_where_that_is_wanted(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words in (["--no-such-option"], [word.format(out=tmp_path / "x") for word in WRONG[verb]]):
        code, out, err = run(capsys, verb, *words, "--json")
        assert (code, out) == (2, "")
        error = json.loads(err.splitlines()[-1])
        assert error.keys() == {"error", "code"}
        assert error["code"] == 2
        assert error["error"]
    assert not list(tmp_path.iterdir())
