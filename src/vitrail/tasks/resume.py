"""`vitrail.resume`: continue a run from its last checkpoint."""

from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.run import Run
from vitrail.tasks.run_options import Observer, OnStep, Parallel, make_options
from vitrail.tasks.training_run import start_run
from vitrail.training.recipe_file import NAME, read_recipe


def resume(
    run_directory: str | Path,
    *,
    workers: int | None = None,
    parallel: Parallel | None = None,
    device: str = "auto",
    threads: int | None = None,
    processes: int = 1,
    on_step: OnStep | None = None,
    on_progress: OnProgress = silent,
) -> Run:
    """Continue a run of `train` or `pretrain` with its own recipe, to the same bits as if it had
    never stopped, on as many workers and processes as there are now. A run that is finished is
    returned as it ended.

    >>> from vitrail.tasks.train import train
    >>> run = train("digits", out="run", steps=2, batch_size=8, set={"fields.depth": 1})
    >>> resume("run").facts() == run.facts()
    True
    """
    out = Path(run_directory)
    if not (out / NAME).is_file():
        raise UserError(f"{out}: no run to resume here: give the directory of a run")
    recipe = read_recipe(out / NAME)
    options = make_options(
        "train" if recipe.has_labels else "pretrain",
        recipe.data,
        {
            "out": out,
            "resume": True,
            "workers": workers,
            "parallel": parallel,
            "device": device,
            "threads": threads,
            "processes": processes,
        },
    )
    return start_run(options, Observer(on_step, on_progress))
