"""`vitrail.plan`: how to train a model on many GPUs, by its memory and what it has to send."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitrail.core.errors import UserError
from vitrail.core.html_text import html_table
from vitrail.core.json_text import plain_values
from vitrail.core.ranges import check, check_count
from vitrail.models.activations import count_activations
from vitrail.models.catalogue import change, find
from vitrail.tasks.run_options import Size
from vitrail.training.planning import (
    GB,
    USABLE,
    Setting,
    Strategy,
    images_of_gpus,
    list_strategies,
    matrices_of_muon,
    recommend,
)

MODELLED = (
    "modelled from first principles, not measured: bytes of shapes, no kernel was run; expect "
    "10 to 20 % more on a GPU"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """What a GPU needs for each kind of parallelism, all of it modelled, and the command for the
    one that fits and sends least; `recommended` is None if none fits."""

    model: str
    params: int
    image_size: tuple[int, int]
    batch_size: int
    gpus: int
    gpus_per_machine: int
    memory: float  # GB of a GPU
    precision: str
    optimiser: str
    ema: bool
    fields: Mapping[str, Any]  # of the model, that were set
    strategies: tuple[Strategy, ...]
    recommended: Strategy | None

    @property
    def command(self) -> str | None:
        """What to run on every machine."""
        best = self.recommended
        if best is None:
            return None
        machines = -(-self.gpus // self.gpus_per_machine)
        here = min(self.gpus, self.gpus_per_machine)
        launcher = ["torchrun", "--nnodes", str(machines), "--nproc-per-node", str(here)]
        if machines > 1:
            launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29400"]
        words = [
            *launcher, "--max-restarts", "10", "-m", "vitrail", "train", "DATA",
            "--model", self.model, "--image-size", f"{self.image_size[0]}x{self.image_size[1]}",
            "--batch-size", str(self.batch_size), "--parallel", best.parallel,
            "--precision", self.precision, "--resume", "auto",
        ]  # fmt: skip
        recompute = {"none": None, "selective": "selective", "every block": "true"}[best.recompute]
        given = {name: value for name, value in self.fields.items() if name != "image_size"}
        sets = {
            **{f"fields.{name}": json.dumps(value) for name, value in given.items()},
            # train takes the recipe `small`, which has a mean and chooses an optimiser by the data
            "optimiser.name": self.optimiser,
            "ema_decay": None if self.ema else "null",
            "accumulate": str(best.accumulate) if best.accumulate > 1 else None,
            "checkpointing": recompute,
            "sharding.group": str(best.share) if best.parallel == "hsdp" else None,
        }
        for name, value in sets.items():
            words += [] if value is None else ["--set", f"{name}={value}"]
        return shlex.join(words)

    @property
    def images_of_gpus(self) -> tuple[int, int]:
        """The fewest and the most images of a batch that a GPU computes."""
        return images_of_gpus(self.batch_size, self.gpus)

    def why_uneven(self) -> str | None:
        """What to know of a batch that GPUs cannot share equally."""
        fewest, most = self.images_of_gpus
        if fewest == most:
            return None
        # images are shared in the pairs that mixup and cutmix bring together
        pair = 2 * self.gpus
        near = -(-self.batch_size // pair) * pair
        return (
            f"GPUs have {fewest:,} to {most:,} of the {self.batch_size:,} images of a batch, and "
            f"wait for those with most: batch_size={near} gives all equally many"
        )

    def why_nothing_fits(self) -> str | None:
        """What is needed at least, where no kind of parallelism fits."""
        if self.recommended is not None:
            return None
        least = min(one.memory.total for one in self.strategies) / USABLE / GB
        if self.ema:
            return (
                f"memory must be at least {least:.1f} GB for {self.model} with gpus={self.gpus}, "
                f"got {self.memory:g}: use more GPUs, smaller images, or ema=False"
            )
        return (
            f"memory must be at least {least:.1f} GB for {self.model} with gpus={self.gpus}, got "
            f"{self.memory:g}: use more GPUs or smaller images"
        )

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON; bytes, modelled."""
        limit = round(self.memory * GB)
        rows = [one.facts() | {"fits": one.fits(limit)} for one in self.strategies]
        best = None if self.recommended is None else self.recommended.parallel
        return plain_values(
            {
                "model": self.model,
                "params": self.params,
                "image_size": self.image_size,
                "batch_size": self.batch_size,
                "images_of_gpus": self.images_of_gpus,
                "gpus": self.gpus,
                "gpus_per_machine": self.gpus_per_machine,
                "memory": self.memory,
                "precision": self.precision,
                "optimiser": self.optimiser,
                "ema": self.ema,
                "fields": dict(self.fields),
                "method": MODELLED,
                "strategies": rows,
                "recommended": best,
                "command": self.command,
            }
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A table for people: memory in GB and what is sent in a step."""
        limit = round(self.memory * GB)
        return [
            (
                one.parallel,
                one.recompute,
                f"{one.images} x {one.accumulate}",
                f"{(one.memory.weights + one.memory.copies + one.memory.gradients) / GB:.1f}",
                f"{(one.memory.optimiser + one.memory.average) / GB:.1f}",
                f"{one.memory.communication / GB:.1f}",
                f"{one.memory.activations / GB:.1f}",
                f"{one.memory.total / GB:.1f}",
                f"{one.sent_within / GB:.1f}",
                f"{one.sent_between / GB:.1f}",
                "yes" if one.fits(limit) else "no",
            )
            for one in self.strategies
        ]

    def __repr__(self) -> str:
        best = "nothing fits" if self.recommended is None else self.recommended.parallel
        return f"Plan({self.model} on {self.gpus} GPUs of {self.memory:g} GB: {best})"

    def _repr_html_(self) -> str:
        found = {
            one.parallel: f"{one.memory.total / GB:.1f} GB, {one.recompute} recomputed"
            for one in self.strategies
        }
        return html_table(repr(self), found | {"command": self.command, "method": MODELLED})


HEADER = (
    "parallel", "recomputed", "images x parts", "weights, gradients", "optimiser, average",
    "exchange", "activations", "GB in all", "GB a GPU sends", "GB leaving a machine", "fits",
)  # fmt: skip


def plan(
    model: str,
    *,
    gpus: int,
    memory: float = 80.0,
    batch_size: int = 4096,
    gpus_per_machine: int = 8,
    image_size: Size | None = None,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    optimiser: Literal["adamw", "sgd", "muon"] = "adamw",
    ema: bool = True,
    set: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan the training of a model on `gpus` GPUs of `memory` GB each, with batches of `batch_size`
    images in all: what each kind of parallelism needs of a GPU and sends in a step, modelled from
    first principles, and the command for the best one that fits. `set` changes fields of the model.

    >>> found = plan("vit_G_14", gpus=64)
    >>> found.recommended.parallel, round(found.params / 1e9, 2)
    ('hsdp', 1.84)
    """
    check_cluster(gpus, gpus_per_machine, batch_size)
    check("memory", memory, above=0)
    for name, value, known in (
        ("precision", precision, ("float32", "bfloat16")),
        ("optimiser", optimiser, ("adamw", "sgd", "muon")),
    ):
        if value not in known:
            raise UserError(f"{name} must be {' or '.join(known)}, got {value!r}")
    fields = dict(set or {}) | ({} if image_size is None else {"image_size": image_size})
    config = change(find(model), fields)
    half = precision == "bfloat16"
    cost = count_activations(config, half=half)
    setting = Setting(
        gpus=gpus,
        gpus_per_machine=gpus_per_machine,
        batch_size=batch_size,
        half=half,
        optimiser=optimiser,
        matrices=matrices_of_muon(config) if optimiser == "muon" else None,
        ema=ema,
    )
    limit = round(memory * GB)
    strategies = list_strategies(cost, setting, limit)
    return Plan(
        model=model,
        params=cost.params,
        image_size=config.image_size,
        batch_size=batch_size,
        gpus=gpus,
        gpus_per_machine=gpus_per_machine,
        memory=memory,
        precision=precision,
        optimiser=optimiser,
        ema=ema,
        fields=fields,
        strategies=tuple(strategies),
        recommended=recommend(strategies, limit),
    )


def check_cluster(gpus: int, gpus_per_machine: int, batch_size: int) -> None:
    check_count("gpus", gpus, at_least=1, at_most=1 << 20)
    check_count("gpus_per_machine", gpus_per_machine, at_least=1)
    check_count("batch_size", batch_size, at_least=1, at_most=1 << 20)
    if batch_size < gpus:
        raise UserError(
            f"batch_size must be at least one image for each of {gpus} GPUs, got {batch_size}: "
            "raise it, or use fewer GPUs"
        )
    if gpus > gpus_per_machine and gpus % gpus_per_machine:
        raise UserError(
            f"gpus must be a multiple of gpus_per_machine={gpus_per_machine}, got {gpus}: use "
            f"{gpus - gpus % gpus_per_machine} or {gpus + -gpus % gpus_per_machine}"
        )
