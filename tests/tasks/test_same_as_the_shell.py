"""What the shell can do Python can do, with the same names, defaults and results."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.pages.values import lines_of
from tests.zoo.styles import STYLES
from vitrail.cli.app import VERBS, main
from vitrail.layers.attention import Attend
from vitrail.models.catalogue import family_of
from vitrail.pages.render import as_iframe
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_file import write_recipe

FUSED = STYLES["fused_qkv"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    fields = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2, "channels": 1}
    made = vitrail.create("vit_ti_16", num_classes=10, **fields)
    return str(vitrail.save(made, tmp_path_factory.mktemp("model") / "model"))


def prepare(folder: Path, model: str, line: str) -> None:
    """Three images, two of them alike, and their embeddings, for the lines that use them."""
    if "photos" in line or "vectors" in line:
        (folder / "photos").mkdir()
        for number, seed in enumerate((0, 1, 1)):
            pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).resize((32, 32)).save(folder / "photos" / f"{number}.png")
    if "zoo" in line:
        torch.save(FUSED.build().state_dict(), folder / "zoo.pth")
    if "vectors" in line:
        vitrail.embed(model, folder / "photos", out=folder / "vectors")
    if "runs" in line:
        for seed, run in enumerate((folder / "runs" / "a", folder / "runs" / "b")):
            run.mkdir(parents=True)
            write_recipe(Recipe(data="digits", model="vit_ti_16", seed=seed), run)
            steps = "".join(json.dumps(step) + "\n" for step in lines_of(seed=20 * seed))
            (run / "metrics.jsonl").write_text(steps, encoding="utf-8")


SMALL = "vit_ti_16:image_size=8,patch_size=4,dim=16,depth=1,heads=2,mlp_dim=16,channels=1"
CALLS: dict[str, Callable[[str, Path], Any]] = {
    "adopt {zoo}.pth --heads 4 --set norm_eps=1e-6 --out {out} --overwrite": (
        lambda model, out: vitrail.adopt(
            out.parent / "zoo.pth", out, heads=4, norm_eps=1e-6, overwrite=True
        )
    ),
    "adopt {zoo}.pth --code {code} --args depth=3 --out {out} --dry-run": (
        lambda model, out: vitrail.adopt(
            out.parent / "zoo.pth", out, code=FUSED.spec, args={"depth": 3}, dry_run=True
        )
    ),
    "info vit_ti_16 --image-size 192 --batch-size 2": lambda model, out: vitrail.info(
        "vit_ti_16", image_size=(192, 192), batch_size=2
    ),
    "info {model}": lambda model, out: vitrail.info(model),
    "info {model} --why blocks.0": lambda model, out: vitrail.info(model).why("blocks.0"),
    "info {model} --init": lambda model, out: vitrail.info(model).init(),
    "check tests/zoo/fused_qkv.py:VisionTransformer -q": lambda model, out: vitrail.check(
        "tests/zoo/fused_qkv.py:VisionTransformer"
    ),
    "plan vit_ti_16 --gpus 16 --memory 8 --batch-size 64 --without-ema": (
        lambda model, out: vitrail.plan("vit_ti_16", gpus=16, memory=8, batch_size=64, ema=False)
    ),
    "doctor {photos}": lambda model, out: vitrail.doctor(out.parent / "photos"),
    "evaluate {model} digits --by-index --resolutions 16,24": lambda model, out: vitrail.evaluate(
        model, "digits", by_index=True, resolutions=[(16, 16), (24, 24)]
    ),
    "evaluate {model} digits --by-index --threads 1 --out {out} --dry-run": (
        lambda model, out: vitrail.evaluate(
            model, "digits", by_index=True, threads=1, out=out, dry_run=True
        )
    ),
    "evaluate {model} digits --by-index --out {out} --overwrite": (
        lambda model, out: vitrail.evaluate(model, "digits", by_index=True, out=out, overwrite=True)
    ),
    "probe {model} digits --shots 1 --shots 5 --no-cache": lambda model, out: vitrail.probe(
        model, "digits", shots=[1, 5], cache=None
    ),
    "probe {model} digits --method knn --neighbours 3,5 --no-cache": lambda model, out: (
        vitrail.probe(model, "digits", method="knn", neighbours=[3, 5], cache=None)
    ),
    "embed {model} {photos} --out {out}": lambda model, out: vitrail.embed(
        model, out.parent / "photos", out=out
    ),
    "embed {model} {photos} --out {out} --dry-run": lambda model, out: vitrail.embed(
        model, out.parent / "photos", out=out, dry_run=True
    ),
    "probe {model} digits --no-cache --out {out} --dry-run": lambda model, out: vitrail.probe(
        model, "digits", cache=None, out=out, dry_run=True
    ),
    "evaluate {model} digits --by-index --corruptions --out {out} --dry-run": (
        lambda model, out: vitrail.evaluate(
            model, "digits", by_index=True, corruptions=True, out=out, dry_run=True
        )
    ),
    "explain {model} {photos} --out {out} --dry-run": lambda model, out: vitrail.explain(
        model, [str(out.parent / "photos")], out=out, dry_run=True
    ),
    "figures {model} digits --max-images 4 --out {out} --dry-run": lambda model, out: (
        vitrail.figures(model, "digits", max_images=4, out=out, dry_run=True)
    ),
    "predict {model} {photos} --overwrite --out {out}.html": lambda model, out: vitrail.predict(
        model, out.parent / "photos", overwrite=True, out=f"{out}.html"
    ),
    "search {vectors} {photos}/1.png -k 2": lambda model, out: vitrail.search(
        out.parent / "vectors", out.parent / "photos/1.png", k=2
    ),
    "duplicates {vectors} --threshold 0.5": lambda model, out: vitrail.duplicates(
        out.parent / "vectors", threshold=0.5
    ),
    "predict {model} {photos} --top 2 --overwrite --out {out}.csv": lambda model, out: (
        vitrail.predict(model, out.parent / "photos", top=2, overwrite=True, out=f"{out}.csv")
    ),
    "predict {model} {photos}/0.png --top 2": lambda model, out: vitrail.predict(
        model, out.parent / "photos/0.png", top=2
    ),
    "predict {model} {photos} --top 2": lambda model, out: vitrail.predict(
        model, out.parent / "photos", top=2
    ),
    "explain {model} {photos} --method attention --checks 1 --out {out} --overwrite": (
        lambda model, out: vitrail.explain(
            model, out.parent / "photos", method="attention", checks=1, out=out, overwrite=True
        )
    ),
    "figures {model} digits --max-images 4 --ablated 1 --out {out} --overwrite": (
        lambda model, out: vitrail.figures(
            model, "digits", max_images=4, ablated=1, out=out, overwrite=True
        )
    ),
    "compare digits --models {small} --shares 0.1 --seeds 1 --steps 2 --threads 1 --out {out}": (
        lambda model, out: vitrail.compare(
            "digits", models=SMALL, shares=0.1, seeds=1, steps=2, threads=1, out=out
        )
    ),
    "figures {model} digits --and {model} --what equivariance --max-images 2 --out {out} "
    "--overwrite": lambda model, out: vitrail.figures(
        [model, model], "digits", what="equivariance", max_images=2, out=out, overwrite=True
    ),
    "explain {model} {photos} --and {model} --no-verdict --out {out} --overwrite": (
        lambda model, out: vitrail.explain(
            [model, model], out.parent / "photos", verdict=False, out=out, overwrite=True
        )
    ),
    "reproduce": lambda model, out: vitrail.reproduce(),
    "reproduce hybrid --data digits --seeds 1 --out {out} --dry-run": (
        lambda model, out: vitrail.reproduce(
            "hybrid", data="digits", seeds=1, out=out, dry_run=True
        )
    ),
    "report {runs}/a {runs}/b": lambda model, out: vitrail.report(
        out.parent / "runs/a", out.parent / "runs/b"
    ),
    "convert {model} {out} --to timm --dry-run": lambda model, out: vitrail.convert(
        model, out, to="timm", dry_run=True
    ),
    "export {model} --out {out}.onnx --features --images {photos} --overwrite": (
        lambda model, out: vitrail.export(
            model, f"{out}.onnx", features=True, images=out.parent / "photos", overwrite=True
        )
    ),
    "export {model} --out {out}.onnx --dry-run": lambda model, out: vitrail.export(
        model, f"{out}.onnx", dry_run=True
    ),
    "export {model} --to web --out {out} --runtime {photos} --dry-run": lambda model, out: (
        vitrail.export(model, out, to="web", runtime=out.parent / "photos", dry_run=True)
    ),
    "convert {model} {out} --to timm --image-size 32 --overwrite": lambda model, out: (
        vitrail.convert(model, out, to="timm", image_size=(32, 32), overwrite=True)
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", CALLS)
def test_python_gives_what_the_shell_prints(
    line: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, model, line)
    names = {name: tmp_path / name for name in ("out", "photos", "vectors", "runs", "zoo")}
    names["code"] = Path(FUSED.spec)
    words = [word.format(model=model, small=SMALL, **names) for word in line.split()]
    assert main([*words, "--json"]) == 0
    printed = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    if words[0] == "embed":
        shutil.rmtree(tmp_path / "out", ignore_errors=True)  # what is there is not computed again
    record = CALLS[line](model, tmp_path / "out")
    facts = record.facts()
    for one in (printed[0], facts if isinstance(facts, dict) else {}):
        one.pop("latency_ms", None)  # the two were timed apart
    assert printed == (facts if isinstance(facts, list) else [facts])
    assert len(repr(record)) < 800
    assert record._repr_html_().startswith(("<iframe", "<table", "<pre"))
    if "--dry-run" in line:
        assert not (tmp_path / "out").exists()


def test_models_are_those_that_python_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "swin*_t", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = {name: vitrail.info(name) for name in vitrail.list_models("swin*_t")}
    rows = [
        {
            "family": family_of(one.config),
            "model": name,
            "params": one.params,
            "macs": one.macs,
            "tokens": one.config.tokens,
            "image_size": list(one.config.image_size),
        }
        for name, one in found.items()
    ]
    assert sorted(printed, key=lambda row: row["model"]) == rows
    assert len(rows) > 1


def test_no_verb_is_left_out() -> None:
    """Training, benchmarks and the service have files of their own (test_train.py, test_bench.py,
    tests/serving), the demo is made of other verbs."""
    elsewhere = {"train", "pretrain", "bench", "demo", "models", "serve"}
    compared = {line.split()[0] for line in CALLS}
    assert compared | elsewhere == {verb.__name__ for verb in VERBS.values()}
    assert not compared & elsewhere


# Options of the shell that are no argument of the same name in Python.
PRINTING = {"json", "quiet", "verbose"}  # a record is returned
LOADING = {"model", "dialect", "grid", "image_size", "set", "mean", "std"}  # those of `load`
SHELL_ONLY = {
    "adopt": {"set", "heads"},  # fields of the config are keywords
    "bench": {"peer"},
    "explain": {"others"},  # a list of models
    "figures": {"others"},
    "info": {"depth", "init", "why"},  # of the printed table; the record has all layers
    "plan": {"without_ema"},  # ema=False
    "probe": {"no_cache"},  # cache=None
    "search": LOADING,  # of the checkpoint, which may be a loaded model
    "serve": {"open", "max_body_mb", "max_images", "max_pixels", "connections"},  # limits
}
IN_SHELL_ALONE = {"models", "demo"}  # in Python list_models, and the verbs that a demo is made of


@pytest.mark.parametrize(
    "record",
    [record for record, verb in VERBS.items() if verb.__name__ not in IN_SHELL_ALONE],
    ids=lambda record: record.__name__,
)
def test_every_option_of_the_shell_is_an_argument_in_python(record: type) -> None:
    verb = VERBS[record].__name__
    options = {one.name for one in fields(record) if one.kw_only} - PRINTING
    options -= SHELL_ONLY.get(verb, set()) | (LOADING if "source" in names_of(record) else set())
    assert options <= set(signature(getattr(vitrail, verb)).parameters)


def names_of(record: type) -> set[str]:
    return {one.name for one in fields(record)}


@pytest.mark.parametrize(
    "verb", ["evaluate", "probe", "explain", "figures", "search", "export", "predict", "embed"]
)
def test_threads_are_those_of_the_call_alone(
    verb: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model computes with as many, and torch has its own number again, also after an error."""
    prepare(tmp_path, model, "photos vectors")
    photos, before, seen = tmp_path / "photos", torch.get_num_threads(), set[int]()
    forward = Attend.forward

    def look(*tensors: Any, **options: Any) -> Any:
        seen.add(torch.get_num_threads())
        return forward(*tensors, **options)

    monkeypatch.setattr(Attend, "forward", look)
    calls: dict[str, Callable[..., object]] = {
        "evaluate": lambda **how: vitrail.evaluate(model, "digits", by_index=True, **how),
        "probe": lambda **how: vitrail.probe(model, "digits", shots=1, cache=None, **how),
        "explain": lambda **how: vitrail.explain(model, photos, checks=0, **how),
        "figures": lambda **how: vitrail.figures(model, "digits", max_images=2, what="cka", **how),
        "search": lambda **how: vitrail.search(tmp_path / "vectors", photos / "1.png", **how),
        "export": lambda **how: vitrail.export(model, tmp_path / "m.onnx", images=photos, **how),
        "predict": lambda **how: vitrail.predict(model, photos, **how),
        "embed": lambda **how: vitrail.embed(model, photos, out=tmp_path / "new", **how),
    }
    call = calls[verb]
    call(threads=3)
    assert seen == ({1} if verb == "embed" else {3})  # it gives each batch to one of the threads
    for file in tmp_path.glob("m.onnx*"):
        file.unlink()
    with pytest.raises(vitrail.UserError, match="threads must be at least 1"):
        call(threads=0)
    assert torch.get_num_threads() == before


PAGES = ("doctor", "evaluate", "probe", "search", "duplicates")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "line", [line for line in CALLS if line.startswith(PAGES) and "--dry-run" not in line]
)
def test_a_record_shows_itself_as_a_page(line: str, model: str, tmp_path: Path) -> None:
    prepare(tmp_path, model, line)
    record = CALLS[line](model, tmp_path / "out")
    assert record.save_html(tmp_path / "page.html") == tmp_path / "page.html"
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    with pytest.raises(vitrail.UserError, match=r"already exists: .* pass overwrite=True"):
        record.save_html(tmp_path / "page.html")
    record.save_html(tmp_path / "page.html", overwrite=True)
    assert page.startswith("<!doctype html>")
    assert as_iframe(page) == record._repr_html_()


@pytest.mark.parametrize("verb", ["predict", "embed", "explain", "figures", "evaluate", "probe"])
def test_model_and_data_in_each_others_place_are_noticed(verb: str, model: str) -> None:
    out = {"out": "nowhere"} if verb == "embed" else {}
    with pytest.raises(vitrail.UserError, match="expected MODEL, then DATA"):
        getattr(vitrail, verb)("digits", model, **out)


def test_every_verb_computes_on_the_same_device_by_default() -> None:
    verbs = (
        "train", "pretrain", "resume", "predict", "embed", "search", "explain", "figures",
        "evaluate", "probe", "compare",
    )  # fmt: skip
    defaults = {verb: signature(getattr(vitrail, verb)).parameters["device"] for verb in verbs}
    assert {one.default for one in defaults.values()} == {"auto"}


def test_a_model_in_memory_is_evaluated_as_its_file_is(model: str) -> None:
    loaded = vitrail.load(model).train()
    result = vitrail.evaluate(loaded, "digits", by_index=True, name=model)
    assert result.facts() == vitrail.evaluate(model, "digits", by_index=True).facts()
    assert loaded.training
    with pytest.raises(vitrail.UserError, match="batch_size must be at least 1, got 0"):
        vitrail.evaluate(loaded, "digits", batch_size=0)
