"""Processes that are killed: the run ends with the weights of one that was not."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults.agents import descendants, end, free_port, start_agent, wait_for
from tests.faults.worker import EVERY, make_trainer
from tests.training.test_resume import fingerprint, is_of_run, last_step, survive_kills
from vitrail.training.checkpoint import Saved, newest_step, steps_in, verify

RANKS, KILLS = 4, 10


@pytest.mark.faults
def test_four_ranks_and_ten_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL of a random rank, in steps and in saves, ten times in one run under torchrun."""
    draw, steps = random.Random(0), EVERY * (KILLS + 2)
    kills = [
        f"{EVERY * (number + 1) - 1}:{0 if number == 4 else draw.randrange(RANKS)}:step"
        if number % 2 == 0
        else f"{EVERY * (number + 1)}:{0 if number == 3 else draw.randrange(RANKS)}:save"
        for number in range(KILLS)
    ]
    assert any(kill.split(":")[1] == "0" for kill in kills)
    whole, out = tmp_path / "whole" / "run", tmp_path / "killed-run" / "run"
    for place, armed in ((whole, []), (out, kills)):
        place.parent.mkdir()
        log = place.parent / "log"
        arguments = [str(place), str(steps), "fsdp", *armed]
        agent = start_agent(
            log, arguments, processes=RANKS, restarts=len(armed) + 2, port=free_port()
        )
        try:
            assert agent.wait(timeout=1200) == 0, log.read_text()[-4000:]
        finally:
            end(agent)
    died = len(list((tmp_path / "killed-run" / "killed").iterdir()))
    same = fingerprint(out) == fingerprint(whole)
    saved = steps_in(out / "steps")
    equal = sum(is_of_run(read_step(step), whole) for step in saved)  # one or more after each kill
    with capsys.disabled():
        print(
            f"\n4 ranks: {died}/{KILLS} kills ({', '.join(kills)}), {equal}/{len(saved)} "
            f"checkpoints equal, final weights equal: {same}"
        )
    assert died == KILLS
    assert equal == len(saved) > KILLS
    assert same


def read_step(path: Path) -> Saved:
    found, _ = verify(path)
    assert found is not None
    return Saved(found.step, found.read(), found.run_state)


@pytest.mark.faults
def test_one_process_and_fifty_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed, equal, same = survive_kills(50, 600, tmp_path)
    with capsys.disabled():
        print(
            f"\none process: {killed}/50 kills, {equal}/50 checkpoints equal after them, "
            f"final digests equal: {same}"
        )
    assert (killed, equal, same) == (50, 50, True)


@pytest.mark.faults
def test_one_of_two_nodes_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two agents as two machines; one dies with its process, the other goes on alone."""
    out, steps, port = tmp_path / "run", 400, free_port()
    logs = [tmp_path / f"agent-{number}.log" for number in range(2)]
    arguments = [str(out), str(steps), "ddp"]
    how: dict[str, Any] = {"processes": 1, "restarts": 5, "nodes": "1:2", "port": port}
    agents = [
        start_agent(log, arguments, hosts_store=number == 0, **how)
        for number, log in enumerate(logs)
    ]
    try:
        wait_for(lambda: last_step(out) >= 2 * EVERY, seconds=300, agent=agents[0])
        workers = [len(descendants(agent.pid)) for agent in agents]
        end(agents[1])
        killed_at = last_step(out)
        code = agents[0].wait(timeout=900)
    finally:
        for agent in agents:
            end(agent)
    assert code == 0, logs[0].read_text()[-4000:]
    make_trainer(tmp_path / "alone", steps, "ddp", None).run()
    saved, alone = (newest_step(path / "steps") for path in (out, tmp_path / "alone"))
    assert saved is not None and alone is not None  # noqa: PT018
    far = max(
        float((saved.tensors[name].double() - tensor.double()).abs().max())
        for name, tensor in alone.tensors.items()
        if name.startswith("now.")
    )
    with capsys.disabled():
        print(
            f"\ntwo nodes ({workers} processes): one killed at step {killed_at} of {steps}, "
            f"ended at step {saved.step}; weights differ by at most {far:.1e} from one process"
        )
    assert saved.step == steps
    assert far < 1e-5
