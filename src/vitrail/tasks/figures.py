"""`vitrail.figures`: what a model has learnt, as the papers draw it, on one page."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
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
from vitrail.explanation.equivariance import Equivariance, measure_equivariance
from vitrail.explanation.equivariance_figure import NAME as EQUIVARIANCE
from vitrail.explanation.equivariance_figure import equivariance_panel
from vitrail.explanation.figures import FIGURES, draw_figures
from vitrail.explanation.weight_figures import APART, Panel
from vitrail.models.model import Model
from vitrail.pages.charts import Chart, chart_style, figure_png, figure_svg, svg_file
from vitrail.pages.render import Section, render, render_page
from vitrail.pages.translation import page_text, translated_sentence, translated_sentences
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun, plan_images
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.keywords import FiguresKeywords
from vitrail.tasks.models import AnyModel, Device, Precision, open_model, refuse_without_weights
from vitrail.tasks.names import SeveralModels, name_of, named_models
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import writing_results
from vitrail.tasks.splits import check_known
from vitrail.tasks.threads import use_threads

FACTS, ARRAYS = "figures.json", "figures.npz"
SAMPLES = 10  # two photos, and the quarters of each
SHIFTED = 16  # images that equivariance is measured on, at most


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
                title_of(panel),
                render(
                    "figure_panel.html",
                    caption=translated_sentences(panel.caption),
                    chart=as_chart(panel),
                ),
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
    title, (heads, *rows) = title_of(panel), panel.table
    columns = [page_text(head) for head in heads]
    cells = [[page_text(cell) if cell in APART else cell for cell in row] for row in rows]
    return Chart(title, figure_svg(panel.figure, title), columns, cells)


def title_of(panel: Panel) -> str:
    """The title in the chosen language, and the model as it is called."""
    own = panel.title.removesuffix(f": {panel.model}")
    return translated_sentence(own) + panel.title.removeprefix(own)


@overload
def figures(
    model: AnyModel | SeveralModels,
    data: str | Path | None = None,
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[FiguresKeywords],
) -> Figures: ...
@overload
def figures(
    model: AnyModel | SeveralModels,
    data: str | Path | None = None,
    *,
    dry_run: bool,
    **options: Unpack[FiguresKeywords],
) -> Figures | DryRun: ...
def figures(
    model: AnyModel | SeveralModels,
    data: str | Path | None = None,
    *,
    what: str | Sequence[str] | None = None,
    split: str | None = None,
    max_images: int = 128,
    ablated: int = 4,
    batch_size: int = 8,
    device: Device = "auto",
    threads: int | None = None,
    precision: Precision = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> Figures | DryRun:
    """Draw what a model has learnt: filters, positions, attention distance, principal components of
    tokens, similarity of layers, attention sinks. `what` chooses among filters, positions,
    distance, ablation, tokens, cka and sinks, which are drawn by default, and equivariance: how far
    tokens and logits move when images are shifted or their patches permuted, and how local blocks
    are. Several models, as a list or a mapping from names to models, are drawn together.

    `max_images` of one split of `data` are used, spread over it; by default two photos that come
    with scikit-learn, and four crops of each. For `ablated` images the positions are ablated, tile
    by tile. `out` gets report.html, every figure as SVG and PNG, figures.json and figures.npz.
    `dry_run` checks everything and returns what would be computed.

    >>> model = create("vit_ti_16", depth=1, num_classes=10, channels=1, image_size=16)
    >>> figures(model, "digits", max_images=4, ablated=0)
    Figures(ViT, 4 images: filters, positions, distance, tokens, cka, sinks)
    """
    check_count("max_images", max_images, at_least=1)
    check_count("ablated", ablated, at_least=0)
    check_count("batch_size", batch_size, at_least=1)
    wanted = check_what(what)
    models: dict[str, AnyModel] = {}
    if isinstance(model, list | tuple | Mapping):
        models = named_models(model)
    else:
        models[name or name_of(model)] = model
    for one in models.values():
        check_not_swapped(one, data)
        refuse_without_weights(one, "draw figures")
    how = {"overwrite": overwrite, "dry_run": dry_run}
    with use_threads(threads), writing_results(out, "figures", None, **how) as draft:
        drawing = Drawing(data, split, max_images, ablated, batch_size, wanted, on_progress)
        for called, one in models.items():
            loaded = open_model(one, device=device, precision=precision)
            if dry_run:
                drawing.counts.append(drawing.count(loaded))
            else:
                drawing.add(called, loaded)
        if dry_run:
            return drawing.plan(list(models), out)
        found = drawing.figures(name, None if out is None else Path(out))
        if draft is not None:
            found.save(draft)
    return found


def check_what(what: str | Sequence[str] | None) -> tuple[str, ...]:
    """The figures that are wanted, in the order of a page."""
    if what is None:
        return FIGURES
    wanted = [what] if isinstance(what, str) else list(what)
    known = (*FIGURES, EQUIVARIANCE)
    for one in wanted:
        if one not in known:
            raise UserError(f"what must be one of {', '.join(known)}, got {one!r}")
    return tuple(one for one in known if one in wanted) or FIGURES


@dataclass
class Drawing:
    """Goes through the models of one call."""

    data: str | Path | None
    split: str | None
    max_images: int
    ablated: int
    batch_size: int
    wanted: tuple[str, ...]
    on_progress: OnProgress
    counts: list[int] = field(default_factory=list)
    panels: dict[str, dict[str, Panel]] = field(default_factory=dict)  # by model
    summaries: dict[str, dict[str, int]] = field(default_factory=dict)
    measured: dict[str, Equivariance] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def source(self, model: Model) -> Source:
        share = model.passport.provenance.get("recipe", {}).get("val_share", 0.1)
        return open_split(str(self.data), self.split, share)

    def count(self, model: Model) -> int:
        return SAMPLES if self.data is None else min(self.max_images, len(self.source(model)))

    def images(self, model: Model, most: int) -> Iterator[Tensor]:
        how = model.passport.preprocessing
        if self.data is None:
            return islice(sample_images(how), most)
        return read_spread(self.source(model), how, most, self.broken)

    def add(self, name: str, model: Model) -> None:
        """Draw one model, and measure it for the figure that all share."""
        own = [one for one in self.wanted if one != EQUIVARIANCE]
        with eval_mode(model), chart_style():
            if own:
                images = batched(self.images(model, self.max_images), self.batch_size)
                self.summaries[name], panels = draw_figures(
                    model, images, ablated=self.ablated, on_progress=self.on_progress
                )
                self.panels[name] = {one.name: one for one in panels if one.name in own}
            if EQUIVARIANCE in self.wanted:
                self.on_progress("shifting images", len(self.measured), None)
                shifted = list(self.images(model, min(self.max_images, SHIFTED)))
                if not shifted:
                    raise UserError(f"{self.data}: none of its images can be read")
                self.measured[name] = measure_equivariance(model, torch.stack(shifted))
                facts = {"parameters": sum(part.numel() for part in model.parameters())}
                self.summaries.setdefault(name, {**facts, "images": len(shifted)})

    def plan(self, names: Sequence[str], out: str | Path | None) -> DryRun:
        counts = {"drawn": sum(self.counts)}
        if "ablation" in self.wanted:
            counts["ablated"] = sum(min(self.ablated, count) for count in self.counts)
        files = (PAGE, FACTS, ARRAYS, "*.svg", "*.png")
        what = (", ".join(names), str(self.data or "sample photos"))
        return plan_images(
            "figures", what, counts, batch_size=self.batch_size, out=out, files=files
        )

    def figures(self, name: str | None, out: Path | None) -> Figures:
        """All panels: of one model as they are; of several one after another, figure by figure."""
        names = list(self.summaries)
        panels = []
        for what in self.wanted:
            drawn = {model: self.panels.get(model, {}).get(what) for model in names}
            for model, panel in drawn.items():
                if panel is not None and len(names) > 1:
                    own = f"{panel.name}-{file_name(model, names)}"
                    title = f"{panel.title}: {model}"
                    panel = replace(panel, name=own, title=title, model=model)
                panels += [panel] if panel is not None else []
        if self.measured:
            with chart_style():
                panels.append(equivariance_panel(self.measured))
        summary = self.summaries[names[0]]
        if len(names) > 1:
            images = max(one["images"] for one in self.summaries.values())
            summary = {"models": len(names), "images": images}
        called = name or ", ".join(names)
        return Figures(called, summary, tuple(panels), list_broken(self.broken), out)


def file_name(model: str, names: Sequence[str]) -> str:
    """A part of a file's name for a model: letters of its own, and its number."""
    safe = re.sub(r"[^\w.]+", "-", model).strip("-.")[:40]
    return f"{names.index(model) + 1}-{safe}"


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
