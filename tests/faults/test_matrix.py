"""Save with any number of processes and any kind of parallelism, go on with any other."""

from pathlib import Path

import pytest

from tests.faults.matrix import NAMES, STEPS, STOP
from tests.faults.worker import make_trainer
from tests.training.group import run_groups
from vitrail.training.checkpoint import newest_step
from vitrail.training.log import Log

CLOSE = 1e-6


@pytest.mark.faults
def test_every_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for phase in ("save", "load"):
        run_groups("tests.faults.matrix", tmp_path, phase, seconds=1500)
    alone = tmp_path / "alone"
    make_trainer(alone, STEPS, "ddp", None).run()
    expected, reference = losses(alone), newest_step(alone / "steps")
    assert reference is not None
    good, worst = 0, 0.0
    for source in NAMES:
        for target in NAMES:
            out = tmp_path / f"{source}-to-{target}"
            found = losses(out)
            assert found.keys() == expected.keys()
            far = max(abs(found[step] - expected[step]) for step in expected if step > STOP)
            saved = newest_step(out / "steps")
            assert saved is not None
            assert saved.step == STEPS
            worst, good = max(worst, far), good + (far <= CLOSE)
    pairs = len(NAMES) ** 2
    with capsys.disabled():
        print(f"\nsave x load: {good}/{pairs} pairs, losses differ by at most {worst:.1e}")
    assert good == pairs


def losses(out: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in Log.read(out)}
