"""`vitrail demo`: a short walk through what works, on the digits that scikit-learn ships."""

from dataclasses import KW_ONLY, dataclass

from vitrail.cli.options import OutputOptions
from vitrail.cli.output import say


@dataclass(frozen=True)
class Demo(OutputOptions):
    """How the walk is done."""

    _: KW_ONLY
    out: str = "demo"
    """The directory for what it writes."""
    overwrite: bool = False
    """Replace what an earlier demo has written there."""
    epochs: float = 60.0
    """Rounds through the digits."""
    seed: int = 0
    """Decides every draw."""
    threads: int = 2
    """Threads to compute with."""


def demo(asked: Demo) -> None:
    """Train a small ViT on handwritten digits, judge it, and look at its attention: about a
    minute."""
    from pathlib import Path

    import torch

    from vitrail.cli.evaluate import Evaluate, evaluate
    from vitrail.cli.train import Train, train
    from vitrail.data.loader import pixels_of
    from vitrail.data.preprocess import prepare
    from vitrail.data.sources import open_data
    from vitrail.explanation.overlays import draw_panel, head_maps
    from vitrail.weights.load import load
    from vitrail.weights.results import LISTING, Results

    out = Path(asked.out)
    run = out / "digits"
    where = Results(out, "demo", asked.overwrite)
    where.check(alone=True)
    where.remove()
    train(
        Train(
            "digits",
            out=str(run),
            epochs=asked.epochs,
            seed=asked.seed,
            threads=asked.threads,
            val_share=0.2,
        )
    )
    say("")
    evaluate(Evaluate(str(run / "best"), "digits", threads=asked.threads))

    model = load(run / "best").eval()
    digit = pixels_of(open_data("digits", val_share=0.2)["val"], 0, channels=1)
    image = prepare(digit.permute(1, 2, 0).numpy(), model.passport.preprocessing)[None]
    maps = head_maps(model, image)
    large = torch.nn.functional.interpolate(digit.expand(3, -1, -1)[None], scale_factor=24)
    picture = draw_panel(
        large[0].permute(1, 2, 0).numpy(),
        maps,
        out / "attention.png",
        title="where the model looks, layer by layer: the mean of all heads and patches",
    )
    files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    where.record(sorted(name for name in files if name != LISTING))
    say("", f"attention of {len(maps)} layers: {picture}")
    say(f"the report of the run: {run / 'report.html'}")
