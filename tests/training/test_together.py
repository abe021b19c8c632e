"""What happens to one of several processes: all of them stop, refuse or wait together."""

from pathlib import Path

from tests.training.group import run_groups
from tests.training.test_parallel import differences
from tests.training.together import Cut, trainer_of
from vitrail.training.checkpoint import newest_step


def test_processes_refuse_stop_and_wait_together(tmp_path: Path) -> None:
    """What each of them must find is in tests/training/together.py."""
    run_groups(
        "tests.training.together", tmp_path, "checkpoints differ", "outage of one", "slow writing"
    )
    # after an outage the run has ended as if nothing had happened
    trainer_of(Cut(100), tmp_path / "alone" / "sgd").run()
    assert not differences(tmp_path, ("sgd:ddp",))
    saved = newest_step(tmp_path / "run" / "steps")
    assert saved is not None
    assert saved.step == 2
    assert (tmp_path / "run" / "report.html").is_file()
