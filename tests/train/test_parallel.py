"""Several processes compute what one computes, and go on from each other's checkpoints."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.world import RECIPE, trainer, unlabelled
from vitrail import UserError
from vitrail.train.checkpoint import newest_step
from vitrail.train.parallel import World, make_mesh
from vitrail.train.recipe import Goal, Optimiser

# Nothing that draws in the forward pass: which samples it drops depends on who computes them.
STEADY: dict[str, Any] = {
    "fields": {**RECIPE.fields, "dropout": 0.0, "drop_path": 0.0},
    "accumulate": 2,
    "optimiser": Optimiser(name="sgd", lr=0.05),  # Adam makes much of a gradient that is nearly 0
}


def steady(objective: str, words: Path) -> dict[str, Any]:
    """What a recipe has in the place of the usual; `words` is a tokenizer."""
    if objective == "labels":
        return {**STEADY, "goal": Goal()}
    return {**STEADY, **unlabelled(objective, words)}


def run_many(
    out: Path, *, processes: int, kind: str, stop: int, resume: bool, objective: str = "labels"
) -> None:
    """The run in several processes, up to a step, as torchrun starts them."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={processes}", "-m", "tests.train.many",
        str(out), kind, str(stop), str(int(resume)), objective,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:6000]


def weights(out: Path) -> dict[str, torch.Tensor]:
    saved = newest_step(out / "steps")
    assert saved is not None
    assert saved.step == 24
    return {k: t.double() for k, t in saved.tensors.items() if k.startswith(("now", "average"))}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    trainer(out, **steady("labels", out)).run()
    return out


@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        ("mae", "ddp"),
        ("mae", "fsdp"),
        ("masked-patch", "ddp"),
        ("simmim", "ddp"),
        ("beit", "fsdp"),
        ("tokenizer", "ddp"),
    ],
)
def test_masks_do_not_depend_on_who_draws_them(objective: str, kind: str, tmp_path: Path) -> None:
    trainer(tmp_path / "alone", **steady(objective, tmp_path / "words")).run()
    many = tmp_path / "many"
    run_many(many, processes=2, kind=kind, stop=24, resume=False, objective=objective)
    expected, found = weights(tmp_path / "alone"), weights(many)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(("kind", "processes"), [("ddp", 2), ("ddp", 3), ("fsdp", 2), ("hsdp", 4)])
def test_many_processes_are_one(kind: str, processes: int, alone: Path, tmp_path: Path) -> None:
    run_many(tmp_path / "run", processes=processes, kind=kind, stop=24, resume=False)
    expected, found = weights(alone), weights(tmp_path / "run")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == len(
        (alone / "metrics.jsonl").read_text().splitlines()
    )


def test_a_run_goes_on_with_other_processes(alone: Path, tmp_path: Path) -> None:
    """Three processes each with a copy, then two with a share, then one."""
    out = tmp_path / "run"
    run_many(out, processes=3, kind="ddp", stop=8, resume=False)
    run_many(out, processes=2, kind="fsdp", stop=16, resume=True)
    trainer(out, **steady("labels", out)).run(resume=True)
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(weights(out)[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_hsdp_wants_groups() -> None:
    with pytest.raises(UserError, match="hsdp with 3 processes"):
        make_mesh("hsdp", World(size=3))


def test_a_world_of_one_answers_itself() -> None:
    world = World()
    assert (world.sum(3), world.any(False), world.gather("x")) == (3, False, ["x"])
    assert world.chief
    assert replace(world, rank=1).chief is False
