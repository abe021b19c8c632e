"""Our own checkpoints: bit for bit the same again, and whole or not there, whatever happens."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from vitrail import UserError, create, load, save
from vitrail.core.passport import Origin, Passport, Preprocessing
from vitrail.models.model import Model
from vitrail.weights import atomic
from vitrail.weights.atomic import write_directory, write_file
from vitrail.weights.convert import convert
from vitrail.weights.load import open_checkpoint
from vitrail.weights.native import read_passport

TINY: dict[str, Any] = {
    "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 24, "image_size": (32, 48), "num_classes": 3,
}  # fmt: skip
FILES = {"config.json", "model.safetensors", "README.md", "manifest.json"}


def tiny(seed: int = 0) -> Model:
    """A model that trained a little, so to speak, with a passport in which everything is said."""
    torch.manual_seed(seed)
    model = create("vit_ti_16", **TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.passport = replace(
        model.passport,
        labels=("cat", "dog", "été"),
        resize="timm",
        preprocessing=Preprocessing(size=(32, 48), resize=(36, 54), interpolation="bicubic"),
        origin=Origin(source="cats", dialect="timm", licence="mit", changes=("new head",)),
        provenance={"epochs": 3, "lr": [1e-3, 1e-4], "seed": None},
        scores={"accuracy": 0.1 + 0.2},
    )
    return model


def bits(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def assert_equal(one: Model, other: Model) -> None:
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert one.config == other.config
    assert one.passport == other.passport


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_again(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny().to(dtype).eval()
    assert save(model, tmp_path / "model") == tmp_path / "model"
    assert bits(tmp_path / "model").keys() == FILES
    again = load(tmp_path / "model")
    assert not again.training
    assert_equal(again, model)
    image = torch.randn(2, 3, 32, 48, dtype=dtype)
    assert torch.equal(again(image), model(image))
    save(again, tmp_path / "again")
    assert bits(tmp_path / "again") == bits(tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny().to(dtype)
    save(model, tmp_path / "model")
    for name, tensor in open_checkpoint(tmp_path / "model").state.items():
        assert tensor.dtype is dtype
        assert torch.equal(tensor, model.state_dict()[name])
    assert {tensor.dtype for tensor in load(tmp_path / "model").parameters()} == {dtype}


def test_a_passport_that_json_cannot_hold_is_not_written(tmp_path: Path) -> None:
    model = tiny()
    for bad in ({"loss": float("nan")}, {"loss": float("inf")}):
        model.passport = replace(model.passport, scores=bad)
        with pytest.raises(UserError, match=r"passport: scores\.loss must be a finite number"):
            save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(FILES - {"manifest.json", "README.md"}))
def test_any_flipped_bit_is_seen(name: str, tmp_path: Path) -> None:
    save(tiny(), tmp_path / "model")
    file = tmp_path / "model" / name
    whole = file.read_bytes()
    draw = random.Random(name)
    for place in {0, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(60))}:
        broken = bytearray(whole)
        broken[place] ^= 1 << draw.randrange(8)
        file.write_bytes(broken)
        with pytest.raises(UserError, match=f"{name}: its content is not what was written"):
            load(tmp_path / "model")
    file.write_bytes(whole)
    load(tmp_path / "model")


def test_a_flipped_bit_of_the_manifest_never_changes_the_model(tmp_path: Path) -> None:
    """It cannot vouch for itself: but for blanks, every bit of it is refused when it is wrong."""
    save(tiny(), tmp_path / "model")
    file = tmp_path / "model" / "manifest.json"
    whole = file.read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << (place % 7)
        file.write_bytes(broken)
        if broken.split() == whole.split():
            continue
        with pytest.raises(UserError, match=r"manifest|not there|content is not"):
            load(tmp_path / "model")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(FILES - {"README.md"}))
def test_a_missing_file_is_seen(name: str, tmp_path: Path) -> None:
    save(tiny(), tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    with pytest.raises(UserError):
        load(tmp_path / "model")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", "", "a" * 5000, "nul\0byte"])
def test_a_manifest_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    save(tiny(), tmp_path / "model")
    (tmp_path / "secret").write_text("x")
    file = tmp_path / "model" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][name] = "0"
    file.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="named in the manifest but not there"):
        load(tmp_path / "model")


def test_an_old_checkpoint_is_not_touched_unless_asked(tmp_path: Path) -> None:
    save(tiny(0), tmp_path / "model")
    before = bits(tmp_path / "model")
    with pytest.raises(UserError, match=r"already exists: .* or pass overwrite=True"):
        save(tiny(1), tmp_path / "model")
    assert bits(tmp_path / "model") == before
    save(tiny(1), tmp_path / "model", overwrite=True)
    assert_equal(load(tmp_path / "model"), tiny(1))
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_overwriting_deletes_nothing_else(tmp_path: Path) -> None:
    """`save(model, "~", overwrite=True)` is a slip of the pen, not the end of a home directory."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("my life's work")
    with pytest.raises(UserError, match=r"would delete thesis\.tex"):
        save(tiny(), tmp_path / "home", overwrite=True)
    assert bits(tmp_path / "home") == {"thesis.tex": b"my life's work"}
    assert [file.name for file in tmp_path.iterdir()] == ["home"]


def test_a_file_and_a_directory_do_not_replace_each_other(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file, where a directory is to be written"):
        save(tiny(), tmp_path / "file", overwrite=True)
    save(tiny(), tmp_path / "model")
    (tmp_path / "out.safetensors").mkdir()
    with pytest.raises(UserError, match="is a directory, where a file is to be written"):
        convert(tmp_path / "model", tmp_path / "out.safetensors", to="timm", overwrite=True)
    assert {file.name for file in tmp_path.iterdir()} == {"file", "model", "out.safetensors"}
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("exchange", [True, False], ids=["in one step", "step aside"])
def test_replacing_works_on_every_system(
    exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(atomic, "exchange", lambda *_: False)
    save(tiny(0), tmp_path / "model")
    save(tiny(1), tmp_path / "model", overwrite=True)
    assert_equal(load(tmp_path / "model"), tiny(1))
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", [".", "", "..", "/"])
def test_no_name_to_write_to(place: str) -> None:
    with pytest.raises(UserError, match=r"already exists|root of the file system"):
        save(tiny(), place)


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", [True, False])
def test_a_failure_in_the_middle_leaves_nothing(
    error: BaseException, old: bool, tmp_path: Path
) -> None:
    if old:
        save(tiny(), tmp_path / "model")
    before = bits(tmp_path / "model") if old else {}

    def fill(directory: Path) -> NoReturn:
        (directory / "model.safetensors").write_bytes(b"half")
        raise error

    def fill_file(file: Path) -> NoReturn:
        file.write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        write_directory(tmp_path / "model", fill, overwrite=True)
    with pytest.raises(type(error)):
        write_file(tmp_path / "model.npz", fill_file)
    assert [file.name for file in tmp_path.iterdir()] == (["model"] if old else [])
    assert (bits(tmp_path / "model") if old else {}) == before


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def fill(directory: Path) -> NoReturn:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="model: cannot be written: No space left on device"):
        write_directory(tmp_path / "model", fill)
    assert list(tmp_path.iterdir()) == []


# Writes half of a checkpoint under the name it is given, says so, and waits to be killed.
WRITER = """
import sys, time
from pathlib import Path
from vitrail.weights.atomic import write_directory

def fill(directory):
    (directory / "model.safetensors").write_bytes(b"half")
    print(directory.name, flush=True)
    time.sleep(60)

write_directory(Path(sys.argv[1]), fill, overwrite=True)
"""


@pytest.mark.parametrize("old", [True, False])
def test_a_killed_writer_leaves_the_old_one_whole(old: bool, tmp_path: Path) -> None:
    out = tmp_path / "model"
    if old:
        save(tiny(0), out)
    before = bits(out) if old else {}
    command = [sys.executable, "-c", WRITER, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        draft = writer.stdout.readline().strip()
        assert {file.name for file in tmp_path.iterdir()} == ({"model", draft} if old else {draft})
        with nullcontext() if old else pytest.raises(UserError, match="no such file"):
            load(out)
        save(tiny(2), tmp_path / "other")  # the draft of a living process is its own
        assert (tmp_path / draft).exists()
        writer.send_signal(signal.SIGKILL)
    assert out.exists() == old
    assert (bits(out) if old else {}) == before
    save(tiny(1), out, overwrite=True)
    assert_equal(load(out), tiny(1))
    assert {file.name for file in tmp_path.iterdir()} == {"model", "other"}, "leftovers are swept"


# Overwrites one checkpoint by two others in turn, as fast as it can, until it is killed.
FLIPPER = """
import sys
from pathlib import Path
import vitrail
from vitrail.weights.atomic import write_directory

out = Path(sys.argv[1])
texts = [{file.name: file.read_bytes() for file in Path(name).iterdir()} for name in sys.argv[2:]]
turn = 0
print("ready", flush=True)
while True:
    def fill(directory):
        for name, text in texts[turn % 2].items():
            (directory / name).write_bytes(text)
    write_directory(out, fill, overwrite=True)
    turn += 1
"""


def test_killed_at_any_moment_one_of_the_two_is_there(tmp_path: Path) -> None:
    sources = [save(tiny(seed), tmp_path / f"source{seed}") for seed in (0, 1)]
    whole = [bits(source) for source in sources]
    if not atomic.exchange(*sources):
        pytest.skip("this file system cannot swap two names in one step")
    (tmp_path / "runs").mkdir()
    out = tmp_path / "runs" / "model"
    draw = random.Random(0)
    for _ in range(5):
        save(tiny(0), out, overwrite=True)
        command = [sys.executable, "-c", FLIPPER, str(out), *map(str, sources)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flipper:
            assert flipper.stdout is not None
            flipper.stdout.readline()
            end = time.monotonic() + draw.uniform(0.0, 0.3)
            while time.monotonic() < end:
                assert out.is_dir(), "there was a moment without a checkpoint"
            flipper.kill()
        assert bits(out) in whole


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: be nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.fixture
def read_only() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        yield Path(name)
        Path(name).chmod(0o755)


@pytest.mark.usefixtures("unprivileged")
def test_a_read_only_directory_is_one_sentence(read_only: Path) -> None:
    for out in (read_only / "model", read_only / "deeper" / "model"):
        with pytest.raises(UserError, match="model: cannot be written: Permission denied"):
            save(tiny(), out)
    assert list(read_only.iterdir()) == []


def test_a_parent_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot be written"):
        save(tiny(), tmp_path / "file" / "model")


def test_a_passport_is_a_record(tmp_path: Path) -> None:
    assert isinstance(load(save(tiny(), tmp_path / "model")).passport, Passport)


def test_the_card_counts_classes_and_says_what_judged(tmp_path: Path) -> None:
    model = create("vit_ti_16", **TINY | {"num_classes": 37})
    labels = tuple(f"kind {number}" for number in range(37))
    model.passport = replace(model.passport, labels=labels, scores={"accuracy": 0.5})
    save(model, tmp_path / "many")
    card = (tmp_path / "many" / "README.md").read_text(encoding="utf-8")
    assert "kind 19 … and 17 more" in card
    assert "37 classes" in card
    assert "- accuracy (validation): 0.5" in card
    save(create("vit_ti_16", **TINY | {"num_classes": 1}), tmp_path / "one")
    assert " 1 class, " in (tmp_path / "one" / "README.md").read_text(encoding="utf-8")


def test_names_that_fields_had_before_are_read(tmp_path: Path) -> None:
    directory = save(create("swin_t", dim=24, depths=(1, 1), heads=(1, 2)), tmp_path / "old")
    content = json.loads((directory / "config.json").read_text())
    passport = content["vitrail"]["passport"]
    passport["several"] = passport.pop("multi_label", False) or True
    passport["config"]["edges"] = passport["config"].pop("window_policy")
    found, config = read_passport(content, where="old")
    assert found.multi_label
    assert vars(config)["window_policy"] == "paper"
