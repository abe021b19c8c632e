"""`vitrail demo`: a short walk through what works, on a photo that scikit-learn ships."""

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Demo:
    """How the walk is done."""

    _: KW_ONLY
    out: str = "demo"
    """The directory for what it writes."""
    seed: int = 0
    """The seed of the fresh weights."""
    threads: int = 2
    """Threads to compute with."""


def demo(asked: Demo) -> None:
    """Create a ViT, show its layers, look at its attention on a photo, save it and load it
    again."""
    from pathlib import Path

    import numpy as np
    import torch
    from PIL import Image
    from sklearn.datasets import load_sample_image

    from vitrail.cli.info import Info, info
    from vitrail.data.preprocess import frame, prepare
    from vitrail.explain.capture import capture
    from vitrail.explain.pictures import draw_panel
    from vitrail.models.catalogue import create
    from vitrail.weights.load import load
    from vitrail.weights.native import save

    torch.manual_seed(asked.seed)
    torch.set_num_threads(asked.threads)
    out = Path(asked.out)
    name = "vit_ti_16"
    info(Info(name))

    model = create(name, num_classes=10).eval()
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    how = model.passport.preprocessing
    with torch.inference_mode(), capture(model) as maps:
        logits = model(prepare(photo, how)[None])
    chosen = {f"blocks.{i}.attention": maps[f"blocks.{i}.attention"] for i in (0, 3, 7, 11)}
    picture = draw_panel(
        np.asarray(frame(photo, how)),
        chosen,
        out / "attention.png",
        title=f"{name}, fresh weights: where the class token looks, mean of all heads",
    )
    print(f"\nattention of {len(maps)} blocks on a photo: {picture}")

    saved = save(model, out / "model", overwrite=True)
    again = load(saved)
    with torch.inference_mode():
        same = torch.equal(again(prepare(photo, how)[None]), logits)
    print(f"saved and loaded again: {saved}, logits identical: {same}")
