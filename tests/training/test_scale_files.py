"""The files of docs/scale: they parse, and say what their schedulers and our command line take."""

import re
import shlex
import subprocess
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
    assert '"$code" -eq 75' in text


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
    assert task.keys() <= {"name", "resources", "num_nodes", "file_mounts", "setup", "run", "envs"}
    assert task["resources"]["accelerators"].endswith(":8")
    assert all(mount["mode"] == "MOUNT" for mount in task["file_mounts"].values())
