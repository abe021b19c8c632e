"""Several processes compute what one computes, and go on from each other's checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.cases import CASES, STEPS, case_trainer
from tests.training.group import run_groups
from tests.training.together import HAPPENINGS, Cut, trainer_of
from vitrail import UserError
from vitrail.training.checkpoint import newest_step
from vitrail.training.parallel import make_mesh, parallelise
from vitrail.training.rehearsal import pretended_group
from vitrail.training.world import World

# In float64 what is left is the order of sums, and losses that are computed in float32.
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
HALF: dict[str, Any] = {"rtol": 0.05, "atol": 0.02}

# What processes have to agree on: statistics and broken images, masks, matrices in shares. Every
# case is in a slow test below.
TWO = ("batch norm coatnet broken:ddp", "mae:ddp", "muon, uneven:fsdp")
HANDED = "adamw"  # a run that is passed on: to four processes, to two, to one


def weights(out: Path) -> dict[str, torch.Tensor]:
    saved = newest_step(out / "steps")
    assert saved is not None
    assert saved.step == STEPS
    return {k: t.double() for k, t in saved.tensors.items() if k.startswith(("now", "average"))}


def differences(folder: Path, combinations: tuple[str, ...]) -> list[str]:
    """What several processes left other than one process does, in a line each."""
    found = []
    for combination in combinations:
        case, kind = combination.split(":")
        alone, many = folder / "alone" / case, folder / kind / case
        if not alone.exists():
            case_trainer(case, alone).run()
        expected, got = weights(alone), weights(many)
        assert expected.keys() == got.keys()
        close = HALF if case == "half" else CLOSE
        for name, tensor in expected.items():
            if not torch.allclose(got[name], tensor, **close):
                far = (got[name] - tensor).abs().max().item()
                found.append(f"{combination} {name}: {far:.1e} of {tensor.abs().max().item():.1e}")
        lines = [(out / "metrics.jsonl").read_text().splitlines() for out in (alone, many)]
        assert len(lines[0]) == len(lines[1])
    return found


@pytest.mark.slow
def test_many_processes_are_one_and_refuse_stop_and_wait_together(tmp_path: Path) -> None:
    """Stopped in the middle and resumed, too, and with another number of processes and another kind
    of parallelism. What happens to one of them, and what all of them must find then, is in
    tests/training/together.py. One test: starting takes as long as half of the rest.
    """
    two = (f"{HANDED}:fsdp:4", *TWO)
    run_groups("tests.training.many", tmp_path, *HAPPENINGS, "4", f"{HANDED}:hsdp:2", "2", *two)
    assert not differences(tmp_path, TWO)
    case_trainer(HANDED, tmp_path / "handed" / HANDED).run(resume=True)
    assert not differences(tmp_path, (f"{HANDED}:handed",))
    # after an outage the run has ended as if nothing had happened
    trainer_of(Cut(100), tmp_path / "alone" / "sgd").run()
    assert not differences(tmp_path, ("sgd:ddp",))
    saved = newest_step(tmp_path / "run" / "steps")
    assert saved is not None
    assert saved.step == 2
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.slow
def test_a_run_goes_on_with_other_processes(tmp_path: Path) -> None:
    """Three processes each with a copy, then two with a share, then one."""
    cases = ("sgd", "muon", "batch norm")
    three, two = ([f"{case}:{kind}" for case in cases] for kind in ("ddp:2", "fsdp:4"))
    run_groups("tests.training.many", tmp_path, "3", *three, "2", *two)
    for case in cases:
        case_trainer(case, tmp_path / "handed" / case).run(resume=True)
    assert not differences(tmp_path, tuple(f"{case}:handed" for case in cases))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "kind"),
    [(2, "ddp"), (3, "ddp"), (2, "fsdp"), (3, "fsdp"), (4, "fsdp"), (4, "hsdp")],
)
def test_many_processes_are_one_in_every_case(
    processes: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.training.loop.check_precision", lambda *_: None)
    combinations = tuple(f"{case}:{kind}" for case in CASES)
    run_groups("tests.training.many", tmp_path, str(processes), *combinations, seconds=3000)
    assert not differences(tmp_path, combinations)


def test_nothing_is_gathered_ahead_of_time_on_a_cpu(tmp_path: Path) -> None:
    """gloo gathers while nothing else happens: two blocks at once would be memory for no time."""
    with pretended_group(2):
        world = World(size=2)
        task = case_trainer("sgd", tmp_path).task
        parallelise(task.objective, replace(task.recipe, parallel="fsdp"), world)
        blocks = task.objective.model.blocks_by_depth().values()
        for part in (*blocks, task.objective):
            state = part._get_fsdp_state()  # type: ignore[operator]
            assert not state._states_to_forward_prefetch
            assert state._states_to_backward_prefetch == [state]  # it is there already: nothing


def test_hsdp_wants_groups() -> None:
    with pytest.raises(UserError, match="hsdp with 3 processes"):
        make_mesh("hsdp", World(size=3))


def test_a_world_of_one_answers_itself() -> None:
    world = World()
    assert (world.sum(3), world.any(False), world.gather("x")) == (3, False, ["x"])
    assert world.from_main("x") == "x"
    assert world.is_main
    assert replace(world, rank=1).is_main is False
