"""`speed_up=` of the verbs: a model that merges tokens until it is that many times as fast."""

from vitrail.core.eval_mode import eval_mode
from vitrail.inference.merging import merge_tokens
from vitrail.inference.rewrites.optimise import OutputKind
from vitrail.inference.speed_up import SpeedUp, choose_merging
from vitrail.models.model import Model
from vitrail.tasks.models import refuse_exported


def with_speed_up(
    model: Model, speed_up: float | None, *, batch_size: int
) -> tuple[Model, SpeedUp | None]:
    """The model, or one over the same weights that merges tokens, and what was measured."""
    if speed_up is None:
        return model, None
    refuse_exported(model, "merge tokens")
    with eval_mode(model):
        output: OutputKind = "scores" if model.config.num_classes else "pooled"
        found = choose_merging(model, speed_up, batch_size=batch_size, output=output)
        return merge_tokens(model, found.r), found


def speed_up_note(found: SpeedUp) -> str:
    """
    >>> speed_up_note(SpeedUp(16, 1.824))
    '16 tokens are merged in every block: measured to be 1.82 times as fast'
    """
    return (
        f"{found.r} tokens are merged in every block: measured to be {found.ratio:.2f} times as "
        "fast"
    )
