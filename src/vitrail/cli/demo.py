"""`vitrail demo`: a short tour, on the digits that scikit-learn ships."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import COMPUTING, OUTPUT, OutputOptions, OverwriteOption, use_threads
from vitrail.cli.output import is_quiet, plural, say, say_json


@dataclass(frozen=True)
class Demo(OverwriteOption, OutputOptions):
    """How the tour is run."""

    _: KW_ONLY
    out: Annotated[str, Parameter(group=OUTPUT)] = "demo"
    """Directory for the results."""
    epochs: float = 60.0
    """Epochs to train."""
    seed: int = 0
    """Random seed."""
    threads: Annotated[int, Parameter(group=COMPUTING)] = 2
    """CPU threads."""


def demo(options: Demo) -> None:
    """Train a small ViT on handwritten digits, evaluate it, and explain a prediction: about a
    minute.

    Examples:
      vitrail demo
      vitrail demo --out tour --epochs 10 --overwrite
    """
    from pathlib import Path

    from vitrail.cli.display import Display, print_run
    from vitrail.cli.evaluate import print_metrics
    from vitrail.data.reader import Sample, read_pixels
    from vitrail.data.sources import open_data
    from vitrail.tasks.evaluate import evaluate
    from vitrail.tasks.explain import explain
    from vitrail.tasks.results import LISTING, Results
    from vitrail.tasks.train import train

    out = Path(options.out)
    where = Results(out, "demo", options.overwrite)
    where.check(alone=True)
    where.remove()
    use_threads(options.threads)
    with Display(quiet=options.json or is_quiet()) as display:
        run = train(
            "digits",
            out=out / "digits",
            epochs=options.epochs,
            seed=options.seed,
            val_share=0.2,
            on_step=display.show_step,
            on_progress=display.show_progress,
        )
    if run.stopped or run.best is None:
        raise KeyboardInterrupt
    evaluation = evaluate(run.best, "digits")
    digit = read_pixels(Sample(open_data("digits", val_share=0.2)["val"], 0), channels=1)
    why = explain(run.best, digit, out=out / "explained")
    files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    where.record(sorted(name for name in files if name != LISTING))
    if options.json:
        say_json({"run": run.facts(), "evaluation": evaluation.facts(), "explanation": why.facts()})
        return
    print_run(run)
    say("", f"{plural(evaluation.images, 'image')} of {evaluation.outputs.split}")
    print_metrics(evaluation)
    say("", f"the first of them: {why!r}", f"its explanation: {why.facts()['report']}")
