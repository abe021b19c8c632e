"""`vitrail demo`: a short walk through what works, on the digits that scikit-learn ships."""

from dataclasses import KW_ONLY, dataclass

from vitrail.cli.options import OutputOptions, use_threads
from vitrail.cli.output import is_quiet, plural, say, say_json


@dataclass(frozen=True)
class Demo(OutputOptions):
    """How the walk is done."""

    _: KW_ONLY
    out: str = "demo"
    """Directory for the results."""
    overwrite: bool = False
    """Replace what an earlier demo wrote to OUT."""
    epochs: float = 60.0
    """Epochs to train."""
    seed: int = 0
    """Random seed."""
    threads: int = 2
    """CPU threads."""


def demo(options: Demo) -> None:
    """Train a small ViT on handwritten digits, evaluate it, and draw its attention: about a
    minute."""
    from pathlib import Path

    import torch

    from vitrail.cli.display import Display, print_run
    from vitrail.cli.evaluate import print_numbers
    from vitrail.data.reader import Sample, preprocess, read_pixels
    from vitrail.data.sources import open_data
    from vitrail.explanation.overlays import draw_panel, head_maps
    from vitrail.tasks.evaluate import evaluate
    from vitrail.tasks.train import train
    from vitrail.weights.load import load
    from vitrail.weights.results import LISTING, Results

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
    model = load(run.best).eval()
    digit = Sample(open_data("digits", val_share=0.2)["val"], 0)
    pixels = torch.from_numpy(read_pixels(digit)).permute(2, 0, 1)
    image = preprocess(digit, model.passport.preprocessing)
    maps = head_maps(model, image)
    large = torch.nn.functional.interpolate(pixels[None], scale_factor=24)
    picture = draw_panel(
        large[0].permute(1, 2, 0).numpy(),
        maps,
        out / "attention.png",
        title="where the model looks, layer by layer: the mean of all heads and patches",
    )
    files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    where.record(sorted(name for name in files if name != LISTING))
    if options.json:
        say_json({"run": run.facts(), "evaluation": evaluation.facts(), "attention": str(picture)})
        return
    print_run(run)
    say("", f"{plural(evaluation.images, 'image')} of {evaluation.outputs.split}")
    print_numbers(evaluation)
    say("", f"attention of {len(maps)} layers: {picture}")
