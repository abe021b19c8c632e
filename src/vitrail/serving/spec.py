"""What a process of the service has to know to load its model and to compute with it, and what it
says about the model when it is ready."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

# what one image becomes: probabilities of the best classes, all logits, or what the head reads
Want: TypeAlias = Literal["scores", "logits", "features"]
Lane: TypeAlias = Literal["logits", "pooled"]  # what an engine computes; batches are of one lane

LANES: Mapping[Want, Lane] = {"scores": "logits", "logits": "logits", "features": "pooled"}
MAX_TOP = 100  # classes of one prediction


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One process of one model. `threads` compute at once, each a batch of its own."""

    name: str
    path: str
    engine: str = "auto"
    threads: int = 1
    batch_size: int = 32
    device: str = "auto"
    max_pixels: int = 50_000_000
    data: tuple[str, ...] = ()
    untrained: bool = False
    digest: str = ""  # of the model, where a process before has computed it
    features: int | None = None  # the length of an embedding, likewise


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What people and programs may know about a model."""

    family: str
    task: str
    image_size: tuple[int, int]
    channels: int
    classes: int
    labels: tuple[str, ...] | None
    multi_label: bool
    parameters: int
    features: int  # length of an embedding; 0 where there is none
    engine: str
    batch_sizes: tuple[int, ...]  # that the engine is built for; none: any
    can_inspect: bool
    digest: str
    passport: Mapping[str, Any]  # what a client needs to prepare images; no path of this machine

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON, in a list of models: without the passport."""
        return {name: value for name, value in asdict(self).items() if name != "passport"}

    def label(self, index: int) -> str:
        """The name of a class; a number where the weights brought none."""
        return self.labels[index] if self.labels is not None else f"class {index}"


def info_of(facts: Mapping[str, Any]) -> ModelInfo:
    """The same from the message of a process."""
    labels, (height, width) = facts["labels"], facts["image_size"]
    sizes = tuple(facts["batch_sizes"])
    values = {**facts, "image_size": (height, width), "batch_sizes": sizes}
    return ModelInfo(**{**values, "labels": None if labels is None else tuple(labels)})
