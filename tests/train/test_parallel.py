"""Several processes compute what one computes, and go on from each other's checkpoints."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.cases import CASES, STEPS, case_trainer
from tests.train.group import run_group
from vitrail import UserError
from vitrail.train.checkpoint import newest_step
from vitrail.train.parallel import World, make_mesh

# In float64 what is left is the order of sums, and losses that are computed in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
HALF = {"rtol": 0.05, "atol": 0.02}

TWO = (
    "sgd:ddp", "freeze:ddp", "muon:ddp", "batch norm:ddp", "broken:ddp", "mae:ddp",
    "adamw:fsdp", "muon:fsdp", "lora:fsdp", "uneven:fsdp", "batch norm broken:fsdp", "beit:fsdp",
)  # fmt: skip
FOUR = ("muon:hsdp", "batch norm:hsdp", "fewer than processes:hsdp", "freeze:hsdp")


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


@pytest.mark.parametrize(("processes", "combinations"), [(2, TWO), (4, FOUR)])
def test_many_processes_are_one(
    processes: int, combinations: tuple[str, ...], tmp_path: Path
) -> None:
    """Stopped in the middle and resumed, too."""
    run_group(tmp_path, processes, *combinations)
    assert not differences(tmp_path, combinations)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "kind"),
    [(2, "ddp"), (3, "ddp"), (2, "fsdp"), (3, "fsdp"), (4, "fsdp"), (4, "hsdp")],
)
def test_many_processes_are_one_in_every_case(
    processes: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.train.loop.check_precision", lambda *_: None)
    combinations = tuple(f"{case}:{kind}" for case in CASES)
    run_group(tmp_path, processes, *combinations, seconds=3000)
    assert not differences(tmp_path, combinations)


def test_hsdp_wants_groups() -> None:
    with pytest.raises(UserError, match="hsdp with 3 processes"):
        make_mesh("hsdp", World(size=3))


def test_a_world_of_one_answers_itself() -> None:
    world = World()
    assert (world.sum(3), world.any(False), world.gather("x")) == (3, False, ["x"])
    assert world.from_main("x") == "x"
    assert world.chief
    assert replace(world, rank=1).chief is False
