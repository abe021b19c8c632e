"""The image at the top of README.md: a photo, three maps of it, and the verdict on each.

The photo is Chelsea the cat, which comes with scikit-image (CC0). MODEL is the checkpoint of
`python -m benchmarks.panels GOLDEN --runs DIRECTORY --only hybrid`, which tells pets from flowers.

    python -m benchmarks.hero MODEL [--threads N]
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from skimage.data import chelsea

import vitrail
from vitrail.tasks.explanation import Explanation

OUT = Path(__file__).parents[1] / "docs" / "hero.png"
METHODS = ("integrated", "attribution", "gradcam")
INK, GOOD, BAD, UNCLEAR = "#1d2730", "#2e7d4f", "#c94e30", "#5d6b78"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a checkpoint that benchmarks.panels has trained")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    why = vitrail.explain(options.model, Image.fromarray(chelsea()), method=METHODS)
    assert isinstance(why, Explanation)  # of one image
    figure = Figure(figsize=(12, 3.75), dpi=110, facecolor="white")
    tiles = figure.subplots(1, 4)
    photo, *maps = tiles
    photo.imshow(why.image)
    photo.set_title(f"{why.label} {why.score:.0%}", fontsize=13, color=INK)
    for tile, method in zip(maps, METHODS, strict=True):
        verdict = why.run.checks[method].verdict
        colour = {"yes": GOOD, "no": BAD}.get(verdict.tracks, UNCLEAR)
        tile.imshow(why.overlay(method))
        tile.set_title(method, fontsize=13, color=INK)
        tile.set_xlabel(verdict.sentence, fontsize=11, color=colour)
    for tile in tiles:
        tile.set(xticks=[], yticks=[])
        tile.spines[:].set_visible(False)
    figure.tight_layout()
    figure.savefig(OUT)
    print(f"{OUT}: {why}")


if __name__ == "__main__":
    main()
