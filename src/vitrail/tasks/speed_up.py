"""`speed_up=` of the verbs: a model that merges tokens until it is that many times as fast."""

from pathlib import Path

import torch

from vitrail.core.eval_mode import eval_mode
from vitrail.inference.engine import torch_threads, usable_threads
from vitrail.inference.engines.auto import open_runner
from vitrail.inference.engines.cache import has_entry, remove_entry
from vitrail.inference.engines.catalogue import AUTO, LIBRARIES
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.opening import library_key
from vitrail.inference.engines.runner import Plan
from vitrail.inference.journal import stopped_speed_up
from vitrail.inference.merging import merge_tokens
from vitrail.inference.rewrites.optimise import OutputKind
from vitrail.inference.speed_up import Runner, SpeedUp, choose_merging
from vitrail.models.model import Model
from vitrail.tasks.models import refuse_without_weights


def with_speed_up(
    model: Model,
    speed_up: float | None,
    *,
    batch_size: int,
    engine: str = AUTO,
    threads: int | None = None,
) -> tuple[Model, SpeedUp | None]:
    """The model, or one over the same weights that merges tokens, and what was measured: on the
    engine if one is named, else on eager, whose models take no time to build; with the threads that
    the job has."""
    if speed_up is None:
        return model, None
    refuse_without_weights(model, "merge tokens")
    with eval_mode(model), torch_threads(usable_threads(threads)):
        output: OutputKind = "scores" if model.config.num_classes else "pooled"
        if engine in LIBRARIES:
            found = choose_on_engine(model, speed_up, batch_size=batch_size, engine=engine)
        else:
            found = choose_merging(model, speed_up, batch_size=batch_size, output=output)
        return merge_tokens(model, found.r), found


def merge_as_stopped(
    model: Model,
    speed_up: float | None,
    out: str | Path | None,
    *,
    batch_size: int,
    engine: str,
    threads: int | None,
) -> tuple[Model, SpeedUp | None]:
    """The same; a run of predict to the file `out` that stopped is resumed with as many tokens
    merged as it had."""
    known = None if speed_up is None or out is None else stopped_speed_up(Path(out), speed_up)
    if known is not None:
        with eval_mode(model):
            return merge_tokens(model, known.r), known
    return with_speed_up(model, speed_up, batch_size=batch_size, engine=engine, threads=threads)


def choose_on_engine(model: Model, speed_up: float, *, batch_size: int, engine: str) -> SpeedUp:
    """The same by an engine, in float32, with all threads on one batch."""
    shape = (batch_size, model.config.channels, *model.config.image_size)
    threads = torch.get_num_threads()
    plan = Plan("logits" if model.config.num_classes else "pooled", shape, threads=threads)

    built: dict[int, str] = {}

    def make(r: int) -> Runner:
        merged = merge_tokens(model, r) if r else model
        key = library_key(LIBRARIES[engine], ModelGraph(merged, plan))
        if not has_entry(key):
            built[r] = key
        return open_runner(merged, plan, engine).run

    found = choose_merging(model, speed_up, batch_size=batch_size, make=make, engine=engine)
    for r in built.keys() - {0, found.r}:  # what is not used is not kept
        remove_entry(built[r])
    return found


def speed_up_note(found: SpeedUp) -> str:
    """
    >>> speed_up_note(SpeedUp(16, 1.824))
    '16 tokens are merged in every block: measured to be 1.82 times as fast with eager'
    """
    return (
        f"{found.r} tokens are merged in every block: measured to be {found.ratio:.2f} times as "
        f"fast with {found.engine}"
    )
