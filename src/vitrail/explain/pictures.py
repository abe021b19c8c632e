"""Attention maps as pictures."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitrail.explain.capture import AttentionMap


def overlay_map(
    photo: UInt8[np.ndarray, "H W 3"], heat: Float[Tensor, "rows columns"], strength: float = 0.6
) -> UInt8[np.ndarray, "H W 3"]:
    """The photo under a map: the darkest patch is looked at least, the brightest most."""
    from matplotlib import colormaps

    height, width = photo.shape[:2]
    smooth = F.interpolate(heat[None, None].float(), (height, width), mode="bicubic")[0, 0]
    low, high = smooth.min(), smooth.max()
    level = ((smooth - low) / (high - low).clamp(min=1e-12)).cpu().numpy()
    colour = colormaps["inferno"](level)[..., :3] * 255
    return ((1 - strength) * photo + strength * colour).round().clip(0, 255).astype(np.uint8)


def draw_panel(
    photo: UInt8[np.ndarray, "H W 3"],
    maps: Mapping[str, AttentionMap],
    out: Path,
    *,
    title: str,
    query: int = 0,
) -> Path:
    """A row of pictures: the photo, then for each map where token `query` looks, the mean of all
    heads."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * (len(maps) + 1), 3.2), layout="constrained")
    axes = figure.subplots(1, len(maps) + 1, squeeze=False)[0]
    axes[0].imshow(photo)
    axes[0].set_title("photo", fontsize=10)
    for axis, (name, one) in zip(axes[1:], maps.items(), strict=True):
        axis.imshow(overlay_map(photo, one.on_grid(query)[0].mean(dim=0)))
        axis.set_title(name, fontsize=10)
    for axis in axes:
        axis.set_axis_off()
    figure.suptitle(title, fontsize=11)
    out.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(out)
    return out
