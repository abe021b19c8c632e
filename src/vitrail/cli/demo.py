"""`vitrail demo`: a short tour, on the digits that scikit-learn ships."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli.options import COMPUTING, OUTPUT, OutputOptions, OverwriteOption, use_threads
from vitrail.cli.output import is_quiet, plural, say, say_json
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from vitrail.data.source import Source

WINDOW = "window.html"


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
    # two threads on a model this small wait for each other where a core is taken: minutes, not one
    threads: Annotated[int, Parameter(group=COMPUTING)] = 1
    """CPU threads."""
    serve: bool = False
    """Then serve the model, and open the page that shows it at work in a browser."""
    port: int = 8000
    """Port to serve on; 0 takes a free one."""


def demo(options: Demo) -> None:
    """Train a small ViT on handwritten digits, evaluate it, explain a prediction, and write a page
    that shows where every head looks: about a minute.

    Examples:
      vitrail demo
      vitrail demo --serve
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

    if options.serve and find_spec("fastapi") is None:  # said before the work, not after it
        raise UserError(
            "--serve needs fastapi, which is not installed: pip install 'vitrail[serve]'"
        )
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
    digits = open_data("digits", val_share=0.2)["val"]
    why = explain(run.best, read_pixels(Sample(digits, 0), channels=1), out=out / "explained")
    write_window(run.best, digits, out / WINDOW)
    files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    where.record(sorted(name for name in files if name != LISTING))
    if options.json:
        facts = {"run": run.facts(), "evaluation": evaluation.facts(), "explanation": why.facts()}
        say_json({**facts, "window": str(out / WINDOW)})
        if options.serve:
            open_window(options, run.best, run.out)
        return
    print_run(run)
    say("", f"{plural(evaluation.images, 'image')} of {evaluation.outputs.split}")
    print_metrics(evaluation)
    say("", f"the first of these images: {why!r}", f"report: {why.facts()['report']}")
    say("", "where every head looks, for ten digits: open this file in a browser")
    say(f"  {(out / WINDOW).absolute().as_uri()}")
    if options.serve:
        open_window(options, run.best, run.out)
    else:
        say("", "next, with images of your own:")
        say(*(f"  {command}" for command in next_commands(run.best)))


def next_commands(model: Path | str) -> list[str]:
    """What to type after the tour, each with what it does.

    >>> print(*next_commands("demo/digits/best"), sep="\\n")
    vitrail train photos/                     # one folder for each class: a model of your own
    vitrail explain runs/photos/best cat.jpg  # why it says so, and whether to believe that
    vitrail serve demo/digits/best --open     # the page, live: pip install 'vitrail[serve]' first
    """
    commands = {
        "vitrail train photos/": "one folder for each class: a model of your own",
        "vitrail explain runs/photos/best cat.jpg": "why it says so, and whether to believe that",
        f"vitrail serve {model} --open": "the page, live: pip install 'vitrail[serve]' first",
    }
    width = max(map(len, commands)) + 2
    return [f"{command:{width}}# {effect}" for command, effect in commands.items()]


def write_window(model: Path, digits: Source, file: Path) -> None:
    """The Attention view for the first digit of every class, as one offline file."""
    from vitrail.data.reader import Named, Sample, read_pixels
    from vitrail.tasks.explain import explain

    assert digits.targets is not None
    first = {
        label: list(digits.targets).index(number) for number, label in enumerate(digits.labels)
    }
    images = [
        Named(f"digit {label}", read_pixels(Sample(digits, index), channels=1))
        for label, index in first.items()
    ]
    explain(model, images, method=("auto", "occlusion"), verdict=False, html=file)


def open_window(options: Demo, model: Path, run: Path) -> None:
    """Serve the digits' model until Ctrl-C, with its data, and open the page."""
    import webbrowser

    from vitrail.serving.run import serve

    def on_ready(address: str) -> None:
        if not options.json:
            say("", f"serving at {address} (Ctrl-C ends it)")
        webbrowser.open(address)

    serve(
        f"digits={model}",
        port=options.port,
        threads=options.threads,
        data=(run,),
        on_ready=on_ready,
    )
