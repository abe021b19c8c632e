"""Blocks that are compiled one by one learn what they learn otherwise."""

from pathlib import Path

import pytest
import torch

from tests.training.world import trainer
from vitrail.training.checkpoint import newest_step
from vitrail.training.recipe import Schedule


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, "selective"])
def test_compiled_blocks_are_the_same_run(checkpointing: bool | str, tmp_path: Path) -> None:
    """With dropout and stochastic depth: what is drawn for an image does not depend on it."""
    found = []
    for compiled in (False, True):
        out = tmp_path / str(compiled)
        schedule = Schedule(steps=4, warmup=1)
        run = trainer(out, compile=compiled, checkpointing=checkpointing, schedule=schedule)
        run.run()
        saved = newest_step(out / "steps")
        assert saved is not None
        found.append({k: t for k, t in saved.tensors.items() if k.startswith("now.")})
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-3, atol=1e-4)
