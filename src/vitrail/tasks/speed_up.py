"""`speed_up=` of the verbs: a model that merges tokens until it is that many times as fast."""

import torch

from vitrail.core.eval_mode import eval_mode
from vitrail.inference.engines.auto import open_runner
from vitrail.inference.engines.cache import remove_entry
from vitrail.inference.engines.catalogue import AUTO, LIBRARIES
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.opening import library_key
from vitrail.inference.engines.runner import Plan
from vitrail.inference.merging import merge_tokens
from vitrail.inference.rewrites.optimise import OutputKind
from vitrail.inference.speed_up import Runner, SpeedUp, choose_merging
from vitrail.models.model import Model
from vitrail.tasks.models import refuse_without_weights


def with_speed_up(
    model: Model, speed_up: float | None, *, batch_size: int, engine: str = AUTO
) -> tuple[Model, SpeedUp | None]:
    """The model, or one over the same weights that merges tokens, and what was measured: on the
    engine if one is named, else on eager, whose models take no time to build."""
    if speed_up is None:
        return model, None
    refuse_without_weights(model, "merge tokens")
    with eval_mode(model):
        output: OutputKind = "scores" if model.config.num_classes else "pooled"
        if engine in LIBRARIES:
            found = choose_on_engine(model, speed_up, batch_size=batch_size, engine=engine)
        else:
            found = choose_merging(model, speed_up, batch_size=batch_size, output=output)
        return merge_tokens(model, found.r), found


def choose_on_engine(model: Model, speed_up: float, *, batch_size: int, engine: str) -> SpeedUp:
    """The same by an engine, in float32, with all threads on one batch."""
    shape = (batch_size, model.config.channels, *model.config.image_size)
    threads = torch.get_num_threads()
    plan = Plan("logits" if model.config.num_classes else "pooled", shape, threads=threads)

    tried: dict[int, Model] = {}

    def make(r: int) -> Runner:
        tried[r] = merge_tokens(model, r) if r else model
        return open_runner(tried[r], plan, engine).run

    found = choose_merging(model, speed_up, batch_size=batch_size, make=make, engine=engine)
    for r in tried.keys() - {0, found.r}:  # what is not used is not kept
        remove_entry(library_key(LIBRARIES[engine], ModelGraph(tried[r], plan)))
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
