"""One command, repeated until the run is done; and what may not change in between."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail import UserError
from vitrail.cli.app import build_parser, main, with_plain_flags
from vitrail.cli.train import Train
from vitrail.tasks.overrides import new_recipe, resumed_recipe
from vitrail.tasks.run_options import RunOptions, make_options
from vitrail.training.checkpoint import steps_in
from vitrail.training.loop import Trainer
from vitrail.training.recipe_file import write_recipe
from vitrail.training.saver import Saver

Printed = pytest.CaptureFixture[str]

OPTIONS = (
    "--steps", "6", "--batch-size", "4", "--image-size", "16", "--seed", "1",
    "--model", "vit_ti_16",
    "--lr", "0.01", "--set", "fields.dim=16", "--set", "fields.depth=1", "--set", "fields.heads=2",
    "--set", "fields.patch_size=8", "--set", "monitor.save_every_steps=2", "--val-share", "0.25",
)  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for label, level in (("bright", 190), ("dark", 60)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(8):
            pixels = (level + draw.integers(-50, 50, (16, 16, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path / "photos"


def parse(*words: str) -> RunOptions:
    """The options that a command line gives the task."""
    options = build_parser()(with_plain_flags(["train", *words]))
    assert isinstance(options, Train)
    return make_options("train", options.data, {"recipe": options.recipe, **options.arguments()})


def test_one_command_is_repeated_until_the_run_is_done(
    photos: Path, tmp_path: Path, capsys: Printed
) -> None:
    out = tmp_path / "run"
    command = ["train", *OPTIONS, "--out", str(out), "--resume", "auto", str(photos)]
    assert main(command) == 0
    first = (out / "last" / "model.safetensors").read_bytes()
    assert "this run is finished" not in capsys.readouterr().out

    # as if it had been killed before its last checkpoint
    shutil.rmtree(steps_in(out / "steps")[-1])
    (out / "report.html").unlink()
    (out / "last" / "model.safetensors").unlink()
    (out / "last" / "notes.txt").write_text("mine")  # which no save is in the way of
    (out / "last" / "exported").mkdir()
    (out / "last" / "exported" / "model.onnx").write_text("mine too")
    assert main(command) == 0
    assert (out / "last" / "notes.txt").read_text() == "mine"
    assert (out / "last" / "exported" / "model.onnx").read_text() == "mine too"
    assert (out / "last" / "model.safetensors").read_bytes() == first
    assert (out / "report.html").is_file()

    ended = capsys.readouterr().out.splitlines()
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    photos.rename(tmp_path / "away")  # the data of a finished run is not opened
    assert main(command) == 0
    finished, *lines = capsys.readouterr().out.splitlines()
    assert "this run is finished, at step 6 of 6" in finished
    assert lines == ended[-len(lines) :]
    assert any(line.startswith("note: ") for line in lines)
    assert files == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    (tmp_path / "away").rename(photos)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"]
    plain = [word for word in command if word not in ("--resume", "auto")]
    capsys.readouterr()
    assert main([*plain, "--dry-run"]) == 0  # it writes nothing
    assert f"# out: {out} already contains a run" in capsys.readouterr().out
    for wrong in (["--set", "model=vit_b_15"], ["--set", "optimiser.weight_decy=1"]):
        assert main([*plain, *wrong]) == 2  # a wrong argument comes before a taken directory
        told = capsys.readouterr().err
        assert any(word in told for word in ("unknown model 'vit_b_15'", "weight_decy"))
        assert "already contains" not in told
    assert main(plain) == 2
    message = "already contains a run: choose another directory, or pass --resume"
    assert message in capsys.readouterr().err
    assert main([word for word in command if word != "auto"]) == 0  # a flag takes no word
    assert main(["train", str(photos), "--out", str(out), "--resume", "maybe"]) == 2

    (out / "outcome.json").write_text("[]")  # nothing that a run has written
    assert main(command) == 0
    shutil.rmtree(out / "best")
    capsys.readouterr()
    assert main(command) == 2
    assert f"{out / 'best'}: missing, although the run is finished" in capsys.readouterr().err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", [(), ("--recipe", "small"), ("--recipe", "{yaml}")])
def test_options_may_be_repeated_and_not_changed(
    recipe: tuple[str, ...], photos: Path, tmp_path: Path
) -> None:
    def options(*words: str) -> RunOptions:
        found = [word.replace("{yaml}", str(tmp_path / "recipe.yaml")) for word in words]
        return parse(str(photos), *found)

    write_recipe(new_recipe(options(*OPTIONS)), tmp_path)
    out = tmp_path / "run"
    write_recipe(new_recipe(options(*OPTIONS, *recipe)), out)
    for same in (OPTIONS, OPTIONS[:4], OPTIONS[-4:], ("--workers", "1", "--parallel", "fsdp")):
        full = (*same, *recipe) if same is OPTIONS else same
        resumed_recipe(options(*full, "--resume"), out)
    words = (*OPTIONS, *recipe)
    for option, value in (
        ("steps", "7"), ("epochs", "2"), ("batch-size", "8"), ("image-size", "32"), ("seed", "2"),
        ("model", "vit_s_16"), ("lr", "0.02"), ("set", "fields.dim=32"), ("val-share", "0.5"),
        ("recipe", "deit"), ("from", "elsewhere"),
    ):  # fmt: skip
        pairs = list(zip(words[::2], words[1::2], strict=True))
        taken = {f"--{option}"} - {"--set"} | ({"--steps"} if option == "epochs" else set())
        rest = [word for pair in pairs if pair[0] not in taken for word in pair]
        named = {"set": f"set {value}", "from": "start"}
        what = named.get(option, option.replace("-", "_"))
        with pytest.raises(UserError, match=f"^{what} cannot change in a run that is resumed"):
            resumed_recipe(options(*rest, f"--{option}", value, "--resume"), out)


def test_ctrl_c_before_the_first_step_leaves_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    command = ["train", *OPTIONS, "--out", str(tmp_path / "run"), str(photos)]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", interrupted)
        assert main(command) == 130
    assert not (tmp_path / "run").exists()


def test_a_run_below_a_file_is_one_sentence(photos: Path, tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["train", *OPTIONS, "--out", str(tmp_path / "file" / "run"), str(photos)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_lists_of_words_are_given_with_commas(photos: Path) -> None:
    words = ("--set", "optimiser.freeze=patches*,head*", "--set", "lora.targets=*.qkv")
    recipe = new_recipe(parse(str(photos), *OPTIONS, *words))
    assert recipe.optimiser.freeze == ("patches*", "head*")
    assert recipe.lora is not None
    assert recipe.lora.targets == ("*.qkv",)


def test_a_failed_start_removes_only_what_it_wrote(
    photos: Path, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    command = ["train", *OPTIONS, "--out", str(out), "--resume", "auto", str(photos)]
    command += ["--set", "monitor.log_every_steps=1"]

    def fail_at_step_1(saver: Saver, step: int) -> bool:
        (out / "notes.txt").write_text("mine")
        raise UserError("no more")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Saver, "is_due", fail_at_step_1)
            assert main(command) == 2
        assert "no more" in capsys.readouterr().err
        assert [path.name for path in out.iterdir()] == ["notes.txt"]
    assert main(command) == 0
    assert (out / "notes.txt").read_text() == "mine"


def test_a_resumed_run_takes_what_changes_nothing_of_its_result(
    photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    write_recipe(new_recipe(parse(str(photos), *OPTIONS)), out)
    words = ("checkpointing=true", "sharding.prefetch=2", "sharding.group=4", "workers=3")
    sets = [word for change in words for word in ("--set", change)]
    found = resumed_recipe(parse(str(photos), *sets, "--parallel", "hsdp", "--resume"), out)
    assert found.checkpointing is True
    assert (found.sharding.prefetch, found.sharding.group) == (2, 4)
    assert (found.workers, found.parallel) == (3, "hsdp")
    with pytest.raises(UserError, match=r"^set accumulate=2 cannot change"):
        resumed_recipe(parse(str(photos), *sets, "--set", "accumulate=2", "--resume"), out)
