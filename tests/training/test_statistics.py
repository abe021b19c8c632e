"""Models with batch norms: their statistics are saved, resumed and averaged as weights are."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.training.test_resume import Death, die_at, fingerprint
from tests.training.world import RECIPE, trainer
from vitrail import UserError, create, load
from vitrail.data.augment import Augmentation
from vitrail.training.batch_norm import synchronise_batch_norms
from vitrail.training.ema import EMA
from vitrail.training.recipe import Schedule

SMALL: dict[str, Any] = {
    "widths": (8, 8, 8, 16, 16), "dims": (8, 8, 16), "depths": (1, 1, 1), "stem": 8,
    "channels": 1, "image_size": (32, 32), "dropout": 0.1, "drop_path": 0.2,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "mobilevit_xxs": SMALL | {"last": 16, "heads": 2},
    "mobilevitv2_050": SMALL,
    "coatnet_0": {
        "stem": (8, 8), "dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1), "dim_head": 8,
        "channels": 1, "image_size": (32, 32), "dropout": 0.1, "drop_path": 0.2,
    },
    "resnet18": {
        "width": 8, "depths": (1, 1), "stem": "3x3", "channels": 1, "image_size": (32, 32),
        "dropout": 0.1, "drop_path": 0.2,
    },
    "mobilenet_v2": {
        "stem": 8, "widths": (8,) * 7, "depths": (1,) * 7, "last": 16, "expand": 2.0,
        "channels": 1, "image_size": (32, 32), "dropout": 0.1, "drop_path": 0.2,
    },
}  # fmt: skip


def changes(name: str) -> dict[str, Any]:
    schedule = Schedule(steps=8, warmup=2)
    fields, augmentation = KINDS[name], augmentation_of(name)
    return {"model": name, "fields": fields, "augmentation": augmentation, "schedule": schedule}


def augmentation_of(name: str) -> Augmentation:
    """Of several sizes where the model reads them."""
    sides = () if name.startswith("coatnet") else (32, 40)
    return replace(RECIPE.augmentation, sides=sides)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [
        ("mobilevit_xxs", False),
        ("mobilevitv2_050", True),
        ("coatnet_0", True),
        ("resnet18", True),
        pytest.param("mobilenet_v2", False, marks=pytest.mark.slow),
        pytest.param("mobilevit_xxs", True, marks=pytest.mark.slow),
        pytest.param("mobilevitv2_050", False, marks=pytest.mark.slow),
        pytest.param("coatnet_0", False, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_died_ends_as_if_it_had_not(
    name: str, checkpointing: bool, tmp_path: Path
) -> None:
    said = changes(name) | {"checkpointing": checkpointing, "schedule": Schedule(steps=5, warmup=2)}
    said["monitor"] = replace(RECIPE.monitor, save_every_steps=2)
    trainer(tmp_path / "whole", **said).run()
    run = trainer(tmp_path / "died", **said)
    die_at(3, run)
    with pytest.raises(Death):
        run.run()
    trainer(tmp_path / "died", **said).run(resume=True)
    assert fingerprint(tmp_path / "died") == fingerprint(tmp_path / "whole")
    best = load(tmp_path / "whole" / "best")
    assert next(b for n, b in best.named_buffers() if n.endswith("running_mean")).any()


@pytest.mark.slow
def test_parts_with_a_single_image_are_joined(tmp_path: Path) -> None:
    """The last maps of this model are 1x1, where a batch norm learns nothing from one image."""
    plain = replace(RECIPE.augmentation, mixup=0, cutmix=0)
    still = KINDS["mobilevit_xxs"] | {"dropout": 0.0, "drop_path": 0.0}
    small: dict[str, Any] = changes("mobilevit_xxs") | {"fields": still, "augmentation": plain}
    small |= {"batch_size": 4, "schedule": Schedule(steps=2, warmup=1)}
    for parts in (2, 4):
        trainer(tmp_path / str(parts), accumulate=parts, **small).run()
    assert fingerprint(tmp_path / "4") == fingerprint(tmp_path / "2")
    with pytest.raises(UserError, match="two images or more"):
        trainer(tmp_path / "1", **small | {"batch_size": 1}).run()
    run = trainer(tmp_path / "multi_label", **small | {"batch_size": 1})
    synchronise_batch_norms(run.model, run.world)  # as several processes do
    with pytest.raises(UserError, match="raise batch_size"):
        run.run()


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_shared_weights_and_statistics_are_averaged_together() -> None:
    """Where processes share a model its weights are another kind of tensor than statistics."""
    models = [create("mobilevit_xxs", num_classes=2, **KINDS["mobilevit_xxs"]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    mesh = init_device_mesh("cpu", (1,))
    for block in models[1].blocks_by_depth().values():
        fully_shard(block, mesh=mesh)
    fully_shard(models[1], mesh=mesh)
    averages = [EMA(model, decay=0.5) for model in models]
    for model, average in zip(models, averages, strict=True):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.add_(1.0)
        average.update(model, step=1000)
    for name, plain in averages[0].state.items():
        shared: Any = averages[1].state[name]
        whole = shared.full_tensor() if hasattr(shared, "full_tensor") else shared
        torch.testing.assert_close(whole, plain)
