"""A comparison: its plan, its runs, what resumes and what is refused, and its page."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.pages.html import check_page
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.models.catalogue import change, find
from vitrail.models.measure import measure
from vitrail.pages.comparison import comparison_charts, comparison_page
from vitrail.tasks import compare_runs
from vitrail.tasks.compare_plan import make_plan, model_choices, parse_model, slug
from vitrail.tasks.comparison import Comparison
from vitrail.tasks.dry_run import DryRun
from vitrail.training.recipe_file import read_recipe

FIELDS = "image_size=8,patch_size=4,dim=16,depth=1,heads=2,mlp_dim=16,channels=1"
MODELS = {"one": f"vit_ti_16:{FIELDS}", "two": f"vit_ti_16:{FIELDS},pool=mean"}
SHORT: dict[str, Any] = {"models": MODELS, "steps": 2, "batch_size": 8, "threads": 1}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("compare") / "out"
    return vitrail.compare("digits", shares=[0.1, 1], seeds=[3, 5], out=out, **SHORT)


@pytest.mark.slow
def test_every_run_is_a_training_run_on_the_same_labels(compared: Comparison) -> None:
    assert [cell.name for cell in compared.cells] == [
        f"{model}-{share:g}-seed{seed}"
        for seed in (3, 5)
        for share in (0.1, 1)
        for model in ("one", "two")
    ]
    for cell in compared.cells:
        recipe = read_recipe(Path(cell.run) / "recipe.yaml")
        assert (recipe.train_share, recipe.seed) == (cell.share, cell.seed)
        assert recipe.schedule.steps == cell.steps == 2
        assert cell.images_seen == 16
        assert cell.flops == 6 * cell.macs * 16
        assert cell.seconds > 0
        assert cell.test_images == 179
        low, high = cell.interval
        assert low <= cell.accuracy == cell.right.mean() <= high
    assert {cell.labelled for cell in compared.cells} == {160, 1618}


@pytest.mark.slow
def test_the_tested_weights_are_the_last(compared: Comparison) -> None:
    cell = compared.cells[0]
    found = vitrail.evaluate(Path(cell.run) / "last", "digits", split="val", engine="eager")
    assert found.accuracy == cell.accuracy
    assert np.array_equal(found.outputs.predicted, cell.predicted)


def test_means_and_tests_are_those_of_the_runs(compared: Comparison) -> None:
    assert [(one.model, one.share) for one in compared.means] == [
        ("one", 0.1), ("two", 0.1), ("one", 1.0), ("two", 1.0)
    ]  # fmt: skip
    assert len(compared.tests) == 2
    by_name = {(c.model, c.share, c.seed): c.accuracy for c in compared.cells}
    for test in compared.tests:
        each = [by_name["one", test.share, s] - by_name["two", test.share, s] for s in (3, 5)]
        assert test.difference == pytest.approx(np.mean(each), abs=1e-12)
        assert test.p_value <= test.p_holm
        assert len(test.mcnemar) == 2
        assert f"{100 * test.share:g}% of the labels" in test.sentence
    json.dumps(compared.facts(), allow_nan=False)


def test_the_page_has_curves_cost_and_tests(compared: Comparison) -> None:
    page = (compared.out / "report.html").read_text(encoding="utf-8")
    check_page(page)
    for words in ("Accuracy by labels", "training FLOPs", "training seconds", "Holm"):
        assert words in page
    facts = json.loads((compared.out / "compare.json").read_text(encoding="utf-8"))
    assert facts == compared.facts()


def test_charts_say_what_is_drawn(compared: Comparison) -> None:
    facts = deepcopy(compared.facts())
    for one, accuracy in zip(facts["means"], (0.66, 0.7, 0.68, 0.81), strict=True):
        one |= {"accuracy": accuracy, "interval": [accuracy - 0.02, accuracy + 0.02]}
        one |= {"flops": 3e9 if one["model"] == "one" else 4e12}
    labels, flops, seconds = comparison_charts(facts["means"])
    assert labels.note.endswith("; axis from 60% to 85%")
    assert flops.note.startswith("a model costs the same at every share of labels")
    assert flops.columns[0] == "training GFLOPs"
    assert {row[0] for row in flops.rows} == {"3", "4,000"}
    assert seconds.note.startswith("each line from the smallest share")
    facts["means"][0]["interval"] = [0.1, 0.9]
    assert "axis from" not in comparison_charts(facts["means"])[0].note
    assert comparison_charts(facts["means"][:2])[0].note == "a point for each model"


def test_the_page_says_when_seconds_cannot_be_compared(compared: Comparison) -> None:
    facts = deepcopy(compared.facts())
    for place, cell in enumerate(facts["cells"]):
        cell["seconds"] = 10.0 + place
    assert "not comparable here" not in comparison_page(facts)
    facts["cells"][-1]["seconds"] = 90.0
    page = comparison_page(facts)
    check_page(page)
    assert "not comparable here: 2 steps of two took 11 to 90 s" in page


@pytest.mark.slow
def test_a_finished_run_is_never_computed_again(
    compared: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    train = vitrail.train

    def counted(*args: Any, **options: Any) -> Any:
        trained.append(Path(options["out"]).name)
        return train(*args, **options)

    monkeypatch.setattr(compare_runs, "train", counted)
    again = vitrail.compare("digits", shares=[0.1, 1], seeds=[3, 5], out=compared.out, **SHORT)
    assert trained == []
    assert again.facts() == compared.facts()
    more = vitrail.compare("digits", shares=[0.1], seeds=[3, 6], out=compared.out, **SHORT)
    assert trained == ["one-0.1-seed6", "two-0.1-seed6"]
    assert len(more.cells) == 4
    with pytest.raises(UserError, match=r"one-0.1-seed3 was begun with steps 2, got 3: choose"):
        vitrail.compare("digits", shares=0.1, seeds=[3], out=compared.out, **{**SHORT, "steps": 3})
    changed = {**SHORT, "models": {"one": MODELS["two"]}}
    with pytest.raises(UserError, match=r"was begun with set fields.pool None, got mean"):
        vitrail.compare("digits", shares=0.1, seeds=[3], out=compared.out, **changed)


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = compare_runs.evaluate_run

    def interrupted(*args: Any) -> Any:
        if args[1].model.name == "two":
            raise KeyboardInterrupt
        return evaluate(*args)

    monkeypatch.chdir(tmp_path)
    line = ["compare", "digits", "--shares", "0.1", "--seeds", "1", "--steps", "2", "--threads"]
    line += ["1", "--out", "out", "--models", *(f"{name}={one}" for name, one in MODELS.items())]
    with monkeypatch.context() as patch:
        patch.setattr(compare_runs, "evaluate_run", interrupted)
        assert main(line) == 130
    err = capsys.readouterr().err
    assert "1 finished, 1 run left. Resume with the same command and --out out" in err
    assert main([*line, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (len(facts["cells"]), facts["remaining"], facts["stopped"]) == (2, [], False)


def test_a_dry_run_lists_runs_with_their_cost_and_writes_nothing(tmp_path: Path) -> None:
    plan = vitrail.compare(
        "digits", shares=[0.1, 1], seeds=1, out=tmp_path / "out", dry_run=True, **SHORT
    )
    assert isinstance(plan, DryRun)
    assert [cell["labelled"] for cell in plan.details["cells"]] == [160, 160, 1618, 1618]
    assert all(cell["flops"] > 0 and cell["seconds"] > 0 for cell in plan.details["cells"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("batch_size", [8, None])
def test_a_larger_share_is_never_estimated_to_be_cheaper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int | None
) -> None:
    """One measurement of each model gives the time of all its runs; the recipe's batch grows with
    the share unless batch_size holds it."""
    measured = iter([0.016, 0.16])
    monkeypatch.setattr("vitrail.tasks.compare.time_step", lambda trainer: next(measured))
    plan = vitrail.compare(
        "digits", shares=[0.1, 1], seeds=2, out=tmp_path / "out", dry_run=True,
        **{**SHORT, "steps": 500, "batch_size": batch_size},
    )  # fmt: skip
    assert isinstance(plan, DryRun)
    seconds = {cell["run"]: cell["seconds"] for cell in plan.details["cells"]}
    for model in MODELS:
        few, many = seconds[f"{model}-0.1-seed0"], seconds[f"{model}-1-seed0"]
        assert few == seconds[f"{model}-0.1-seed1"]
        assert many == few if batch_size else many > 3 * few
    assert seconds["two-1-seed0"] == pytest.approx(10 * seconds["one-1-seed0"], rel=0.01)
    assert plan.details["seconds"] == pytest.approx(sum(seconds.values()))


def test_a_dry_run_measures_maps_of_one_cell(tmp_path: Path) -> None:
    """In training a batch norm refuses the only value of a channel, but no run reads one image."""
    small = "resnet18:width=8,depths=[1,1,1,1],channels=1,image_size=32"
    plan = vitrail.compare(
        "digits", models=small, shares=0.1, seeds=1, steps=1, batch_size=2, threads=1,
        out=tmp_path / "out", dry_run=True,
    )  # fmt: skip
    assert isinstance(plan, DryRun)
    assert plan.details["cells"][0]["flops"] > 0
    measured = measure(change(find("mobilenetv2_035"), {"image_size": 32, "num_classes": 2}))
    assert measured.macs == 1_186_352
    assert {layer.name: layer.output for layer in measured.layers}["last"] == (1, 1280, 1, 1)


def test_a_plan_is_a_small_file_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(
        "data: digits\n"
        "models:\n"
        f"  one: {{model: vit_ti_16, {FIELDS.replace('=', ': ').replace(',', ', ')}}}\n"
        "  two: 'vit_ti_16:depth=2'\n"
        "shares: [0.5]\nseeds: 2\nsteps: 7\nset: {optimiser.lr: 0.1}\n",
        encoding="utf-8",
    )
    plan = make_plan(file, {"steps": 2, "shares": None})
    assert (plan.steps, plan.shares, plan.seeds) == (2, (0.5,), (0, 1))
    first, second = plan.models
    assert (first.model, first.fields["dim"], second.fields) == ("vit_ti_16", 16, {"depth": 2})
    arguments = plan.arguments(plan.cells[0])
    assert arguments["image_size"] == 8
    assert arguments["set"]["fields.dim"] == 16
    assert arguments["set"]["optimiser.lr"] == 0.1
    assert arguments["set"]["train_share"] == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": None}, "compare needs models"),
        ({"models": []}, "at least one model"),
        ({"models": ["resnet_18x"]}, "unknown model 'resnet_18x'"),
        ({"models": ["vit_s_16:depht=6"]}, "unknown field 'depht', did you mean depth"),
        ({"models": ["vit_s_16:6"]}, "NAME:field=value"),
        ({"models": ["vit_s_16", "vit_s_16"]}, "a name of its own"),
        ({"models": [{"depth": 6}]}, "a mapping with model"),
        ({"shares": [0.1, 1.5]}, "shares must be above 0 and at most 1, got 1.5"),
        ({"shares": []}, "shares must not be empty"),
        ({"shares": [0.1, 0.1]}, "shares must be different, got 0.1 twice"),
        ({"seeds": [3, 3]}, "seeds must be different, got 3 twice"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": [-1]}, "seeds must be at least 0"),
        ({"steps": 3, "epochs": 2.0}, "epochs and steps both"),
        ({"image_sizes": [30]}, "vit_s_16"),
        ({"models": ["vit_s_16:image_size=32"], "image_sizes": [32]}, "image_size is set here and"),
        ({"address": "here:1"}, "address is for a Ray cluster"),
        ({"set": {"seed": 4}}, "set seed would be that of every run: give seeds"),
        ({"set": {"train_share": 0.5}}, "set train_share would be that of every run: give shares"),
        ({"set": {"fields.image_size": 32}}, "give image_sizes"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        vitrail.compare("digits", **{"models": ["vit_s_16"], "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


def test_a_directory_of_others_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty, and no comparison was written here"):
        vitrail.compare("digits", models=["vit_s_16"], out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(UserError, match="the plan cannot be read"):
        vitrail.compare(tmp_path / "no-such.yaml")


@pytest.mark.parametrize("text", ["[1]", '{"a": {"data": "digits"}}', '{"a": 5}', "{"])
def test_a_plan_that_compare_did_not_write_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UserError, match="cannot be read: remove it, or choose another out"):
        vitrail.compare("digits", models=["vit_s_16"], seeds=1, out=tmp_path)
    assert (tmp_path / "plan.json").read_text() == text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", ["seeds: 2020-99-99", "seeds: !!int a", "seeds: " + "[" * 3000])
def test_a_plan_that_is_no_yaml_is_one_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(f"data: digits\nmodels: [vit_s_16]\n{text}\n", encoding="utf-8")
    with pytest.raises(UserError, match="the plan cannot be read") as raised:
        make_plan(file, {})
    assert "\n" not in str(raised.value)


def test_no_image_sizes_leave_the_size_to_each_model() -> None:
    plan = make_plan("digits", {"models": ["vit_s_16"], "image_sizes": [], "seeds": 1})
    assert [cell.size for cell in plan.cells] == [None]


def test_the_share_of_a_recipe_file_gives_way_to_that_of_the_run() -> None:
    options = {"models": ["vit_s_16"], "seeds": 1, "recipe": "mine.yaml"}
    plan = make_plan("digits", options)
    assert plan.arguments(plan.cells[0])["set"]["train_share"] == 1
    plan = make_plan("digits", {**options, "recipe": "small"})
    assert "train_share" not in plan.arguments(plan.cells[0])["set"]


def test_names_of_models() -> None:
    assert parse_model("small = vit_s_16:depth=6").fields == {"depth": 6}
    assert [one.name for one in model_choices(["vit_s_16", {"model": "swin_t"}])] == [
        "vit_s_16",
        "swin_t",
    ]
    assert slug("a/../b c:d=1") == "a-..-b-c-d1"
    assert len(slug("x" * 400)) < 60
    assert slug("x" * 400) != slug("x" * 401)


@pytest.mark.slow
def test_ray_gives_the_same_runs(compared: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    found = vitrail.compare(
        "digits", shares=0.1, seeds=[3], out=tmp_path / "ray", ray=True, **SHORT
    )
    here = {cell.name: cell.accuracy for cell in compared.cells}
    assert {cell.name: cell.accuracy for cell in found.cells} == {
        name: here[name] for name in ("one-0.1-seed3", "two-0.1-seed3")
    }
