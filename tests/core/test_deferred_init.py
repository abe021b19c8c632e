"""A model that is filled tensor by tensor has the bits of one that was built at once."""

from dataclasses import replace

import pytest
import torch

from tests.parity.test_every_family import CONFIGS
from tests.training.world import RECIPE, Stripes, accuracy, unlabelled
from vitrail.core.deferred_init import deferred_init
from vitrail.data.source import Splits
from vitrail.models.catalogue import build
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Lora


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family(family: str) -> None:
    torch.manual_seed(3)
    whole = build(CONFIGS[family])
    after = torch.rand(1)
    torch.manual_seed(3)
    with deferred_init() as deferred:
        empty = build(CONFIGS[family])
    deferred.name_tensors(empty)
    assert torch.equal(torch.rand(1), after)  # the generator stands where it would
    assert all(parameter.is_meta for parameter in empty.parameters())
    state = whole.state_dict()
    assert set(deferred.names()) == set(state)
    for name in reversed(deferred.names()):
        assert torch.equal(deferred.fill(name), state[name]), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["labels", "lora", "mae", "simmim", "masked-patch", "tokenizer"])
def test_every_objective(kind: str) -> None:
    changes = unlabelled(kind) if kind not in ("labels", "lora") else {}
    recipe = replace(RECIPE, **changes, lora=Lora(rank=2) if kind == "lora" else None)
    splits = Splits({"train": Stripes(20), "val": Stripes(10, seed=1)})
    whole = prepare_task(recipe, splits, accuracy).objective.state_dict()
    task = prepare_task(recipe, splits, accuracy, deferred=True)
    assert task.deferred is not None
    names = task.deferred.names()
    real = {name for name, t in task.objective.state_dict().items() if not t.is_meta}
    assert set(names) | real == set(whole)
    assert all(torch.equal(task.deferred.fill(name), whole[name]) for name in names)
    assert all(torch.equal(task.objective.state_dict()[name], whole[name]) for name in real)
