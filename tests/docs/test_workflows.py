"""The files of .github: they parse, have the fields that GitHub reads, and call our targets."""

import re
import tomllib
from typing import Any

import yaml

from tests.docs.blocks import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
JOB = {
    "runs-on",
    "timeout-minutes",
    "strategy",
    "steps",
    "name",
    "needs",
    "if",
    "env",
    "permissions",
}
STEP = {"uses", "with", "run", "name", "if", "env", "id", "working-directory"}
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return found


def steps() -> list[dict[str, Any]]:
    return [step for job in workflow()["jobs"].values() for step in job["steps"]]


def test_it_has_the_fields_that_github_knows() -> None:
    found = workflow()
    # YAML 1.1 reads the key `on` as true
    assert found.keys() <= {"name", True, "permissions", "concurrency", "jobs", "env", "defaults"}
    assert found[True].keys() <= {"push", "pull_request", "workflow_dispatch", "schedule"}
    assert found["permissions"] == {"contents": "read"}, "a job needs no more than reading"
    for job in found["jobs"].values():
        assert job.keys() <= JOB
        assert 0 < job["timeout-minutes"] <= 60
        assert job["steps"][0]["uses"].startswith("actions/checkout@")
        for step in job["steps"]:
            assert step.keys() <= STEP
            assert ("uses" in step) != ("run" in step), step


def test_actions_are_official_and_have_a_version() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used), used


def test_expressions_name_what_there_is() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    known = {"github.workflow", "github.ref", "matrix.python"}
    assert set(re.findall(r"\$\{\{ *([\w.]+) *\}\}", text)) <= known
    assert text.count("${{") == len(re.findall(r"\$\{\{ *[\w.]+ *\}\}", text))


def test_it_calls_our_targets_on_every_python() -> None:
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    runs = [step["run"] for step in steps() if "run" in step]
    called = [run.split()[1] for run in runs if run.startswith("make ")]
    assert set(called) <= set(targets)
    assert {"check", "test", "site", "release"} <= set(called)
    # what is no target prepares the machine
    assert all(run.startswith(("make ", "sudo apt-get ")) for run in runs), runs
    job = workflow()["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={PYTHONS[0]}"


def test_issue_templates_have_what_github_asks_for() -> None:
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name == "config.yml":
            assert form.keys() <= {"blank_issues_enabled", "contact_links"}
            continue
        assert {"name", "description", "body"} <= form.keys()
        kinds = {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert {part["type"] for part in form["body"]} <= kinds
        ids = [part["id"] for part in form["body"] if "id" in part]
        assert len(ids) == len(set(ids))


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    assert f"## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").lstrip().startswith("Apache License")
