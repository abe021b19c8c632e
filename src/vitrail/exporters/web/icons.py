"""The app's icons: a small window of stained glass, drawn at the size that a device asks for."""

from pathlib import Path

from PIL import Image, ImageDraw

LEAD, PAPER = "#141b21", "#f6f8fa"
SIZES = {"icon-192.png": 192, "icon-512.png": 512, "apple-touch-icon.png": 180}
MASKABLE = "icon-maskable-512.png"
SCALE = 4  # drawn larger and reduced, for smooth edges

# Panes of glass in a window of 12 x 12: their colour and corners.
PANES: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = (
    ("#2f75ad", ((0, 0), (5, 0), (4, 4), (0, 5))),
    ("#e8b04a", ((5, 0), (9, 0), (8, 3), (4, 4))),
    ("#c4472a", ((9, 0), (12, 0), (12, 5), (8, 3))),
    ("#7cbdf0", ((0, 5), (4, 4), (5, 8), (0, 9))),
    ("#f4d58d", ((4, 4), (8, 3), (8.5, 7.5), (5, 8))),
    ("#7c4aa5", ((8, 3), (12, 5), (12, 9), (8.5, 7.5))),
    ("#23703e", ((0, 9), (5, 8), (4, 12), (0, 12))),
    ("#69c08c", ((5, 8), (8.5, 7.5), (8, 12), (4, 12))),
    ("#1f669f", ((8.5, 7.5), (12, 9), (12, 12), (8, 12))),
)


def write_icons(out: Path) -> None:
    """PNG files of every size into a new directory."""
    out.mkdir()
    for name, side in SIZES.items():
        draw_icon(side, margin=0.06, corner=0.22).save(out / name, "PNG", optimize=True)
    # a maskable icon is cut to any shape: its middle 80 % must hold what matters
    draw_icon(512, margin=0.17, corner=0).save(out / MASKABLE, "PNG", optimize=True)


def draw_icon(side: int, *, margin: float, corner: float) -> Image.Image:
    """A window on a dark ground; `margin` and `corner` (its radius) are shares of the side."""
    large = side * SCALE
    ground = Image.new("RGBA", (large, large), (0, 0, 0, 0))
    pen = ImageDraw.Draw(ground)
    pen.rounded_rectangle((0, 0, large - 1, large - 1), radius=corner * large, fill=LEAD)
    inside = large * (1 - 2 * margin)
    glass = Image.new("RGBA", (large, large), LEAD)
    pen = ImageDraw.Draw(glass)
    lead = round(0.022 * large)
    for colour, corners in PANES:
        points = [tuple(large * margin + inside * place / 12 for place in xy) for xy in corners]
        pen.polygon(points, fill=colour)
        pen.line([*points, points[0], points[1]], fill=LEAD, width=lead, joint="curve")
    window = Image.new("L", (large, large), 0)
    edge = (margin * large, margin * large, large * (1 - margin), large * (1 - margin))
    ImageDraw.Draw(window).rounded_rectangle(
        edge, radius=max(corner - margin, 0.06) * large, fill=255
    )
    ground.paste(glass, mask=window)
    return ground.resize((side, side), Image.Resampling.LANCZOS)
