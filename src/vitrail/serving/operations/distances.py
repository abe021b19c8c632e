"""How far each head looks in the images of the data, to compare one photo with."""

from typing import Any

import numpy as np
from PIL import Image

from vitrail.serving.operations.context import Context
from vitrail.serving.operations.options import NoOptions


def run_distances(
    context: Context, image: Image.Image | None, options: NoOptions
) -> dict[str, Any]:
    """Of every attention the mean distance of each head in pixels, and the range that four of five
    images lie in; no layers without data."""
    data = context.data
    if data is None:
        return {"images": 0, "layers": []}
    data.compute_distances()
    every = list(data.distances.values())
    names = list(every[0]) if every else []
    layers = []
    for name in names:
        rows = np.array([one[name] for one in every])
        low, high = np.quantile(rows, (0.1, 0.9), axis=0)
        layers.append(
            {
                "name": name,
                "distance": rows.mean(axis=0).tolist(),
                "low": low.tolist(),
                "high": high.tolist(),
            }
        )
    return {"images": len(every), "layers": layers}
