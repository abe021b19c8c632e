"""Models and photos for load: known answers that cannot be taken for each other."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrail import create, predict, save

TOLERANCE = 1e-3  # of scores, between batches of different sizes and engines
LETTERS = 16  # classes of the small model


@dataclass(frozen=True)
class Known:
    """Encoded images, and for each the scores of all classes by number."""

    images: list[bytes]
    labels: list[str]
    scores: NDArray[np.float64]

    def nearest(self, row: NDArray[np.float64]) -> tuple[int, float]:
        """The image whose answer this is most like, and how far it is from it."""
        distances = np.abs(self.scores - row).max(axis=1)
        best = int(distances.argmin())
        return best, float(distances[best])

    def row(self, top: list[dict[str, float | str]]) -> NDArray[np.float64]:
        """An answer with all classes as scores in the order of the classes."""
        by_label = {str(one["label"]): float(one["score"]) for one in top}
        return np.array([by_label[label] for label in self.labels])


def write_small_model(folder: Path) -> Path:
    """A model that takes a millisecond, and tells images clearly apart."""
    torch.manual_seed(0)
    model = create("vit_ti_16", depth=2, image_size=32, patch_size=8, num_classes=LETTERS).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"), std=0.2)
    return Path(save(model, folder / "small"))


def write_model(folder: Path, name: str) -> Path:
    torch.manual_seed(0)
    model = create(name, num_classes=100).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"), std=0.05)
    return Path(save(model, folder / name))


def noise_image(seed: int, size: tuple[int, int] = (40, 36)) -> bytes:
    """A small PNG of coarse noise, another for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def photos(count: int, size: tuple[int, int] = (500, 375)) -> list[bytes]:
    """JPEG files of parts of scikit-learn's two photos, all different."""
    from sklearn.datasets import load_sample_images

    every = [Image.fromarray(one) for one in load_sample_images().images]
    draw, found = np.random.default_rng(0), []
    for number in range(count):
        photo = every[number % len(every)]
        wide = int(draw.integers(200, photo.width + 1))
        high = int(wide * size[1] / size[0])
        left = int(draw.integers(0, photo.width - wide + 1))
        top = int(draw.integers(0, max(photo.height - high, 0) + 1))
        part = photo.crop((left, top, left + wide, top + high)).resize(size)
        file = BytesIO()
        part.save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def known_answers(model: Path, count: int) -> Known:
    """Images whose answers are further apart than rounding could bring together; computed here."""
    images = [noise_image(seed) for seed in range(2 * count)]
    found = predict(str(model), images, top=LETTERS, engine="eager")
    labels = sorted({label for label, _ in found[0].top})
    rows = np.array([[dict(one.top)[label] for label in labels] for one in found])
    chosen: list[int] = []
    for place, row in enumerate(rows):
        if not chosen or np.abs(rows[chosen] - row).max(axis=1).min() > 4 * TOLERANCE:
            chosen.append(place)
        if len(chosen) == count:
            break
    return Known([images[place] for place in chosen], labels, rows[chosen])
