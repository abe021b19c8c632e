"""Ray gives the bits of one process, whoever is killed on the way."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.inference.photos import LABELS, small_model, write_photos
from vitrail import UserError, save
from vitrail.cli.app import main
from vitrail.inference.arrow import EmbeddingTable, PredictionTable
from vitrail.inference.engine import Job, compute_outputs
from vitrail.inference.on_ray import _check_settings, list_names, read_in_order
from vitrail.inference.parts import (
    CHECKPOINT,
    STATE,
    count_broken,
    drop_broken_rows,
    finished_parts,
)
from vitrail.inference.predict import rank_classes

ACTOR = b"ray::MapWorker(MapBatches(Worker))"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "vitrail.cli.app", *words]


@pytest.fixture
def own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster outputs to its test only, and Ray writes no token into somebody's home."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


def run(*words: str) -> str:
    """A command line that succeeds."""
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(folder: Path) -> list[tuple[str, bytes | None, str | None]]:
    """id, bits and reason of every row, sorted."""
    found = []
    for part in finished_parts(folder):
        table = pq.read_table(part)
        for row, vector in zip(table.to_pylist(), table["embedding"], strict=True):
            values = vector.values.to_numpy().tobytes() if vector.is_valid else None
            found.append((row["id"], values, row["problem"]))
    return sorted(found, key=lambda row: row[0])


# Without Ray


def test_parts_in_any_order_are_read_by_their_numbers(tmp_path: Path) -> None:
    names = write_photos(tmp_path / "photos", 10, broken=(3,))
    said = list(compute_outputs(small_model(), names, Job(output="scores")))
    state = tmp_path / STATE / CHECKPOINT
    state.mkdir(parents=True)
    for number, rows in enumerate([[7, 9], [1, 0], [2, 5, 3], [8], [6, 4]]):
        table = PredictionTable(LABELS, 2)([said[row] for row in rows])
        pq.write_table(table.append_column("row", [rows]), tmp_path / f"x_{number}-0.parquet")
        pq.write_table(table.select(["name"]), state / f"x_{number}.parquet")
    pq.write_table(table.append_column("row", [rows]), tmp_path / "unfinished-0.parquet")
    assert list(read_in_order(tmp_path)) == [rank_classes(output, LABELS, 2) for output in said]


def test_a_list_of_names_keeps_bytes_that_are_no_text(tmp_path: Path) -> None:
    names = ["a.jpg", os.fsdecode(b"caf\xe9.jpg"), "a.jpg"]
    listing = list_names(names, tmp_path, numbered=True)
    table = pq.read_table(listing.folder)
    assert [os.fsdecode(path) for path in table["path"].to_pylist()] == names
    assert table["row"].to_pylist() == [0, 1, 2]
    assert listing.count == 3
    assert list_names(names[:2], tmp_path, numbered=True).digest != listing.digest
    assert pq.read_table(listing.folder).num_rows == 2
    texts = pq.read_table(list_names(names[:2], tmp_path, numbered=False).folder)["id"].to_pylist()
    assert texts == ["a.jpg", "caf\\udce9.jpg"]


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    _check_settings(tmp_path / "settings.json", {"top": 5, "names": "x"})
    _check_settings(tmp_path / "settings.json", {"top": 5, "names": "x"})
    with pytest.raises(UserError, match="with another model, other images or settings"):
        _check_settings(tmp_path / "settings.json", {"top": 4, "names": "x"})


def test_what_ray_could_not_read_is_forgotten_so_that_it_is_tried_again(tmp_path: Path) -> None:
    names = write_photos(tmp_path / "photos", 6, broken=(1, 4))
    said = list(compute_outputs(small_model(), names, Job(output="pooled")))
    state = tmp_path / STATE / CHECKPOINT
    state.mkdir(parents=True)
    for number, rows in enumerate([said[:3], said[3:]]):
        table = EmbeddingTable("float32")(rows)
        pq.write_table(table, tmp_path / f"x_{number}-0.parquet")
        pq.write_table(table.select(["id"]), state / f"x_{number}.parquet")
    drop_broken_rows(tmp_path, {names[0], names[1]}, key="id")
    assert pq.read_table(state)["id"].to_pylist() == [names[n] for n in (0, 2, 3, 4, 5)]
    assert [row[0] for row in rows_of(tmp_path)] == [names[n] for n in (0, 2, 3, 4, 5)]
    drop_broken_rows(tmp_path, None, key="id")
    assert [row[0] for row in rows_of(tmp_path)] == [names[n] for n in (0, 2, 3, 5)]


# With a cluster of one machine, that the command starts itself


@pytest.mark.slow
@pytest.mark.usefixtures("own_token")
def test_a_few_pictures_on_ray_equal_those_of_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    model = str(save(small_model(), tmp_path / "model"))
    photos = str(tmp_path / "photos")
    write_photos(tmp_path / "photos", 60, broken=(7,))
    assert main(["embed", model, photos, "--out", str(tmp_path / "here")]) == 0
    asked = ["embed", model, photos, "--out", str(tmp_path / "ray"), "--engine", "ray"]
    told = run(*asked, "--threads", "1")
    assert told == f"{tmp_path}/ray: 59 images embedded, 1 unreadable\n"
    assert rows_of(tmp_path / "ray") == rows_of(tmp_path / "here")
    assert pq.read_table(tmp_path / "ray").num_rows == 60
    (tmp_path / "photos" / "00007.jpg").unlink()
    assert main(asked) == 0  # all is there, so nothing is started
    assert capsys.readouterr().out.endswith("59 already embedded\n")


@pytest.mark.slow
@pytest.mark.usefixtures("own_token")
def test_each_process_of_ray_computes_by_the_named_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    model = str(save(small_model(), tmp_path / "model"))
    write_photos(tmp_path / "photos", 9)
    words = ["embed", model, str(tmp_path / "photos"), "--threads", "1"]
    run(*words, "--out", str(tmp_path / "ray"), "--engine", "ray:onnxruntime")
    run(*words, "--out", str(tmp_path / "here"), "--engine", "onnxruntime")
    assert rows_of(tmp_path / "ray") == rows_of(tmp_path / "here")
    manifest = json.loads((tmp_path / "ray" / "_manifest.json").read_text(encoding="utf-8"))
    assert manifest["engine"] == "onnxruntime"


# With a cluster that outlives what uses it


@dataclass(frozen=True)
class Cluster:
    address: str
    process: int

    def actors(self) -> list[int]:
        """Processes of this cluster that hold the model."""
        parents = dict(alive())
        return [pid for pid in parents if self.owns(pid, parents) and is_actor(pid)]

    def owns(self, pid: int, parents: dict[int, int]) -> bool:
        while pid in parents:
            if pid == self.process:
                return True
            pid = parents[pid]
        return False


def alive() -> Iterator[tuple[int, int]]:
    """Every process and its parent."""
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdecimal():
                yield (
                    int(place.name),
                    int((place / "stat").read_text().rpartition(")")[2].split()[1]),
                )
        except OSError:
            continue  # it has ended meanwhile


def is_actor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(ACTOR)
    except OSError:
        return False


@pytest.fixture
def cluster(own_token: None) -> Iterator[Cluster]:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # a short name: the paths of its sockets have room for a hundred letters
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        options = {
            "port": port,
            "node-ip-address": "127.0.0.1",
            "num-cpus": 3,
            "object-store-memory": 10**8,
            "include-dashboard": "false",
            "temp-dir": folder,
        }
        started = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
            + [f"--{name}={value}" for name, value in options.items()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert started.stdout is not None
            said = ""
            while "Ray runtime started" not in said:
                line = started.stdout.readline()
                assert line, said
                said += line
            yield Cluster(f"127.0.0.1:{port}", started.pid)
        finally:
            started.terminate()  # it ends what it started
            started.communicate(timeout=60)


def kill_three(cluster: Cluster, driver: subprocess.Popen[bytes], out: Path) -> None:
    """A worker after each new part, and wait for one more."""
    killed: set[int] = set()
    for _ in range(3):
        wait_for_a_part(out, driver)
        while not (found := set(cluster.actors()) - killed):
            assert driver.poll() is None, "it ended too early"
            time.sleep(0.1)
        killed.add(min(found))
        os.kill(min(found), signal.SIGKILL)
    wait_for_a_part(out, driver)


def wait_for_a_part(out: Path, driver: subprocess.Popen[bytes]) -> None:
    before, end = len(finished_parts(out)), time.monotonic() + 300
    while len(finished_parts(out)) == before:
        assert driver.poll() is None, "it ended too early"
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux does")
def test_workers_and_the_driver_may_be_killed(tmp_path: Path, cluster: Cluster) -> None:
    model = str(save(small_model(), tmp_path / "model"))
    photos, here, there = tmp_path / "photos", tmp_path / "here", tmp_path / "ray"
    names = write_photos(photos, 5000, broken=(7, 4999))
    run("embed", model, str(photos), "--out", str(here), "--threads", "1")
    asked = ("embed", model, str(photos), "--out", str(there), "--engine", "ray")

    with (tmp_path / "said").open("wb") as said_by_driver:
        driver = subprocess.Popen(
            command(*asked, "--address", cluster.address),
            stdout=said_by_driver,
            stderr=said_by_driver,
        )
    try:
        kill_three(cluster, driver, there)
    finally:
        driver.kill()
        driver.wait()
    good = sum(values is not None for _, values, _ in rows_of(there))
    assert 0 < good < 4998
    whole = [part for part in finished_parts(there) if not count_broken(part)]
    before = {part: part.stat().st_mtime_ns for part in whole}

    told = run(*asked, "--address", cluster.address)
    assert f"{4998 - good:,} images embedded, 2 unreadable" in told, "both are tried again"
    assert f"{good} already embedded" in told
    assert {part: part.stat().st_mtime_ns for part in before} == before
    found = rows_of(there)
    assert [row[0] for row in found] == names
    assert found == rows_of(here)
    assert len(pq.read_table(there)) == 5000  # nothing unfinished lies about

    # the same cluster labels them, a name twice, in order
    said = (
        "predict",
        model,
        str(photos),
        names[0],
        "--engine",
        "ray",
        "--address",
        cluster.address,
    )
    run(*said, "--out", str(tmp_path / "ray.jsonl"))
    run(*said[:4], "--out", str(tmp_path / "here.jsonl"))
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert not list(tmp_path.glob(".*.ray"))
