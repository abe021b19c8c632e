"""`vitrail.figures`: what a model has learnt, as the papers draw it, on one page."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from vitrail.core.broken import BrokenImage, list_broken
from vitrail.core.errors import UserError, nearest, writing
from vitrail.core.eval_mode import eval_mode
from vitrail.core.json_text import plain_values, to_json
from vitrail.core.passport import Preprocessing
from vitrail.core.ranges import check_count
from vitrail.data.images import BadImage
from vitrail.data.preprocess import MODES, normalise, prepare
from vitrail.data.reader import Sample, read_image
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.explanation.figures import draw_figures
from vitrail.explanation.weight_figures import Panel
from vitrail.pages.charts import Chart, chart_style, figure_png, figure_svg, svg_file
from vitrail.pages.render import Section, render, render_page
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun, plan_images
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.keywords import FiguresKeywords
from vitrail.tasks.models import AnyModel, Device, Precision, open_model, refuse_without_weights
from vitrail.tasks.names import name_of
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import writing_results
from vitrail.tasks.splits import check_known

FACTS, ARRAYS = "figures.json", "figures.npz"
SAMPLES = 10  # two photos, and the quarters of each


@dataclass(frozen=True, repr=False)
class Figures(HtmlRecord):
    """The panels of a model in the order of the page: each has a title, a caption, a matplotlib
    figure, and the numbers and arrays behind it. `broken` are images that could not be read."""

    model: str
    summary: dict[str, int]
    panels: tuple[Panel, ...]
    broken: tuple[BrokenImage, ...]
    out: Path | None = None

    def __iter__(self) -> Iterator[Panel]:
        return iter(self.panels)

    def __getitem__(self, name: str) -> Panel:
        """A panel by its name, such as "distance"."""
        known = {panel.name: panel for panel in self.panels}
        if name not in known:
            raise UserError(f"no figure is called {name!r}, {nearest(name, known)}")
        return known[name]

    def facts(self) -> dict[str, Any]:
        """As JSON holds it: what `vitrail figures --json` prints."""
        panels = {
            panel.name: {
                "title": panel.title,
                "caption": panel.caption,
                "drawn": panel.figure is not None,
                **panel.numbers,
            }
            for panel in self.panels
        }
        written = {} if self.out is None else {"report": str(self.out / PAGE), "out": str(self.out)}
        facts = {
            **written,
            "model": self.model,
            "facts": self.summary,
            "figures": panels,
            "broken": [asdict(one) for one in self.broken],
        }
        return plain_values(facts)

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Write the page, every figure as SVG and PNG, the numbers as JSON and the arrays as NPZ.
        A directory that holds files is written to only with `overwrite`."""
        out = Path(directory)
        if not overwrite and out.is_dir() and any(out.iterdir()):
            raise UserError(f"{out}: is not empty: choose another name, or pass overwrite=True")
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            for panel in self.panels:
                if panel.figure is not None:
                    drawing = svg_file(figure_svg(panel.figure, panel.title))
                    (out / f"{panel.name}.svg").write_text(drawing, encoding="utf-8")
                    (out / f"{panel.name}.png").write_bytes(figure_png(panel.figure))
            (out / FACTS).write_text(to_json(self.facts(), indent=1) + "\n", encoding="utf-8")
            arrays = {
                f"{panel.name}/{name}": array
                for panel in self.panels
                for name, array in panel.arrays.items()
            }
            np.savez_compressed(out / ARRAYS, **arrays)  # type: ignore[arg-type]
            self.save_html(out / PAGE, overwrite=overwrite)

    def html(self) -> str:
        """The page with all figures."""
        sections = [
            Section(
                panel.name,
                panel.title,
                render("figure_panel.html", caption=panel.caption, chart=as_chart(panel)),
            )
            for panel in self.panels
        ]
        lead = render(
            "facts.html", facts={name: f"{value:,}" for name, value in self.summary.items()}
        )
        return render_page(self.model, sections, kind="figures", lead=lead)

    def __repr__(self) -> str:
        drawn = [panel.name for panel in self.panels if panel.figure is not None]
        return f"Figures({self.model}, {self.summary['images']} images: {', '.join(drawn)})"


def as_chart(panel: Panel) -> Chart | None:
    """The drawing with its numbers, as a page shows it."""
    if panel.figure is None:
        return None
    heads, *rows = panel.table
    return Chart(panel.title, figure_svg(panel.figure, panel.title), heads, rows)


@overload
def figures(
    model: AnyModel,
    data: str | Path | None = None,
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[FiguresKeywords],
) -> Figures: ...
@overload
def figures(
    model: AnyModel,
    data: str | Path | None = None,
    *,
    dry_run: bool,
    **options: Unpack[FiguresKeywords],
) -> Figures | DryRun: ...
def figures(
    model: AnyModel,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    max_images: int = 128,
    ablated: int = 4,
    batch_size: int = 8,
    device: Device = "auto",
    precision: Precision = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> Figures | DryRun:
    """Draw what a model has learnt: filters, positions, attention distance, principal components of
    tokens, similarity of layers, attention sinks. `max_images` of one split of `data` are used,
    spread over it; by default two photos that come with scikit-learn, and four crops of each. For
    `ablated` images the positions are ablated, tile by tile. `out` gets report.html, every figure
    as SVG and PNG, figures.json and figures.npz. `dry_run` checks everything and returns what would
    be computed.

    >>> model = create("vit_ti_16", depth=1, num_classes=10, channels=1, image_size=16)
    >>> figures(model, "digits", max_images=4, ablated=0)
    Figures(ViT, 4 images: filters, positions, distance, tokens, cka, sinks)
    """
    check_count("max_images", max_images, at_least=1)
    check_count("ablated", ablated, at_least=0)
    check_count("batch_size", batch_size, at_least=1)
    check_not_swapped(model, data)
    refuse_without_weights(model, "draw figures")
    with writing_results(out, "figures", None, overwrite=overwrite, dry_run=dry_run) as draft:
        loaded = open_model(model, device=device, precision=precision)
        how, broken = loaded.passport.preprocessing, dict[str, str]()
        if data is None:
            chosen, count = sample_images(how), SAMPLES
        else:
            share = loaded.passport.provenance.get("recipe", {}).get("val_share", 0.1)
            source = open_split(str(data), split, share)
            chosen = read_spread(source, how, max_images, broken)
            count = min(max_images, len(source))
        if dry_run:
            names = (name or name_of(model), str(data or "sample photos"))
            wanted = {"drawn": count, "ablated": min(ablated, count)}
            files, size = (PAGE, FACTS, ARRAYS, "*.svg", "*.png"), batch_size
            return plan_images("figures", names, wanted, batch_size=size, out=out, files=files)
        with eval_mode(loaded), chart_style():
            summary, panels = draw_figures(
                loaded, batched(chosen, batch_size), ablated=ablated, on_progress=on_progress
            )
        found = Figures(
            name or name_of(model),
            summary,
            panels,
            list_broken(broken),
            None if out is None else Path(out),
        )
        if draft is not None:
            found.save(draft)
    return found


def open_split(data: str, split: str | None, val_share: float) -> Source:
    """One split, by default test, else val; one that was drawn for training is drawn again."""
    parts = open_data(data, val_share=val_share).parts
    check_known(split, data, parts)
    return parts[split or next(name for name in ("test", "val", "train", *parts) if name in parts)]


def read_spread(
    source: Source, how: Preprocessing, images: int, broken: dict[str, str]
) -> Iterator[Tensor]:
    """Images spread evenly over a split; `broken` gets those that cannot be read."""
    count = len(source)
    places = np.unique(np.linspace(0, count - 1, min(images, count)).round().astype(int))
    for place in places:
        try:
            yield normalise(read_image(Sample(source, int(place)), how), how, reorder=False)
        except BadImage as problem:
            broken[problem.path] = problem.reason


def sample_images(how: Preprocessing) -> Iterator[Tensor]:
    """The two photos that come with scikit-learn, and the four quarters of each: the same on every
    machine, and enough to compare layers by."""
    from sklearn.datasets import load_sample_images

    if len(how.mean) not in MODES:
        return
    for pixels in load_sample_images().images:
        rows, columns = pixels.shape[0] // 2, pixels.shape[1] // 2
        quarters = [
            pixels[top : top + rows, left : left + columns]
            for top in (0, rows)
            for left in (0, columns)
        ]
        for part in (pixels, *quarters):
            yield prepare(part, how)


def batched(images: Iterator[Tensor], size: int) -> Iterator[Tensor]:
    batch: list[Tensor] = []
    for image in images:
        batch.append(image)
        if len(batch) == size:
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)
