"""The cache of engines: bounded, complete or absent, and never of another machine."""

import errno
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.inference.engine_doubles import Double, use
from tests.inference.photos import small_model
from vitrail import UserError
from vitrail.core import processor
from vitrail.inference.engine import Job, plan_of
from vitrail.inference.engines import cache, opening
from vitrail.inference.engines.auto import OpenRunner, open_runner
from vitrail.inference.engines.cache import (
    RECORD,
    cache_folder,
    clear_cache,
    entries,
    find_entry,
    make_key,
    new_entry,
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Double:
    made = Double("double")
    use(monkeypatch, made)
    return made


def open_it(batch_size: int = 2, seed: int = 0) -> OpenRunner:
    model = small_model(seed)
    plan = plan_of(model, Job(output="pooled", batch_size=batch_size))
    return open_runner(model, plan, "double")


def test_what_was_built_is_opened_by_the_next_start(engine: Double) -> None:
    open_it()
    open_it()
    assert (engine.built, engine.opened) == (1, 2)
    open_it(batch_size=3)
    assert engine.built == 2


DAMAGES = (
    "content", "gone", "record", "no record", "wrong record", "a file", "record is a directory",
    "a link to nowhere",
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_again(engine: Double, damage: str) -> None:
    open_it()
    [folder] = entries()
    match damage:
        case "content":
            (folder / "model.bin").write_bytes(b"WEIGHTS")
        case "gone":
            (folder / "model.bin").unlink()
        case "record":
            (folder / RECORD).write_text('{"facts":', encoding="utf-8")
        case "no record":
            (folder / RECORD).unlink()
        case "wrong record":
            (folder / RECORD).write_text("[1]", encoding="utf-8")
        case "a file":
            shutil.rmtree(folder)
            folder.write_bytes(b"not a directory")
        case "a link to nowhere":
            shutil.rmtree(folder)
            folder.symlink_to(folder.parents[1] / "elsewhere")
        case "record is a directory":
            (folder / RECORD).unlink()
            (folder / RECORD).mkdir()
    open_it()
    assert engine.built == 2
    open_it()
    assert engine.built == 2
    assert not (folder.parents[1] / "elsewhere").exists()


def test_files_that_the_library_refuses_are_built_again(engine: Double) -> None:
    """As when a library writes other files under the same version."""
    open_it()
    [folder] = entries()
    (folder / "model.bin").write_bytes(b"WEIGHTS")
    cache.write_record(folder, {})
    open_it()
    assert engine.built == 2


def test_an_entry_of_another_processor_or_version_is_not_used(
    engine: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_it()
    monkeypatch.setattr(cache, "processor", lambda: "x86_64 Another CPU: avx512")
    open_it()
    assert engine.built == 2
    monkeypatch.undo()


def test_a_key_holds_what_decides_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_key(engine="a")
    assert make_key(engine="a") == first
    assert make_key(engine="b") != first
    monkeypatch.setattr(cache, "code_digest", lambda: "other code")
    assert make_key(engine="a") != first


def test_the_processor_has_its_instruction_sets() -> None:
    info = "processor : 0\nmodel name : A CPU\nflags : sse avx2\n\nprocessor : 1\nmodel name : B\n"
    assert processor.describe(info).endswith(" A CPU: avx2 sse")
    assert processor.describe(info.replace("avx2", "avx512f")) != processor.describe(info)
    arm = "processor : 0\nFeatures : fp asimd\nCPU part : 0xd0c\n"
    assert processor.describe(arm).endswith(" 0xd0c: asimd fp")


def test_the_oldest_go_when_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def store(name: str) -> str:
        key = make_key(name=name)
        with new_entry(key, {}, lambda folder: fill(folder)):
            return key

    def fill(folder: Path) -> None:
        (folder / "file").write_bytes(bytes(1000))

    monkeypatch.setattr(cache, "MAX_BYTES", 4000)
    keys = [store(name) for name in "abc"]
    for age, key in enumerate(keys):
        stamp = 1000 + age
        os.utime(cache_folder() / key / RECORD, (stamp, stamp))
    assert find_entry(keys[0]) is not None  # used now, so that b is the oldest
    last = store("d")
    assert {folder.name for folder in entries()} == {keys[0], keys[2], last}
    monkeypatch.setattr(cache, "MAX_BYTES", 10)
    newest = store("e")  # stays, although it is too large alone
    assert [folder.name for folder in entries()] == [newest]


def test_a_cache_that_cannot_be_written_is_said_once(
    engine: Double,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("no directory", encoding="utf-8")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    cache.warn_unwritable.cache_clear()
    with caplog.at_level(logging.WARNING):
        first, second = open_it(), open_it()
    assert first.engine == second.engine == "double"
    assert engine.built == 2
    assert caplog.text.count("cannot be written, going on without") == 1


def test_clearing_removes_entries_and_nothing_else(engine: Double, place: Path) -> None:
    open_it()
    (place / "notes.txt").write_text("mine", encoding="utf-8")
    (place / "a-directory").mkdir()
    count, size = clear_cache()
    assert count == 1
    assert size > len("weights")
    assert {path.name for path in place.iterdir()} == {"notes.txt", "a-directory"}
    assert clear_cache() == (0, 0)


def test_what_cannot_be_removed_is_said(engine: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    open_it()
    monkeypatch.setattr(cache, "remove_entry", lambda key: None)
    with pytest.raises(UserError, match="cannot be removed: check its permissions"):
        clear_cache()


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VITRAIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vitrail" / "engines"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/vitrail/engines")


def test_a_record_says_what_it_is_of(engine: Double) -> None:
    open_it()
    [folder] = entries()
    facts = json.loads((folder / RECORD).read_text(encoding="utf-8"))["facts"]
    assert facts["engine"] == "double"
    assert facts["plan"]["output"] == "pooled"


def test_nothing_is_in_the_cache_before_it_was_compared(
    engine: Double, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def check(*given: object) -> None:
        seen.append([file for file in place.glob("*") if not file.name.startswith(".")])

    monkeypatch.setattr(opening, "check_agreement", check)
    open_it()
    assert seen == [[]]
    assert len(entries()) == 1


def test_a_model_with_another_activation_is_another_one(engine: Double) -> None:
    model = small_model()
    plan = plan_of(model, Job(output="pooled", batch_size=2))
    open_runner(model, plan, "double")
    model.get_submodule("blocks.0.mlp").act = torch.nn.Tanh()
    with pytest.raises(UserError, match="must compute what eager does"):  # compared anew
        open_runner(model, plan, "double")
    assert engine.built == 2


def test_a_place_with_a_name_that_is_too_long_is_done_without(
    engine: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", "/tmp/" + "a" * 300)
    assert open_it().engine == "double"


@pytest.mark.parametrize("sweep", ["clear", "build"])
def test_drafts_of_killed_builds_are_removed(engine: Double, place: Path, sweep: str) -> None:
    """Those of a process that is no more, and of another machine after a day."""
    host, key = socket.gethostname(), "0" * 64
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, old = f".{key}.tmp-{host}-{ended.pid}", f".{key}.tmp-elsewhere-1"
    alive, recent = f".{key}.tmp-{host}-{os.getppid()}", f".{key}.tmp-elsewhere-2"
    for name in (dead, old, alive, recent):
        (place / name).mkdir(parents=True)
        (place / name / "model.bin").write_bytes(bytes(1000))
    day_ago = time.time() - 25 * 60 * 60
    os.utime(place / old, (day_ago, day_ago))
    if sweep == "clear":
        assert clear_cache() == (2, 2000)
    else:
        open_it()
    left = {path.name for path in place.iterdir() if path.name.startswith(".")}
    assert left == {alive, recent}


def test_what_a_build_lacks_is_no_fault_of_the_cache(
    engine: Double, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def build(graph: object, folder: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "g++")

    monkeypatch.setattr(engine, "build", build)
    with pytest.raises(UserError, match=r"engine double failed: FileNotFoundError.*g\+\+"):
        open_it()
    assert "cannot be written" not in caplog.text


def test_an_entry_that_cannot_be_read_now_is_kept(
    engine: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_it()
    [folder] = entries()

    def refuse(file: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "file_digest", refuse)
        assert find_entry(folder.name) is None
    assert find_entry(folder.name) is not None
