"""The files of docs/scale: they parse, and say what their schedulers and our command line take."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.cli.app import build_parser
from vitrail.cli.train import Train

SCALE = Path(__file__).parents[2] / "docs" / "scale"
SCRIPTS = ("torchrun.sh", "slurm.sbatch")


def script_of(name: str) -> str:
    """The shell script in a file, or its `run`."""
    text = (SCALE / name).read_text(encoding="utf-8")
    return yaml.safe_load(text)["run"] if name.endswith(".yaml") else text


@pytest.mark.parametrize("name", [*SCRIPTS, "skypilot.yaml"])
def test_scripts_parse(name: str) -> None:
    script = script_of(name)
    found = subprocess.run(
        ["bash", "-n"], input=script, text=True, capture_output=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "`" not in script
    # what may hold a space is quoted: shellcheck's SC2086
    loose = re.findall(r'(?<![\w"=])\$\w+', re.sub(r'"[^"]*"', "", script))
    assert set(loose) <= {"$1", "$2", "$(", "$!", "$?"}, loose


def trainings() -> dict[str, list[str]]:
    """The words after `vitrail` in every file."""
    found = {}
    for name in (*SCRIPTS, "skypilot.yaml"):
        joined = script_of(name).replace("\\\n", " ")
        line = next(line for line in joined.splitlines() if "-m vitrail" in line)
        words = shlex.split(line.removesuffix("&"))
        assert "--max-restarts" in words
        found[name] = [word for word in words[words.index("vitrail") + 1 :] if word != "$@"]
    job = yaml.safe_load((SCALE / "trainjob.yaml").read_text(encoding="utf-8"))
    arguments: list[str] = job["spec"]["trainer"]["args"]
    found["trainjob.yaml"] = arguments[arguments.index("vitrail") + 1 :]
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*SCRIPTS, "skypilot.yaml", "trainjob.yaml"])
def test_the_command_is_one_of_ours(name: str) -> None:
    record = build_parser()(trainings()[name], exit_on_error=False)
    assert isinstance(record, Train)
    assert record.resume == "auto"
    assert record.out


def test_slurm_saves_before_the_limit_and_queues_again() -> None:
    text = script_of("slurm.sbatch")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    assert options["signal"] == "B:USR1@120"
    assert "requeue" in options
    assert options["ntasks-per-node"] == "1"  # torchrun starts the processes of a machine
    assert options["gpus-per-node"] == re.findall(r"--nproc-per-node (\d+)", text)[0]


# What stands for srun in a job; torchrun exits with 1 if it or its processes were stopped.
SAVES = "trap 'sleep 0.3; exit 1' TERM; touch started; while :; do sleep 0.05; done"
PREEMPTED = "echo {} > run/requeue.json; exit 1"


@pytest.mark.parametrize(
    ("srun", "signals", "code", "requeued"),
    [
        (SAVES, [signal.SIGUSR1, signal.SIGTERM], 1, 1),  # the time limit, near and reached
        (PREEMPTED, [], 1, 1),  # the processes were signalled, not the shell
        ("exit 2", [], 2, 0),  # a mistake, which the next job would make again
        ("exit 0", [], 0, 0),
    ],
)
def test_slurm_jobs_that_were_stopped_are_queued_again(
    srun: str, signals: list[int], code: int, requeued: int, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "requeue.json").write_text("{}")  # of the job before
    (tmp_path / "bin").mkdir()
    scontrol = 'echo "$@" >> calls; if [ "$1" = show ]; then echo node1; fi'
    for name, body in (("srun", srun), ("scontrol", scontrol)):
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node1", "SLURM_NNODES": "1", "SLURM_JOB_ID": "7"}
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    script = subprocess.Popen(
        ["bash", SCALE / "slurm.sbatch", "photos", "run"],
        cwd=tmp_path,
        env={**os.environ, **job, "PATH": path},
        stderr=subprocess.DEVNULL,
    )
    try:
        for number in signals:
            deadline = time.monotonic() + 20
            while not (tmp_path / "started").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            script.send_signal(number)
            time.sleep(0.1)
        assert script.wait(timeout=20) == code
    finally:
        script.kill()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls.count("requeue 7") == requeued


def test_trainjob_has_the_fields_of_its_api() -> None:
    job: dict[str, Any] = yaml.safe_load((SCALE / "trainjob.yaml").read_text(encoding="utf-8"))
    assert job["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    assert job["kind"] == "TrainJob"
    assert job["spec"].keys() <= {"runtimeRef", "trainer", "podTemplateOverrides", "suspend"}
    trainer = job["spec"]["trainer"]
    known = {"image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"}
    assert trainer.keys() <= known
    assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]


def test_skypilot_has_the_fields_of_its_tasks() -> None:
    task = yaml.safe_load((SCALE / "skypilot.yaml").read_text(encoding="utf-8"))
    known = {"name", "resources", "num_nodes", "file_mounts", "volumes", "setup", "run", "envs"}
    assert task.keys() <= known
    assert task["resources"]["accelerators"].endswith(":8")
    assert all(mount["mode"] == "MOUNT" for mount in task["file_mounts"].values())
    # a bucket promises no rename and no fsync, which checkpoints need
    out = trainings()["skypilot.yaml"][trainings()["skypilot.yaml"].index("--out") + 1]
    assert any(out.startswith(place) for place in task["volumes"])
