"""What a run does when the loss or a gradient is not finite: stop, skip the step, or go back."""

from vitrail.core.errors import UserError
from vitrail.training.recipe import Recipe

RECENT = 100  # steps, of which at most `monitor.nan_limit` may be skipped


class NanPolicy:
    """`monitor.nan` of a recipe: "stop" raises, "skip" leaves the update out, "back" returns to the
    last checkpoint and leaves it out then."""

    def __init__(self, recipe: Recipe) -> None:
        self.kind, self.limit = recipe.monitor.nan, recipe.monitor.nan_limit
        self.lr = recipe.optimiser.lr

    def refuse(self, loss: float, step: int, skip: list[int], *, checkpoint_step: int) -> None:
        """Add a step whose update is not finite to those to `skip`, or give up."""
        if self.kind == "stop":
            raise UserError(
                f"diverged at step {step}: the loss is {loss} with a gradient that is not finite: "
                f"lower lr ({self.lr:g}), or set monitor.nan to skip in recipe.yaml"
            )
        if step not in skip:
            skip.append(step)
        since = step - RECENT
        if self.kind == "back":
            since = min(since, checkpoint_step)
        if sum(since <= one <= step for one in skip) > self.limit:
            raise UserError(
                f"diverged: more than {self.limit} of the steps from {max(since, 0)} to {step} had "
                f"a loss or a gradient that is not finite: lower lr ({self.lr:g}), or raise "
                "monitor.nan_limit"
            )
